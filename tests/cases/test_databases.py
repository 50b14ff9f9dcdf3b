"""Field cases of databases (F), on a real PostgreSQL under real workers."""

from __future__ import annotations

import random
from collections import Counter

from sqlalchemy import text
from sqlalchemy.engine import make_url

from tests.cases.scenes import running
from tests.system.facts import DONE, attempts, facts, is_delivered, published, started, until
from worker.cli.local_fleet import LocalFleet, _celery, wait_for
from worker.cli.local_stage import Stage

OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def test_95_forked_children_have_connections_of_their_own(
    fleet: LocalFleet, postgres_stage: Stage, signed: str
) -> None:
    """Under the prefork pool the parent has used the database before it forks; the children still make their own."""
    stage = postgres_stage
    options = ["--pool", "prefork", "--concurrency", "3", "--without-gossip", "--without-mingle"]
    worker = fleet.start("worker", [*_celery(), "worker", *options])
    fleet.wait_for_worker(worker)
    fleet.start_beat()
    stage.submit(signed)
    wait_for(lambda: is_delivered(stage), worker, "the delivery")
    assert (facts(stage), attempts(stage)) == (DONE, [1] * 27)
    assert [posts for _, posts in published(stage)] == [1]
    log = worker.log_text()
    assert not [
        word for word in ("database.unavailable", "database.busy", "task.failed", "SSL", "protocol") if word in log
    ]


def test_97_no_transaction_is_open_during_a_call(fleet: LocalFleet, postgres_stage: Stage, signed: str) -> None:
    """27 calls are open under a pool of 3 connections: no sample shows one idle in a transaction, or a fourth."""
    stage = postgres_stage
    name = make_url(fleet.settings["DATABASE_URL"]).database
    stage.control({"provider": {"hold": True}})
    worker = started(fleet, WORKER_THREADS="2", DATABASE_POOL_SIZE="3")
    stage.submit(signed)
    wait_for(lambda: running(stage) == 27, worker, "the calls")
    stage.engine.dispose()  # our own connections do not count
    seen: Counter[str] = Counter()
    with stage.engine.connect() as conn:
        assert conn.execute(text("SELECT current_database()")).scalar_one() == name
        for _ in range(50):
            states = [row[0] for row in conn.execute(text(f"SELECT state {OTHERS}"))]
            assert len(states) <= 3
            seen.update(states)
            stage.control()  # takes its time
    assert running(stage) == 27
    assert set(seen) <= {"idle"}
    stage.control({"provider": {}})
    wait_for(lambda: is_delivered(stage), worker, "the delivery")
    assert (facts(stage), attempts(stage)) == (DONE, [1] * 27)


def test_99_a_lost_connection_costs_one_try_at_most(fleet: LocalFleet, postgres_stage: Stage, signed: str) -> None:
    """All connections of two workers are terminated ten times under load; both processes go on, nothing is done twice."""
    stage = postgres_stage
    fleet.settings |= {"CONCURRENT_CALLS": "3"}
    stage.control({"provider": {"delay_seconds": 0.2}})
    workers = [started(fleet, "first"), started(fleet, "second")]
    fleet.start_beat()
    stage.submit(signed)
    wait_for(lambda: len(attempts(stage)) == 27, workers[0], "the intake")
    chance = random.Random(99)
    for least in sorted(chance.choices(range(27), k=10)):
        wait_for(lambda least=least: facts(stage).approvals >= least, workers[0], "more approvals")
        with stage.engine.connect() as conn:
            conn.execute(text(f"SELECT pg_terminate_backend(pid) {OTHERS}"))
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert facts(stage) == DONE
    assert max(attempts(stage)) <= 2
    assert [posts for _, posts in published(stage)] == [1]
    assert all(worker.is_running() for worker in workers)
    assert not [worker.name for worker in workers if "PendingRollback" in worker.log_text()]
