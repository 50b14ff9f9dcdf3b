"""SIGTERM to real workers: calls that had begun and calls that had not, the end of the grace period, rolling restarts."""

from __future__ import annotations

import sys

import pytest
from sqlalchemy import text

from tests.cases.scenes import calls, scalar, submit
from tests.system.facts import attempts, facts, is_delivered, published, until
from worker.cli.local_fleet import Child, LocalFleet, wait_for
from worker.cli.local_stage import Stage

PATIENCE = 90.0  # of a loaded machine


# No call may run into its deadline while a test holds it open.
LONG = {
    "EVIDENCE_LEASE_SECONDS": "300",
    "PROVIDER_DEADLINE_SECONDS": "200",
    "DELIVERY_LEASE_SECONDS": "300",
    "SEND_DEADLINE_SECONDS": "200",
    "LOOKUP_DEADLINE_SECONDS": "50",
}


def ready(worker: Child) -> Child:
    """Wait until a worker takes messages, and return it."""
    wait_for(lambda: "worker.started" in worker.log_text(), worker, "the worker", PATIENCE)
    return worker


def open_calls(stage: Stage) -> int:
    """Return how many calls the provider has open."""
    return int(stage.control()["running"]["provider"])


def drain(worker: Child) -> None:
    """Ask a worker to end and wait until it does not begin anything more."""
    worker.ask_to_stop()
    wait_for(lambda: "worker.draining" in worker.log_text(), worker, "the drain", PATIENCE)


def announced(stage: Stage) -> int:
    """Return how many workers announced their end."""
    return int(scalar(stage, "SELECT count(*) FROM drains"))


@pytest.mark.timeout(300)
def test_what_was_not_asked_goes_back_and_what_was_is_finished(fleet: LocalFleet, postgres_stage: Stage) -> None:
    """One call is open and three rows are claimed and not asked about: the one is settled, the three are free at once.

    The worker is held up between its claim and its calls by a lock on a table that it reads there.
    """
    stage = postgres_stage
    fleet.settings |= LONG
    stage.control({"provider": {"hold": True}})
    worker = ready(fleet.start_worker())
    submit(stage, "begun", ["de"])
    wait_for(lambda: open_calls(stage) == 1, worker, "the call", PATIENCE)
    with stage.engine.begin() as conn:
        conn.execute(text("LOCK TABLE pushed_responses IN ACCESS EXCLUSIVE MODE"))
        submit(stage, "claimed", ["fr", "it", "pl"])
        wait_for(lambda: facts(stage).leased == 4, worker, "the leases", PATIENCE)
        drain(worker)
    claimed = "FROM evidence WHERE event_id = 'claimed'"
    wait_for(
        lambda: scalar(stage, f"SELECT count(*) {claimed} AND status = 'retry_wait'") == 3, worker, "the rows", PATIENCE
    )
    clock = "extract(epoch FROM clock_timestamp())::float8"
    assert scalar(stage, f"SELECT max(attempts) {claimed}") == 0
    assert scalar(stage, f"SELECT count(*) {claimed} AND next_attempt_at <= {clock}") == 3
    assert calls(stage) == 1
    stage.control({"provider": {}})
    assert worker.stop(PATIENCE) == 0
    assert (facts(stage).approvals, facts(stage).leased) == (1, 0)
    assert scalar(stage, "SELECT count(*) FROM setbacks WHERE outcome = 'released'") == 3
    [(owner,)] = _rows(stage, "SELECT DISTINCT lease_owner FROM setbacks")
    assert _rows(stage, "SELECT worker_id FROM drains") == [(owner,)]


