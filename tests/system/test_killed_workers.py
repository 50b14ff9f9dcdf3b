"""A worker killed, or frozen beyond its lease, at each place that matters: 27 approvals, one delivery, one publication.

The sandbox holds a call or its answer open, so the worker is hit exactly there; a supervisor starts it again.
"""

from __future__ import annotations

import json
import signal

from sqlalchemy import text

from tests.system.facts import DONE, attempts, facts, is_delivered, published, started, until
from worker.cli.local_fleet import Child, LocalFleet, wait_for
from worker.cli.local_stage import Stage

# Leases that are soon over, with deadlines that fit into them.
SHORT_EVIDENCE = {
    "EVIDENCE_LEASE_SECONDS": "6",
    "PROVIDER_DEADLINE_SECONDS": "3",
    "VERIFIER_DEADLINE_SECONDS": "1",
    "SIGNER_DEADLINE_SECONDS": "0.3",
    "MARGIN_SECONDS": "0.3",
}
SHORT_DELIVERY = {
    "DELIVERY_LEASE_SECONDS": "5",
    "SEND_DEADLINE_SECONDS": "3",
    "LOOKUP_DEADLINE_SECONDS": "1",
    "MARGIN_SECONDS": "1",
}


def running(stage: Stage, target: str) -> int:
    """Return how many calls of the sandbox's target are open."""
    return int(stage.control()["running"][target])


def calls_of_each(stage: Stage) -> list[tuple[int, str]]:
    """Return the attempts and status of each evidence row."""
    with stage.engine.connect() as conn:
        found = conn.execute(text("SELECT attempts, status FROM evidence")).all()
    return [(int(row.attempts), row.status) for row in found]


def kill(worker: Child) -> None:
    """Kill a worker that nobody asked to end."""
    worker.kill()
    assert worker.process.returncode == -signal.SIGKILL


def recovered(fleet: LocalFleet, stage: Stage) -> None:
    """Let the supervisor and the sweeper make it good, and hold the end against the promise."""
    fleet.start_beat()
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert facts(stage) == DONE


