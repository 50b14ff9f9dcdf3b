"""Workers that silently stop taking work end themselves, and so are started again; and what probes see of a worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from celery import Celery
from sqlalchemy import text

from tests.cases.scenes import SHORT_LEASE, lines, scalar, submit
from tests.system.facts import facts, until
from worker.cli.local_fleet import Child, LocalFleet, wait_for
from worker.cli.local_stage import LOCSEAL, Stage
from worker.domain.stall import EXIT_CODE

PATIENCE = 100.0  # of a loaded machine
STALL = {**SHORT_LEASE, "STALL_SECONDS": "7", "GRACE_PERIOD_SECONDS": "3"}


def ready(worker: Child) -> Child:
    """Wait until a worker takes messages, and return it."""
    wait_for(lambda: "worker.started" in worker.log_text(), worker, "the worker", PATIENCE)
    return worker


def bounded(fleet: LocalFleet) -> Path:
    """Let the fleet keep to a bound on open calls, and return its policy file."""
    path = fleet.directory / "policy.json"
    path.write_text(json.dumps({"default": {}, "providers": {"default": {"limits": {"concurrent_calls": 5}}}}))
    fleet.settings["POLICY_FILE"] = str(path)
    return path


def ended(worker: Child) -> list[dict[str, object]]:
    """Wait for a worker that ends for a fault of its own, and return the reasons that it logged."""
    assert worker.process.wait(timeout=PATIENCE) == EXIT_CODE
    return lines(worker, "worker.stalled")


@pytest.mark.timeout(300)
def test_a_worker_whose_claims_never_end_is_started_again(fleet: LocalFleet, postgres_stage: Stage) -> None:
    """Every claim waits for a lock that somebody holds: the worker says what waits and ends; the next one does the work."""
    stage = postgres_stage
    fleet.settings |= STALL
    bounded(fleet)
    worker = ready(fleet.start_worker())
    with stage.engine.begin() as conn:
        conn.execute(text("LOCK TABLE limits IN EXCLUSIVE MODE"))  # the look for a stall only reads
        submit(stage, "waits", ["de"])
        [reason] = ended(worker)
        assert (reason["code"], reason["work"]) == ("worker.stalled", "evidence")
        assert facts(stage).leased == 0
    assert scalar(stage, "SELECT count(*) FROM drains") == 0  # a fault is no drain
    fleet.start_beat()
    until(lambda: facts(stage).delivered == 1, fleet, "the delivery", PATIENCE)


@pytest.mark.timeout(300)
def test_a_worker_that_cannot_even_look_is_started_again(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """Reading the policy file hangs for ever, for the collector and for the watch alike: the worker ends all the same."""
    fleet.settings |= STALL
    path = bounded(fleet)
    worker = ready(fleet.start_worker())
    fifo = path.with_suffix(".fifo")
    os.mkfifo(fifo)
    fifo.rename(path)
    [reason] = ended(worker)
    assert (reason["code"], reason["work"]) == ("worker.stalled", "watch")


@pytest.mark.timeout(300)
def test_a_worker_that_takes_no_messages_is_started_again(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """Its consumer of intake is gone, as after a lost connection: the submission lies in Redis until the next one comes."""
    stage = sqlite_stage
    fleet.settings |= STALL
    worker = ready(fleet.start_worker())
    with Celery(broker=fleet.broker_url(), set_as_current=False) as remote:

        def is_cancelled() -> bool:
            said = remote.control.cancel_consumer("intake", reply=True, timeout=2, limit=1)
            return any("ok" in answer for one in said for answer in one.values())

        wait_for(is_cancelled, worker, "the end of the consumer", PATIENCE)
    submit(stage, "unread", ["de"])
    [reason] = ended(worker)
    assert (reason["code"], reason["work"]) == ("worker.stalled", "intake")
    until(lambda: facts(stage).approvals == 1, fleet, "the approval", PATIENCE)


def probe(fleet: LocalFleet, what: str) -> tuple[int, dict[str, object]]:
    """Return the exit code and the answer of one probe, run as the platform runs it."""
    done = subprocess.run(
        [*LOCSEAL, "health", what, "--json"], capture_output=True, text=True, check=False, env=fleet.environment()
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.timeout(300)
def test_liveness_needs_no_redis_and_readiness_does(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """With Redis killed a worker is alive and not ready; frozen, it is not alive; awake again, it is."""
    fleet.settings["LIVENESS_SECONDS"] = "5"
    worker = ready(fleet.start_worker())
    assert probe(fleet, "ready") == (
        0,
        {"ready": True, "checks": {"database": "ok", "migrations": "ok", "broker": "ok"}},
    )
    broker = fleet.children[0]
    broker.kill()
    code, answer = probe(fleet, "ready")
    assert (code, answer["checks"]) == (1, {"database": "ok", "migrations": "ok", "broker": "queue.unavailable"})
    wait_for(lambda: probe(fleet, "live")[0] == 0, worker, "a heartbeat without Redis", PATIENCE)
    worker.send(signal.SIGSTOP)
    wait_for(lambda: probe(fleet, "live")[0] == 1, worker, "the end of the heartbeat", PATIENCE)
    worker.send(signal.SIGCONT)
    wait_for(lambda: probe(fleet, "live")[0] == 0, worker, "the heartbeat again", PATIENCE)
