"""`locseal check`: exit codes, places and counts on files of the catalogues that translators left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from worker.cli.check import app
from worker.domain.errors import Invalid

PO = Path(__file__).parents[1] / "data" / "django-admin" / "po"
# locale: (units checked, unfinished, findings, blocking)
COUNTS = {
    "ar": (200, 0, 2, 0), "bg-BG": (198, 0, 4, 0), "cs-CZ": (198, 0, 0, 0), "da-DK": (200, 0, 2, 0),
    "de-DE": (195, 5, 0, 0), "el-GR": (179, 0, 1, 0), "es-ES": (195, 5, 1, 0), "et-EE": (198, 2, 0, 0),
    "fi-FI": (193, 7, 1, 0), "fr-FR": (195, 5, 0, 0), "ga-IE": (198, 0, 3, 2), "hr-HR": (156, 19, 4, 0),
    "hu-HU": (194, 6, 1, 0), "it-IT": (190, 5, 7, 0), "ja-JP": (200, 0, 2, 1), "lt-LT": (175, 0, 3, 1),
    "lv-LV": (200, 0, 1, 0), "nl-NL": (198, 0, 1, 0), "pl-PL": (200, 0, 3, 0), "pt-BR": (195, 5, 3, 0),
    "pt-PT": (192, 8, 6, 0), "ro-RO": (169, 19, 2, 0), "sk-SK": (200, 0, 3, 0), "sl-SI": (170, 25, 1, 0),
    "sr-Latn": (200, 0, 2, 0), "sv-SE": (200, 0, 0, 0), "zh-Hans": (198, 0, 0, 0),
}  # fmt: skip


def test_the_counts_of_all_catalogues_stay() -> None:
    """The findings in 27 catalogues are those that were judged by hand; docs/checks.md publishes the same counts."""
    ran = CliRunner().invoke(app, ["po", "--json", *map(str, sorted(PO.glob("*.po")))])
    told = json.loads(ran.stdout)
    found = {one["locale"]: (one["units"], one["unfinished"], len(one["findings"]), one["blocking"]) for one in told}
    assert found == COUNTS
    assert ran.exit_code == 1
    serious = {
        (one["path"], one["code"])
        for locale in told
        for one in locale["findings"]
        if not one["code"].startswith("space")
    }
    assert serious == {
        ("ga-IE.po:24", "placeholder.missing"),
        ("ga-IE.po:24", "placeholder.broken"),
        ("ja-JP.po:397", "markup.tag.missing"),
        ("lt-LT.po:253", "text.incomplete"),
        ("pt-BR.po:424", "markup.space.lost"),
        ("pt-PT.po:405", "markup.space.lost"),
        ("sr-Latn.po:525", "markup.space.lost"),
    }
    page = (PO.parents[3] / "docs" / "checks.md").read_text(encoding="utf-8")
    for locale, (units, unfinished, findings, blocking) in COUNTS.items():
        assert f"| {locale} | {units} | {unfinished} | {findings} | {blocking} |" in page


def test_a_pair_of_files(tmp_path: Path) -> None:
    """The ending says the media type; what blocks makes the exit code 1, what only warns does not; no text is told."""
    source, good, bad = tmp_path / "a.md", tmp_path / "b.md", tmp_path / "c.md"
    source.write_text("Run `make` secretly", encoding="utf-8")
    good.write_text("`make` heimlich ausführen", encoding="utf-8")
    bad.write_text("`mache` heimlich ausführen", encoding="utf-8")
    fine = CliRunner().invoke(app, ["pair", str(source), str(good), "--to", "de"])
    assert (fine.exit_code, fine.stdout.splitlines()[0]) == (0, "nothing found")
    blocked = CliRunner().invoke(app, ["pair", str(source), str(bad), "--to", "de"])
    assert blocked.exit_code == 1
    assert "code.changed" in blocked.stdout
    assert "heimlich" not in blocked.stdout


def test_a_locale_that_is_none_is_refused(tmp_path: Path) -> None:
    """A file whose name is no locale is refused before it is read."""
    with pytest.raises(Invalid) as caught:
        CliRunner().invoke(app, ["po", str(tmp_path / "german_file.po")], catch_exceptions=False)
    assert (caught.value.code, caught.value.path) == ("check.locale.invalid", "german_file.po")
