"""Tasks run as a worker runs them, on a real database of the test's own; no broker is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import signals
from sqlalchemy import Engine

from tests.builders import Keyring
from worker.app import vitals


@pytest.fixture
def keyring() -> Keyring:
    """Fresh keys of every purpose."""
    return Keyring()


@pytest.fixture
def here(tmp_path: Path, sqlite_engine: Engine, keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Settings for this process: a migrated SQLite file, keys, and a broker that nobody answers for.

    Yields the engine. The services that a task builds are put away at the end, as a worker does.
    """
    keyring.write(tmp_path / "private", tmp_path / "trust")
    monkeypatch.setenv("LOCSEAL_DATABASE_URL", sqlite_engine.url.render_as_string(hide_password=False))
    monkeypatch.setenv("LOCSEAL_KEYS_PRIVATE_DIR", str(tmp_path / "private"))
    monkeypatch.setenv("LOCSEAL_KEYS_TRUST_DIR", str(tmp_path / "trust"))
    monkeypatch.setenv("LOCSEAL_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("LOCSEAL_INTAKE_PAUSE_SECONDS", "0.01")
    monkeypatch.setenv("LOCSEAL_INTAKE_WAIT_SECONDS", "0.05")
    signals.worker_shutdown.send(sender=None)
    yield sqlite_engine
    signals.worker_shutdown.send(sender=None)
    vitals.reset()
