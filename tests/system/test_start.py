"""How a worker starts, or says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from worker.cli.local_fleet import Child, LocalFleet, wait_for
from worker.cli.local_stage import Stage


def ended(worker: Child) -> str:
    """Return what a worker that refused to start has said."""
    assert worker.process.wait(timeout=120) == 1
    return worker.log_text()


def lines(worker: Child, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in worker.log_text().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def test_a_worker_says_what_is_in_force(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """Acknowledgement, prefetch, visibility timeout and soft shutdown are logged as they are, once."""
    worker = fleet.start_worker(queues=["intake", "evidence"], settings={"WORKER_THREADS": "3"})
    fleet.wait_for_worker(worker)
    (line,) = lines(worker, "worker.started")
    assert line["acks_late"] == ["evidence.submit", "release.submit", "release.withdraw"]
    assert (line["prefetch_multiplier"], line["disable_prefetch"]) == (1, True)
    assert (line["visibility_timeout_seconds"], line["soft_shutdown_seconds"]) == (300, 20.0)
    assert (line["pool"], line["concurrency"], line["queues"]) == ("threads", 3, ["evidence", "intake"])


@pytest.mark.parametrize(
    ("revision", "code", "says"),
    [
        ("0001", "database.unmigrated", "locseal db upgrade"),
        ("9999", "database.too_new", "upgrade this installation"),
    ],
)
def test_a_database_of_another_schema_is_refused(
    fleet: LocalFleet, sqlite_stage: Stage, revision: str, code: str, says: str
) -> None:
    """A worker does not start on an older schema, nor on one that serves it no more; it says what mends that."""
    with sqlite_stage.engine.begin() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
        conn.execute(text("UPDATE installation SET value = '9999' WHERE name = 'serves_from'"))
    sqlite_stage.submit("a message that must stay")
    said = ended(fleet.start_worker())
    assert code in said
    assert says in said
    assert sqlite_stage.fleet.broker_client().llen("intake") == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"BATCH_ROW": "1"}, "LOCSEAL_BATCH_ROW is no setting; did you mean LOCSEAL_BATCH_ROWS?"),
        ({"PROVIDER_DEADLINE_SECONDS": "20"}, "evidence_lease_seconds must exceed"),
        ({"CMS": '{"default": {"url": "http://cms.invalid"}}'}, "use https; plain http only to this machine"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(
    fleet: LocalFleet, sqlite_stage: Stage, settings: dict[str, str], says: str
) -> None:
    """A worker whose settings are misspelt or cannot work together does not start, and says which."""
    assert says in ended(fleet.start_worker(settings=settings))


def test_a_policy_that_the_process_cannot_keep_waits(fleet: LocalFleet, sqlite_stage: Stage, tmp_path: Path) -> None:
    """A policy file is data that changes while the fleet runs: a broken one is waited out, and named."""
    policy = tmp_path / "policy.json"
    policy.write_text('{"sites": {"demo-site": {"evidence_lease_seconds": 5}}}')
    worker = fleet.start_worker(settings={"POLICY_FILE": str(policy)})
    fleet.wait_for_worker(worker)
    assert [line["code"] for line in lines(worker, "worker.start.waiting")] == ["policy.unavailable"]


def test_a_database_that_is_away_is_waited_for(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """A worker starts while its database is away; its intake waits."""
    away = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    worker = fleet.start_worker(settings={"DATABASE_URL": away})
    fleet.wait_for_worker(worker)
    sqlite_stage.submit("a message")
    wait_for(lambda: lines(worker, "intake.waiting") != [], worker, "the wait")
    assert [line["code"] for line in lines(worker, "worker.start.waiting")] == ["database.unavailable"]
    assert sqlite_stage.fleet.broker_client().hlen("unacked") == 1