def test_killed_inside_the_provider_call(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """All 27 calls are open when the worker dies: their leases run out, and each is asked again."""
    stage = sqlite_stage
    fleet.settings |= SHORT_EVIDENCE
    stage.control({"provider": {"hold": True}})
    worker = started(fleet)
    stage.submit(signed)
    wait_for(lambda: running(stage, "provider") == 27, worker, "the calls")
    kill(worker)
    assert calls_of_each(stage) == [(1, "leased")] * 27
    stage.control({"provider": {}})
    recovered(fleet, stage)
    assert min(attempts(stage)) == 2
    assert [posts for _, posts in published(stage)] == [1]


def test_killed_after_the_receipt(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """The provider answered and nothing is verified yet: the receipts are lost with the worker, and asked for again."""
    stage = sqlite_stage
    verifier = {"kind": "http", "url": f"{stage.sandbox_url}/verifier"}
    fleet.settings |= SHORT_EVIDENCE
    fleet.settings["VERIFIERS"] = json.dumps(dict.fromkeys(("quality", "human", "independent"), verifier))
    stage.control({"verifier": {"hold": True}})
    worker = started(fleet)
    stage.submit(signed)
    wait_for(lambda: running(stage, "verifier") > 0, worker, "the verifications")
    kill(worker)
    assert facts(stage).approvals == 0
    stage.control({"verifier": {}})
    recovered(fleet, stage)
    assert max(attempts(stage)) >= 2
    assert [posts for _, posts in published(stage)] == [1]


def test_killed_after_the_approvals_were_committed(fleet: LocalFleet, postgres_stage: Stage, signed: str) -> None:
    """The approvals are there and the delivery is not: it is prepared by whoever finds it, and nothing is asked again."""
    stage = postgres_stage
    worker = started(fleet)
    with stage.engine.begin() as conn:
        conn.execute(text("LOCK TABLE deliveries IN EXCLUSIVE MODE"))  # it can be read; nothing can be inserted
        stage.submit(signed)
        wait_for(lambda: facts(stage).approvals == 27, worker, "the approvals")
        kill(worker)
    assert facts(stage).deliveries == 0
    recovered(fleet, stage)
    assert attempts(stage) == [1] * 27
    assert [posts for _, posts in published(stage)] == [1]


def test_killed_after_the_cms_accepted(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """The CMS has published and its answer dies with the worker: the next one asks, and sends nothing again."""
    stage = sqlite_stage
    fleet.settings |= SHORT_DELIVERY
    stage.control({"cms": {"answer_delay_seconds": 600}})
    worker = started(fleet)
    stage.submit(signed)
    wait_for(lambda: published(stage) != [], worker, "the publication")
    kill(worker)
    assert facts(stage).delivered == 0
    stage.control({"cms": {}})
    fleet.start_beat()
    until(lambda: is_delivered(stage), fleet, "the delivery")
    with stage.engine.connect() as conn:
        kinds = conn.execute(text("SELECT kind, outcome FROM delivery_answers")).all()
    assert [tuple(row) for row in kinds] == [("lookup", "accepted")]
    assert (facts(stage).approvals, facts(stage).delivered, facts(stage).leased) == (27, 1, 0)
    assert attempts(stage) == [1] * 27
    assert [posts for _, posts in published(stage)] == [1]


def test_frozen_inside_the_provider_call(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """Leases run out under a stopped worker, another does the work; the first wakes with 27 answers that count nothing."""
    stage = sqlite_stage
    fleet.settings |= SHORT_EVIDENCE
    stage.control({"provider": {"hold": True}})
    frozen = started(fleet, "frozen")
    stage.submit(signed)
    wait_for(lambda: running(stage, "provider") == 27, frozen, "the calls")
    frozen.send(signal.SIGSTOP)
    stage.control({"provider": {}})  # its answers are on their way now
    other = started(fleet, "other")
    fleet.start_beat()
    wait_for(lambda: is_delivered(stage), other, "the delivery", 60)
    before = calls_of_each(stage)
    frozen.send(signal.SIGCONT)
    wait_for(lambda: frozen.log_text().count('"evidence.not_settled"') == 27, frozen, "the late answers")
    assert "evidence.approved" not in frozen.log_text()
    assert facts(stage) == DONE
    assert calls_of_each(stage) == before
    assert min(before) >= (2, "succeeded")
    assert [posts for _, posts in published(stage)] == [1]


def test_frozen_inside_the_send(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """The lease of a send runs out under a stopped worker, another looks it up; the first wakes and changes nothing."""
    stage = sqlite_stage
    fleet.settings |= SHORT_DELIVERY
    stage.control({"cms": {"answer_delay_seconds": 600}})
    frozen = started(fleet, "frozen")
    stage.submit(signed)
    wait_for(lambda: published(stage) != [], frozen, "the publication")
    frozen.send(signal.SIGSTOP)
    stage.control({"cms": {}})
    other = started(fleet, "other")
    fleet.start_beat()
    wait_for(lambda: is_delivered(stage), other, "the delivery", 60)
    with stage.engine.connect() as conn:
        before = conn.execute(text("SELECT * FROM deliveries")).one()
    frozen.send(signal.SIGCONT)
    wait_for(lambda: _tasks_done(frozen, "delivery.publish") == 1, frozen, "the late answer")
    with stage.engine.connect() as conn:
        assert conn.execute(text("SELECT * FROM deliveries")).one() == before
        assert conn.execute(text("SELECT count(*) FROM delivery_answers")).scalar_one() == 1
    assert [posts for _, posts in published(stage)] == [1]


def _tasks_done(worker: Child, task: str) -> int:
    lines = [json.loads(line) for line in worker.log_text().splitlines() if line.startswith("{")]
    return sum(line["event"] in {"task.done", "task.blocked"} and line.get("task") == task for line in lines)
