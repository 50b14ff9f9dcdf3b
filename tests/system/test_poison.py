"""Work that three workers die of, killed for real, is quarantined; an operator releases it, and it is published once."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest
from sqlalchemy import text

from tests.system.facts import facts, is_delivered, published, started
from worker.cli.local_fleet import LocalFleet, wait_for
from worker.cli.local_stage import LOCSEAL, Stage


def locseal(fleet: LocalFleet, *arguments: str) -> Any:
    """Run a command of this installation and return its JSON."""
    done = subprocess.run(
        [*LOCSEAL, *arguments, "--json"],
        env=fleet.environment(),
        cwd=fleet.directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def count(stage: Stage, condition: str) -> int:
    with stage.engine.connect() as conn:
        return int(conn.execute(text(f"SELECT count(*) FROM evidence WHERE {condition}")).scalar_one())


@pytest.mark.timeout(360)
def test_killed_three_times(fleet: LocalFleet, postgres_stage: Stage, signed: str) -> None:
    """Each worker dies with all 27 calls open and its leases run out; the third time nobody may claim them again."""
    stage = postgres_stage
    # The deadlines leave a worker of a busy machine time to be killed; the leases are ended by hand.
    fleet.settings |= {"PROVIDER_DEADLINE_SECONDS": "200", "EVIDENCE_LEASE_SECONDS": "300"}
    stage.control({"provider": {"hold": True}})
    fleet.start_beat()
    stage.submit(signed)
    for death in range(1, 4):
        worker = started(fleet, f"worker-{death}")
        wait_for(
            lambda death=death: count(stage, f"status = 'leased' AND attempts = {death}") == 27, worker, "claims", 100
        )
        worker.kill()
        assert worker.process.returncode == -signal.SIGKILL
        fleet.children.remove(worker)
        with stage.engine.begin() as conn:
            conn.execute(text("UPDATE evidence SET next_attempt_at = 1000, lease_expires_at = 1001"))
    stage.control({"provider": {}})
    last = started(fleet, "last")
    wait_for(lambda: count(stage, "last_error_code = 'evidence.quarantined'") == 27, last, "the quarantine", 100)
    assert count(stage, "status = 'failed' AND attempts = 3") == 27
    listed = locseal(fleet, "quarantine", "list")["quarantined"]
    assert {(one["step"], one["doing"]) for one in listed} == {("evidence.collect", "the review by default")}
    assert {len({expiry["worker_id"] for expiry in one["expiries"]}) for one in listed} == {3}
    (event_id,) = {one["event_id"] for one in listed}
    locseal(fleet, "quarantine", "release", listed[0]["row_id"])
    locseal(fleet, "evidence", "retry", event_id)
    wait_for(lambda: is_delivered(stage), last, "the delivery", 100)
    assert (facts(stage).approvals, [posts for _, posts in published(stage)]) == (27, [1])
