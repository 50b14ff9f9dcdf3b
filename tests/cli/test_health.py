"""`locseal health`: what the platform's probes are told."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.cli.conftest import Broker, Home, Outcome
from worker.cli.local_fleet import LocalFleet

AWAY = "postgresql+psycopg://nobody@127.0.0.1:1/none"


@pytest.fixture(autouse=True)
def _fresh_celeryconfig() -> None:
    """Celery's settings are computed once in a process; here each test has its own."""
    sys.modules.pop("config.celeryconfig", None)


def heartbeat(home: Home, *, age_seconds: float) -> Path:
    """Leave a heartbeat of that age."""
    path = home.directory / "heartbeat"
    path.touch()
    then = time.time() - age_seconds
    os.utime(path, (then, then))
    return path


def test_a_fresh_heartbeat_is_life(
    locseal: Callable[..., Outcome], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a heartbeat of just now it says yes, although neither database nor broker can be reached."""
    heartbeat(home, age_seconds=0)
    monkeypatch.setenv("LOCSEAL_DATABASE_URL", AWAY)
    done = locseal("health", "live", "--json")
    assert (done.code, done.json["live"], done.err) == (0, True, "")
    assert locseal("health", "live").code == 0


def test_no_or_an_old_heartbeat_is_none(locseal: Callable[..., Outcome], home: Home) -> None:
    """Without a heartbeat, or with one older than the setting, it says no, with one stable code and how old it is."""
    none = locseal("health", "live", "--json")
    assert (none.code, none.json["error"]["code"]) == (1, "health.not_live")
    heartbeat(home, age_seconds=31)
    old = locseal("health", "live", "--json")
    assert (old.code, old.json["error"]["code"]) == (1, "health.not_live")
    assert old.json["error"]["details"]["age_seconds"] >= 31


def test_the_heartbeat_lies_where_the_settings_say(
    locseal: Callable[..., Outcome], home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workers that share a state directory each have a file of their own, and a limit of their own."""
    heartbeat(home, age_seconds=100)
    monkeypatch.setenv("LOCSEAL_HEARTBEAT_FILE", str(tmp_path / "own"))
    assert locseal("health", "live").code == 1
    monkeypatch.setenv("LOCSEAL_HEARTBEAT_FILE", str(home.directory / "heartbeat"))
    monkeypatch.setenv("LOCSEAL_LIVENESS_SECONDS", "1000")
    assert locseal("health", "live").code == 0


def test_a_clock_that_was_set_back_kills_nobody(locseal: Callable[..., Outcome], home: Home) -> None:
    """A heartbeat from the future is one of just now."""
    heartbeat(home, age_seconds=-600)
    assert locseal("health", "live", "--json").json == {"live": True, "age_seconds": 0.0}


def test_all_there_is_ready(locseal: Callable[..., Outcome], home: Home, broker: Broker) -> None:
    """A migrated database and a broker that answers: ready."""
    done = locseal("health", "ready", "--json")
    assert (done.code, done.json) == (
        0,
        {"ready": True, "checks": {"database": "ok", "migrations": "ok", "broker": "ok"}},
    )
    assert locseal("health", "ready").out == "database: ok\nmigrations: ok\nbroker: ok\n"


def test_no_broker_is_not_ready(locseal: Callable[..., Outcome], home: Home) -> None:
    """Nobody listens where the broker should be: not ready, and the database is fine."""
    done = locseal("health", "ready", "--json")
    assert (done.code, done.json["ready"]) == (1, False)
    assert done.json["checks"] == {"database": "ok", "migrations": "ok", "broker": "queue.unavailable"}


def test_a_database_that_is_away_is_not_ready(
    locseal: Callable[..., Outcome], home: Home, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens where the database should be."""
    monkeypatch.setenv("LOCSEAL_DATABASE_URL", AWAY)
    done = locseal("health", "ready", "--json")
    away = "database.unavailable"
    assert (done.code, done.json["checks"]) == (1, {"database": away, "migrations": away, "broker": "ok"})


def test_an_unmigrated_database_is_not_ready(locseal: Callable[..., Outcome], home: Home, broker: Broker) -> None:
    """An older schema, or no database file at all, is said by its code; no file is made."""
    with home.engine.begin() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    expected = {"database": "ok", "migrations": "database.unmigrated", "broker": "ok"}
    assert locseal("health", "ready", "--json").json["checks"] == expected
    path = home.directory / "locseal.db"
    path.rename(home.directory / "elsewhere.db")
    done = locseal("health", "ready", "--json")
    assert (done.code, done.json["checks"], path.exists()) == (1, expected, False)


def test_what_does_not_answer_is_not_waited_for(
    locseal: Callable[..., Outcome], home: Home, broker: Broker, broker_fleet: LocalFleet
) -> None:
    """A frozen broker takes the connection and says nothing: the probe says so when its own time is over."""
    [server] = [child for child in broker_fleet.children if child.name == "broker"]
    server.send(signal.SIGSTOP)
    try:
        done = locseal("health", "ready", "--json", "--seconds", "3")
    finally:
        server.send(signal.SIGCONT)
    assert done.code == 1
    assert done.json["checks"]["broker"] in {"health.check.unfinished", "queue.unavailable"}


def test_wrong_settings_are_no_answer(
    locseal: Callable[..., Outcome], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password file that cannot be read is wrong usage, exit code 2, for the readiness probe."""
    monkeypatch.setenv("LOCSEAL_BROKER_PASSWORD_FILE", str(home.directory / "none"))
    assert locseal("health", "ready", "--json").code == 2
