"""`locseal db`: the schema and the rights of a database."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome


def test_a_file_is_upgraded_once_and_has_no_roles(
    locseal: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second upgrade changes nothing; rights by role are refused, since SQLite knows none."""
    monkeypatch.setenv("LOCSEAL_STATE_DIR", str(tmp_path / "state"))
    sys.modules.pop("config.celeryconfig", None)
    assert locseal("db", "upgrade", "--json").json == {"database": "sqlite", "upgraded": True}
    assert locseal("db", "upgrade", "--json").json == {"database": "sqlite", "upgraded": False}
    refused = locseal("db", "grant", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "database.grants.sqlite")
