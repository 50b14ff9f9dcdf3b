"""Whole fleets as processes: a real `celery worker` and beat, a real Redis (or the embedded Valkey), a sandbox.

    def test_x(fleet: LocalFleet, stage: Stage) -> None:
        worker = fleet.start_worker()
        fleet.wait_for_worker(worker)
        stage.submit(stage.sign(document))
        wait_for(lambda: delivered(stage), worker, "the delivery")

`stage` runs a test on both databases; `sqlite_stage` and `postgres_stage` on one. Everything a test starts ends with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import URL

from tests.conftest import missing
from worker.cli.demo_event import SITE_ID, demo_submission
from worker.cli.local_fleet import LocalFleet, installed_redis
from worker.cli.local_stage import Stage, set_stage, wait_for_sandbox

# A fleet that recovers quickly: a second instead of ten, so that tests wait less.
QUICK = {
    "SWEEP_INTERVAL_SECONDS": "0.5",
    "RECOVERY_BOUND_SECONDS": "1",
    "EVIDENCE_LEASE_SECONDS": "20",
    "DELIVERY_LEASE_SECONDS": "20",
    "PROVIDER_DEADLINE_SECONDS": "8",
    "VERIFIER_DEADLINE_SECONDS": "2",
    "SIGNER_DEADLINE_SECONDS": "2",
    "SEND_DEADLINE_SECONDS": "8",
    "LOOKUP_DEADLINE_SECONDS": "4",
    "MARGIN_SECONDS": "2",
    "INTAKE_WAIT_SECONDS": "60",
    "VISIBILITY_TIMEOUT_SECONDS": "300",
}


@pytest.fixture
def broker_program() -> Path | None:
    """The `redis-server` of this machine, or None for the embedded Valkey; CI must have the former."""
    found = installed_redis()
    if found is None and os.environ.get("CI") == "true":
        missing("Redis", "redis-server is not installed")
    return found


@pytest.fixture
def fleet(tmp_path: Path, broker_program: Path | None) -> Iterator[LocalFleet]:
    """A fleet of this test's own, with nothing started yet."""
    with LocalFleet(directory=tmp_path / "fleet", settings=dict(QUICK), broker_program=broker_program) as own:
        yield own


@pytest.fixture
def sqlite_stage(fleet: LocalFleet) -> Iterator[Stage]:
    """The fleet's broker, keys, sandbox and a migrated SQLite file."""
    yield from stage_on(fleet, None)


@pytest.fixture
def postgres_stage(fleet: LocalFleet, new_postgres_database: Callable[[], URL]) -> Iterator[Stage]:
    """The fleet's broker, keys, sandbox and a migrated PostgreSQL database."""
    yield from stage_on(fleet, new_postgres_database().render_as_string(hide_password=False))


@pytest.fixture(params=["sqlite", "postgresql"])
def stage(request: pytest.FixtureRequest) -> Stage:
    """Each database in turn."""
    found: Stage = request.getfixturevalue("sqlite_stage" if request.param == "sqlite" else "postgres_stage")
    return found


@pytest.fixture
def signed(request: pytest.FixtureRequest) -> str:
    """The demo's submission, signed for the stage that the test uses."""
    name = next(name for name in ("stage", "sqlite_stage", "postgres_stage") if name in request.fixturenames)
    stage: Stage = request.getfixturevalue(name)
    return stage.sign(demo_submission()[1])


def stage_on(fleet: LocalFleet, database_url: str | None) -> Iterator[Stage]:
    found = set_stage(fleet, site_ids=[SITE_ID], database_url=database_url)
    try:
        wait_for_sandbox(found)
        yield found
    finally:
        fleet.close()  # before the database of the workers is dropped
        found.close()
