"""Whatever somebody puts into a queue: the worker goes on, the next message runs, nothing of the content is logged."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from kombu import Connection

from tests.system.facts import facts
from tests.system.queue_entries import ENTRIES
from worker.cli.local_fleet import LocalFleet, wait_for
from worker.cli.local_stage import Stage


@pytest.mark.parametrize(("queue", "task"), [("intake", "release.submit"), ("evidence", "evidence.collect")])
def test_no_entry_stops_a_worker(fleet: LocalFleet, sqlite_stage: Stage, queue: str, task: str) -> None:
    """Each bad entry is dropped or recorded, in the same process, without a lease; the next message is taken."""
    stage = sqlite_stage
    worker = fleet.start_worker()
    fleet.wait_for_worker(worker)
    broker = fleet.broker_client()
    for number, raw in enumerate(ENTRIES.values()):
        broker.lpush(queue, raw.replace("REPLACE_TASK", task).replace("REPLACE_QUEUE", queue))
        stage.submit(f"not a document {number}")  # a normal message behind it; it leaves one rejection
        wait_for(lambda expected=number: submitted_rejections(stage) == expected + 1, worker, "the next message")
        wait_for(lambda: waiting(broker, queue) == 0, worker, "the queue")
    assert worker.is_running()
    assert facts(stage).leased == 0
    assert recorded(stage, task) == {
        "message.arguments.positional",
        "message.body.invalid",
        "message.content_type.refused",
    }
    log = worker.log_text()
    assert all(marker not in log for marker in ("CANARY", "ev-", "not a document", "Traceback"))
    dropped = [json.loads(line) for line in log.splitlines() if '"queue.entry.' in line or '"message.un' in line]
    assert {line["queue"] for line in dropped} == {queue}


def test_a_producers_priority_loses_nothing(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """Kombu puts messages of other priorities under other keys; a worker takes those too."""
    priorities = (-1, 0, 3, 5, 9, 50)
    with Connection(fleet.broker_url()) as connection:
        for priority in priorities:
            headers = {"lang": "py", "task": "release.submit", "id": f"{priority}"}
            body = [[], {"version": 1, "submission": f"no document {priority}"}, {}]
            connection.Producer().publish(
                body, exchange="", routing_key="intake", serializer="json", headers=headers, priority=priority
            )
    worker = fleet.start_worker()
    wait_for(lambda: submitted_rejections(sqlite_stage) == len(priorities), worker, "the messages")


def submitted_rejections(stage: Stage) -> int:
    return _scalar(stage, "SELECT count(*) FROM rejections WHERE code NOT LIKE 'message.%'")


def recorded(stage: Stage, task: str) -> set[str]:
    from sqlalchemy import text

    with stage.engine.connect() as conn:
        rows = conn.execute(
            text("SELECT code FROM rejections WHERE message = :task AND code LIKE 'message.%'"), {"task": task}
        )
        return {str(row[0]) for row in rows}


def waiting(broker: redis.Redis, queue: str) -> int:
    """Return how many messages of a queue are not taken or not acknowledged."""
    length: Any = broker.llen(queue)
    unacknowledged: Any = broker.hlen("unacked")
    return int(length) + int(unacknowledged)


def _scalar(stage: Stage, statement: str) -> int:
    from sqlalchemy import text

    with stage.engine.connect() as conn:
        return int(conn.execute(text(statement)).scalar_one())
