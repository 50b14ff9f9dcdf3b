"""The runbook of error codes: what its pages are about, and the script that writes their index.

`python -m tests.runbook` writes `docs/runbook/README.md` from the pages. A page begins with the code that names its
file; the line `Also: …` names further codes of the same page, of a family with a variable tail or of the same cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).parent.parent / "docs"
RUNBOOK: Final = DOCS / "runbook"
INDEX: Final = RUNBOOK / "README.md"
AREAS: Final = {
    "submission": "What a pipeline sends",
    "withdrawal": "What a pipeline sends",
    "message": "Messages and queues",
    "queue": "Messages and queues",
    "broker": "Messages and queues",
    "coordinator": "Events and commands",
    "operator": "Events and commands",
    "evidence": "Evidence and reviews",
    "release": "Approvals and receipts",
    "cms": "Deliveries and the CMS",
    "run": "Release runs",
    "cms_key_missing": "Release runs",
    "delivery_missing": "Release runs",
    "evidence_stopped": "Release runs",
    "permit_held": "Release runs",
    "plan_stale": "Release runs",
    "lease_expired": "Evidence and reviews",
    "superseded": "Deliveries and the CMS",
    "keys": "Keys and signatures",
    "signature": "Keys and signatures",
    "policy": "Policy",
    "database": "Database",
    "store": "Database",
    "worker": "Workers and settings",
    "health": "Workers and settings",
    "settings": "Workers and settings",
    "http": "Workers and settings",
    "locseal": "Workers and settings",
}
OTHER: Final = "Commands and sandbox"
HEAD: Final = """# Runbook

One page for each stable error code: what happened, what it means for the release, what to do. A page may hold several
codes that ask for the same. `grep -rl CODE docs/runbook` finds the page of any code. Written by `python -m tests.runbook`.

Elsewhere: findings of `locseal doctor` with their fixes in [doctor.md](../doctor.md), findings of the text checks in
[checks.md](../checks.md), gaps and refusals of an import in [import.md](../import.md), findings of the audit in
[audit.md](../audit.md). A code of ours below another area (`release.keys.trust.missing`) is that of its tail, and a step of
a release run shows a code with `_` for its dots (`release_event_tampered`).

In the commands, words in capitals are to be replaced. `locseal releases show EVENT` says for each event and locale what
it waits for, until when, and which command is next.
"""


@dataclass(frozen=True)
class Page:
    """One page: its codes, the first of which names the file, what happened in one sentence, and its commands."""

    name: str
    codes: tuple[str, ...]
    meaning: str
    sections: tuple[str, ...]
    commands: tuple[str, ...]


def pages() -> list[Page]:
    """Return the pages in the order of their names."""
    return [_page(path) for path in sorted(RUNBOOK.glob("*.md")) if path != INDEX]


def index(of: list[Page]) -> str:
    """Return the text of the index: the pages by area, each code with its sentence."""
    groups: dict[str, list[Page]] = {title: [] for title in [*dict.fromkeys(AREAS.values()), OTHER]}
    for page in of:
        groups[AREAS.get(page.name.partition(".")[0], OTHER)].append(page)
    parts = [HEAD]
    for title, members in groups.items():
        rows = [f"| {_linked(page)} | {page.meaning} |" for page in members]
        parts.append("\n".join([f"## {title}", "", "| code | what happened |", "|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _linked(page: Page) -> str:
    return ", ".join([f"[`{page.name}`]({page.name}.md)", *(f"`{code}`" for code in page.codes[1:])])


def _page(path: Path) -> Page:
    text = path.read_text(encoding="utf-8")
    first, _, rest = text.partition("\n\n")
    also = rest.partition("\n\n")[0] if rest.startswith("Also: ") else ""
    codes = (first.removeprefix("# `").removesuffix("`"), *re.findall(r"`([^`]+)`", also))
    happened = text.partition("## What happened\n\n")[2].partition("\n\n")[0].replace("\n", " ")
    return Page(
        name=path.stem,
        codes=codes,
        meaning=re.split(r"(?<=[.!?]) (?=[A-Z])", happened)[0],
        sections=tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)),
        commands=tuple(re.findall(r"^\$ (.+)$", text, re.MULTILINE)),
    )


if __name__ == "__main__":
    INDEX.write_text(index(pages()), encoding="utf-8")
