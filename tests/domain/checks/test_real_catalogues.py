"""The real catalogues of Django's admin: the findings that were judged by hand, and not one more.

docs/checks.md lists them with what a reviewer says; `locseal check po` prints them.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from worker.domain.checks.gate import run_checks

CATALOGUE = json.loads(
    (Path(__file__).parents[2] / "data" / "django-admin" / "catalogue.json").read_text(encoding="utf-8")
)
SPACES = {
    "ar": 2, "bg-BG": 1, "da-DK": 2, "el-GR": 1, "es-ES": 1, "ga-IE": 1, "hr-HR": 2, "it-IT": 1, "ja-JP": 1,
    "lt-LT": 1, "nl-NL": 1, "pl-PL": 1, "pt-BR": 2, "pt-PT": 1, "ro-RO": 1, "sk-SK": 2, "sl-SI": 1,
}  # fmt: skip


@pytest.mark.parametrize("locale", sorted(CATALOGUE["targets"]))
def test_the_page_of_131_strings(locale: str) -> None:
    """Stray spaces at the ends, and the one placeholder that a translator broke: nothing else."""
    found = run_checks(
        source_text=CATALOGUE["source"],
        target_text=CATALOGUE["targets"][locale],
        source_locale="en",
        target_locale=locale,
        media_type="application/json",
    )
    errors = [(one.code, one.path) for one in found if one.severity == "error"]
    broken = [("placeholder.missing", "$.s038"), ("placeholder.broken", "$.s038")]
    assert errors == (broken if locale == "ga-IE" else [])
    warnings = Counter(one.code.partition(".")[0] for one in found if one.severity == "warning")
    assert warnings == Counter({"space": SPACES[locale]} if locale in SPACES else {})
