"""Where the field cases lie that the tests of rules read."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def cases() -> Path:
    """Return the folder of the field cases' input files."""
    return Path(__file__).parent / "cases"