@pytest.mark.timeout(300)
def test_what_is_open_at_the_end_keeps_its_lease(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """A review and a send do not end: two seconds before the grace period is over they are let go, leased and counted."""
    stage = sqlite_stage
    fleet.settings |= {**LONG, "GRACE_PERIOD_SECONDS": "3"}
    stage.control({"cms": {"answer_delay_seconds": 600}})
    worker = ready(fleet.start_worker())
    submit(stage, "sent", ["de"])
    wait_for(lambda: published(stage) != [], worker, "the publication", PATIENCE)
    stage.control({"provider": {"hold": True}})
    submit(stage, "asked", ["fr"])
    wait_for(lambda: open_calls(stage) == 1, worker, "the call", PATIENCE)
    assert worker.stop(PATIENCE) == 0
    with stage.engine.connect() as conn:
        review = conn.execute(text("SELECT status, attempts, lease_owner FROM evidence WHERE event_id = 'asked'")).one()
        send = conn.execute(text("SELECT status, attempts, in_doubt, lease_owner FROM deliveries")).one()
    assert (review.status, review.attempts) == ("leased", 1)
    assert (send.status, send.attempts, bool(send.in_doubt)) == ("leased", 1, True)
    assert review.lease_owner == send.lease_owner
    assert _rows(stage, "SELECT worker_id FROM drains") == [(send.lease_owner,)]
    assert scalar(stage, "SELECT count(*) FROM setbacks") == 0
    assert len(published(stage)) == 1


@pytest.mark.timeout(300)
def test_children_of_a_pool_drain_too(fleet: LocalFleet, postgres_stage: Stage) -> None:
    """With processes instead of threads, and the signal to all of them: what they have asked is finished."""
    stage = postgres_stage
    fleet.settings |= LONG
    stage.control({"provider": {"hold": True}})
    options = [
        "--without-gossip",
        "--without-mingle",
        "--hostname",
        "forked@%h",
        "--pool",
        "prefork",
        "--concurrency",
        "2",
    ]
    worker = fleet.start("forked", [sys.executable, "-m", "celery", "-A", "worker.app", "worker", *options])
    ready(worker)
    submit(stage, "asked", ["de", "fr"])
    wait_for(lambda: open_calls(stage) == 2, worker, "the calls", PATIENCE)
    drain(worker)  # the signal goes to the whole group
    wait_for(lambda: announced(stage) >= 1, worker, "the announcement", PATIENCE)
    stage.control({"provider": {}})
    assert worker.stop(PATIENCE) == 0
    assert (facts(stage).approvals, facts(stage).leased, attempts(stage)) == (2, 0, [1, 1])
    assert scalar(stage, "SELECT count(*) FROM setbacks") == 0
    assert calls(stage) == 2


@pytest.mark.timeout(400)  # eight workers start
def test_a_rolling_restart_under_load_loses_and_repeats_nothing(fleet: LocalFleet, postgres_stage: Stage) -> None:
    """Four workers are replaced one after the other while reviews and sends are under way: each is made exactly once."""
    stage = postgres_stage
    fleet.settings |= {**LONG, "CONCURRENT_CALLS": "4", "WORKER_THREADS": "4", "GRACE_PERIOD_SECONDS": "60"}
    stage.control({"provider": {"delay_seconds": 0.3}, "cms": {"answer_delay_seconds": 0.2}})
    old = [fleet.start_worker(f"old{number}") for number in range(4)]
    fleet.start_beat()
    for worker in old:
        ready(worker)
    sent = 0

    def load(events: int) -> None:
        nonlocal sent
        for _ in range(events):
            submit(stage, f"event-{sent}", LOCALES)
            sent += 1

    load(4)
    for number, worker in enumerate(old):
        before = calls(stage)
        load(3)
        wait_for(lambda least=before: calls(stage) > least, worker, "calls", PATIENCE)  # type: ignore[misc]
        assert worker.stop(PATIENCE) == 0
        fleet.children.remove(worker)
        fleet.start_worker(f"new{number}")
    until(lambda: facts(stage).delivered == sent, fleet, "the deliveries", PATIENCE)
    assert (facts(stage).approvals, facts(stage).deliveries, facts(stage).leased) == (sent * len(LOCALES), sent, 0)
    assert (calls(stage), set(attempts(stage))) == (sent * len(LOCALES), {1})
    assert [posts for _, posts in published(stage)] == [1] * sent
    assert scalar(stage, "SELECT count(*) FROM setbacks WHERE outcome <> 'released'") == 0
    assert is_delivered(stage)
    assert announced(stage) == 4


LOCALES = ["de", "fr", "it", "pl", "sv"]


def _rows(stage: Stage, statement: str) -> list[tuple[object, ...]]:
    with stage.engine.connect() as conn:
        return [tuple(row) for row in conn.execute(text(statement))]
