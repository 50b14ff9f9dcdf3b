"""How these tests ask: two texts in, the codes that were found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from worker.domain.checks.gate import run_checks


@pytest.fixture(scope="session")
def codes() -> Callable[..., list[str]]:
    """Return a function that checks a text against its source and returns the codes in order."""

    def check(source: str, target: str, to: str = "de", **options: Any) -> list[str]:
        wanted = {"source_locale": "en", **options}
        return [found.code for found in run_checks(source_text=source, target_text=target, target_locale=to, **wanted)]

    return check
