"""Links between the Markdown files lead somewhere: to a file that is there, and to a heading that it has."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1[`~]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^]]+\]:\s*(\S+)", re.MULTILINE)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def pages() -> list[Path]:
    """Return the tracked Markdown files; outside of a clone, all that are there."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return sorted(path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file())
    return sorted(path for path in ROOT.rglob("*.md") if not {".venv", "node_modules"} & set(path.parts))


def links(text: str) -> Iterator[str]:
    """Yield the relative links of a page, code left out."""
    for found in _LINK.finditer(_CODE.sub("``", _FENCE.sub("", text))):
        target = found[1] or found[2]
        if not _ADDRESS.match(target):
            yield target


def anchors(text: str) -> set[str]:
    """Return the names by which the headings of a page can be linked to, as GitHub makes them."""
    seen: dict[str, int] = {}
    names = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?) *#* *$", _FENCE.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = seen[name] = seen.get(name, -1) + 1
        names.add(f"{name}-{count}" if count else name)
    return names


def dead_links(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    dead = []
    for link in links(page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Files and headings."""
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    """A missing file and a missing heading; not code, addresses or what is there."""
    (tmp_path / "other.md").write_text("# One `two`, three\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#one-two-three) [c](https://x.example/no) `[d](code.md)`\n"
        "[e](gone.md) [f](other.md#four) [g](#nothing)\n\n```\n[h](fence.md)\n```\n\n[i]: lost.md\n"
    )
    assert dead_links(page) == ["gone.md", "other.md#four", "#nothing", "lost.md"]
