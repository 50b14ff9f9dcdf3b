"""Field cases of broker delivery and messages (A and B), on real workers and a real Redis."""

from __future__ import annotations

import json
import random
import signal
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.cases.scenes import (
    Pushed,
    calls,
    consumers,
    cpu_seconds,
    lines,
    locales,
    running,
    scalar,
    submit,
    waiting,
)
from tests.system.facts import DONE, attempts, facts, is_delivered, published, started, until
from worker.cli.demo_event import EVENT_ID
from worker.cli.local_fleet import LocalFleet, free_port, wait_for
from worker.cli.local_stage import Stage

COLLECT = "evidence.collect"
ENTRIES = json.loads((Path(__file__).parent / "inputs" / "queue_messages.json").read_text())["items"]


def test_1_a_second_copy_of_a_message_finds_the_lease_held(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """While 27 calls are open no message is left to be redelivered; 54 copies begin no call and add no attempt."""
    stage = sqlite_stage
    fleet.settings |= {"VISIBILITY_TIMEOUT_SECONDS": "5", "INTAKE_WAIT_SECONDS": "1"}
    stage.control({"provider": {"hold": True}})
    first, second = started(fleet, "first"), started(fleet, "second")
    stage.submit(signed)
    wait_for(lambda: running(stage) == 27, first, "the calls")
    broker = fleet.broker_client()
    wait_for(lambda: broker.hlen("unacked") == 0, first, "the acknowledgements")  # so a visibility timeout has no prey
    with Pushed(fleet) as pushed:
        for _ in range(54):
            assert stage.queue.wake(COLLECT, event_id=EVENT_ID)
        wait_for(lambda: waiting(fleet, "evidence") == 0 and broker.hlen("unacked") == 0, second, "the copies")
        assert (calls(stage), attempts(stage)) == (27, [1] * 27)
        stage.control({"provider": {}})
        wait_for(lambda: is_delivered(stage), first, "the delivery")
    assert sum(queue == "evidence" for queue, _ in pushed.entries) == 54  # none was put back
    assert (facts(stage), calls(stage), attempts(stage)) == (DONE, 27, [1] * 27)


def test_3_25_27_a_retry_is_one_claim_at_its_time(fleet: LocalFleet, postgres_stage: Stage, signed: str) -> None:
    """27 rows wait for a retry (5 to 7.5 s, where the case says 130) under two workers and two beats.

    Each is claimed once when due, calls equal attempts, and no message has an ETA, an expiry or a priority of its own.
    """
    stage = postgres_stage
    stage.control({"provider": {"fail_times": 27}})
    workers = [started(fleet, name) for name in ("first", "second")]
    for name in ("beat1", "beat2"):
        fleet.start_beat(name)
    with Pushed(fleet) as pushed:
        stage.submit(signed)
        wait_for(lambda: is_delivered(stage), workers[0], "the delivery")
    assert facts(stage) == DONE
    assert attempts(stage) == [2] * 27
    assert calls(stage) == sum(attempts(stage)) == 54
    assert {queue for queue, _ in pushed.entries} == {"intake", "evidence", "delivery", "sweep"}
    for _, entry in pushed.entries:
        assert (entry["headers"].get("eta"), entry["headers"].get("expires")) == (None, None)
        assert (entry["properties"]["priority"], entry["content-type"]) == (0, "application/json")


def test_7_lost_claims_put_nothing_back(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """300 messages for rows that a killed worker still leases: each is run once, and the wait costs no processor."""
    stage = sqlite_stage
    fleet.settings["LOG_LEVEL"] = "DEBUG"
    stage.control({"provider": {"hold": True}})
    dead = started(fleet, "dead")
    stage.submit(signed)
    wait_for(lambda: running(stage) == 27, dead, "the calls")
    dead.kill()
    fleet.children.remove(dead)
    let_leases_end_in(stage, 100)  # the messages below may take their time
    for _ in range(300):
        stage.queue._send(COLLECT, {"event_id": EVENT_ID})  # a wake would be spared where enough wait
    stage.control({"provider": {}})
    with Pushed(fleet) as pushed:
        worker = started(fleet)
        wait_for(lambda: waiting(fleet, "evidence") == 0, worker, "the messages")

        def runs() -> int:
            return sum(line["task"] == COLLECT for line in lines(worker, "task.done"))

        wait_for(lambda: runs() == 300, worker, "the runs")
        assert facts(stage).leased == 27
        assert pushed.entries == []
        let_leases_end_in(stage, 5)
        fleet.start_beat()
        used = cpu_seconds(worker)
        wait_for(lambda: facts(stage).leased < 27, worker, "the end of the leases")
        assert cpu_seconds(worker) - used < 0.2 * 5
    wait_for(lambda: is_delivered(stage), worker, "the delivery")
    assert (facts(stage), attempts(stage)) == (DONE, [2] * 27)


def let_leases_end_in(stage: Stage, seconds: int) -> None:
    with stage.engine.begin() as conn:
        now = "(julianday('now') - 2440587.5) * 86400.0"
        conn.execute(text(f"UPDATE evidence SET lease_expires_at = {now} + {seconds}"))


def test_11_a_stuck_worker_holds_back_no_message(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """A's only slot hangs in a call of 60 s; B does the 26 other locales, though A was first and 20 messages wait."""
    stage = sqlite_stage
    fleet.settings |= {"PROVIDER_DEADLINE_SECONDS": "60", "EVIDENCE_LEASE_SECONDS": "80"}
    stage.control({"provider": {"delay_seconds": 60}})
    stuck = started(fleet, "stuck", WORKER_THREADS="1", CONCURRENT_CALLS="1")
    stage.submit(signed)
    wait_for(lambda: running(stage) == 1, stuck, "the one call")
    stage.control({"provider": {}})  # of the calls to come
    for _ in range(20):
        assert stage.queue.wake(COLLECT, event_id=EVENT_ID)
    free = started(fleet, "free")
    wait_for(lambda: facts(stage).approvals == 26, free, "the approvals", 15)
    assert (waiting(fleet, "evidence"), facts(stage).leased, running(stage)) == (0, 1, 1)
    stuck.kill()


def test_13_every_worker_consumes_again_after_redis_restarts(
    fleet: LocalFleet, sqlite_stage: Stage, signed: str
) -> None:
    """Redis is killed twice without work and once with a late-ack message in hand: no worker ends or falls silent."""
    stage = sqlite_stage
    workers = [started(fleet, "first"), started(fleet, "second")]
    wait_for(lambda: consumers(fleet) == 2, None, "the consumers")
    with stage.engine.begin() as conn:
        conn.execute(text("ALTER TABLE sources RENAME TO sources_away"))  # what intake needs
    for turn in range(3):
        if turn == 2:
            stage.submit(signed)
            wait_for(lambda: "intake.waiting" in _logs(fleet), None, "the wait of intake")
        broker = next(child for child in fleet.children if child.name == "broker")
        broker.send(signal.SIGKILL)
        broker.process.wait(timeout=10)
        until(lambda: consumers(fleet) == 2, fleet, "both workers at Redis", 30)
    with stage.engine.begin() as conn:
        conn.execute(text("ALTER TABLE sources_away RENAME TO sources"))
    stage.submit(signed)  # a producer repeats it until it is seen
    fleet.start_beat()
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert (facts(stage), attempts(stage)) == (DONE, [1] * 27)
    assert [posts for _, posts in published(stage)] == [1]
    assert all(worker.is_running() for worker in workers)
    assert "Unrecoverable" not in _logs(fleet)


def _logs(fleet: LocalFleet) -> str:
    return "".join(child.log_text() for child in fleet.children)


def test_15_redis_becomes_a_read_only_replica(
    fleet: LocalFleet, sqlite_stage: Stage, signed: str, broker_program: Path
) -> None:
    """Redis follows another for as long as the calls last, then leads again: nothing is lost, and the log stays short."""
    stage = sqlite_stage
    stage.control({"provider": {"delay_seconds": 2.0}})
    worker = started(fleet)
    fleet.start_beat()
    port = free_port()
    other = [broker_program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", fleet.directory]
    fleet.start("primary", [str(part) for part in other])
    stage.submit(signed)
    wait_for(lambda: facts(stage).leased == 27, worker, "the leases")
    fleet.broker_client().execute_command("REPLICAOF", "127.0.0.1", port)
    until(lambda: facts(stage).approvals == 27, fleet, "the approvals without Redis")
    until(lambda: "broker.read_only" in worker.log_text(), fleet, "the word for it")
    fleet.broker_client().execute_command("REPLICAOF", "NO", "ONE")
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert (facts(stage), attempts(stage)) == (DONE, [1] * 27)
    assert [posts for _, posts in published(stage)] == [1]
    moments = [datetime.fromisoformat(line["at"]).timestamp() for line in lines(worker, "broker.read_only")]
    assert all(later - earlier > 0.9 for earlier, later in pairwise(moments))
    assert "read only replica" not in worker.log_text()  # kombu's line, once for each try


def test_17_31_200_locales_while_redis_is_emptied_at_random(fleet: LocalFleet, stage: Stage) -> None:
    """200 locales under 4 workers, FLUSHALL at 10 random moments (the cases say 20 workers, 20 and 50 rounds).

    One delivery with all 200, one POST, every locale asked once, no result kept in Redis, no `database is locked`.
    """
    wanted = locales(200)
    fleet.settings |= {"CONCURRENT_CALLS": "8"}
    stage.control({"provider": {"delay_seconds": 0.1}})
    workers = [started(fleet, f"worker{number}") for number in range(4)]
    fleet.start_beat()
    submit(stage, "whole", wanted)
    wait_for(lambda: len(attempts(stage)) == 200, workers[0], "the intake")
    chance = random.Random(17)
    broker = fleet.broker_client()
    for least in sorted(chance.sample(range(201), 9)):
        wait_for(lambda least=least: facts(stage).approvals >= least, workers[0], "more approvals", 60)
        broker.flushall()
    wait_for(lambda: facts(stage).approvals == 200, workers[0], "the approvals", 60)
    broker.flushall()
    wait_for(lambda: is_delivered(stage), workers[0], "the delivery")
    assert (facts(stage).deliveries, attempts(stage), calls(stage)) == (1, [1] * 200, 200)
    [publication] = stage.control()["publications"]
    assert list(publication["target_sha256"]) == sorted(wanted)
    assert [posts for _, posts in published(stage)] == [1]
    assert [key for key in broker.scan_iter() if b"meta" in key] == []  # case 33
    assert all("database.busy" not in worker.log_text() and worker.is_running() for worker in workers)  # case 101


@pytest.mark.parametrize("queue", ["intake", "evidence"])
def test_21_23_25_entries_of_the_input_file(fleet: LocalFleet, sqlite_stage: Stage, queue: str) -> None:
    """Each entry of the file leaves the worker alive, no lease, and the next message taken."""
    stage, task = sqlite_stage, {"intake": "release.submit", "evidence": COLLECT}[queue]
    worker = started(fleet)
    broker = fleet.broker_client()
    for number, item in enumerate(ENTRIES):
        broker.lpush(queue, item["raw"].replace("REPLACE.with.real.task", task).replace("REPLACE_QUEUE", queue))
        stage.submit(f"not a document {number}")
        wait_for(lambda least=number: refused(stage) > least, worker, f"the message behind {item['name']}")
    wait_for(lambda: waiting(fleet, queue) == 0 and broker.hlen("unacked") == 0, worker, "the queue")
    assert worker.is_running()
    assert (facts(stage).leased, scalar(stage, "SELECT count(*) FROM evidence")) == (0, 0)


def refused(stage: Stage) -> int:
    return int(scalar(stage, "SELECT count(*) FROM rejections WHERE code NOT LIKE 'message.%'"))


def test_33_tasks_leave_nothing_in_redis(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """After 500 tasks (the case says 5,000) Redis has the same keys and the same clients as after 50."""
    worker = started(fleet, LOG_LEVEL="DEBUG")
    broker = fleet.broker_client()

    def run(total: int) -> tuple[list[bytes], int]:
        while sent[0] < total:
            sqlite_stage.queue._send(COLLECT, {"event_id": "no-such-event"})  # a wake is spared where enough wait
            sent[0] += 1
        wait_for(lambda: len(lines(worker, "task.done")) >= total, worker, "the tasks")
        wait_for(lambda: broker.hlen("unacked") == 0, worker, "the acknowledgements")
        found: list[bytes] = sorted(broker.keys("*"))  # type: ignore[type-var]
        return found, len(broker.client_list())  # type: ignore[arg-type]

    sent = [0]
    keys, clients = run(50)
    later_keys, later_clients = run(500)
    assert later_keys == keys
    assert not [key for key in keys if key.startswith(b"celery-task-meta")]
    assert abs(later_clients - clients) <= max(1, clients // 10)
