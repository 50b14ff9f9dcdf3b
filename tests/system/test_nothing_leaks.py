"""No text, receipt or key gets out: not into Redis after intake, a log, a task event, `inspect` or a broken message."""

from __future__ import annotations

import json
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from celery import Celery
from kombu import Connection
from sqlalchemy import text

from tests.builders import change_event, results_for, submission
from tests.system.facts import facts, is_delivered
from worker.cli.demo_event import SITE_ID
from worker.cli.local_fleet import LocalFleet, _celery, wait_for
from worker.cli.local_stage import Stage
from worker.domain.key import PURPOSES

MARKER = "CANARY"
LOCALES = ["de", "fr-CA", "ja", "pt-BR", "sv"]


class Events:
    """Everything that workers say in task and worker events, until stopped."""

    def __init__(self, url: str) -> None:
        self.seen: list[dict[str, Any]] = []
        self._ready = threading.Event()
        self._connection = Connection(url)
        receiver = Celery(broker=url, set_as_current=False).events.Receiver(
            self._connection, handlers={"*": self.seen.append}
        )
        receiver.on_consume_ready = lambda *_args, **_options: self._ready.set()
        self._receiver = receiver
        self._thread = threading.Thread(target=receiver.capture, kwargs={"wakeup": False}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(10)
        self._connection.release()


def produce(url: str, task: str, queue: str, fields: dict[str, object]) -> None:
    """Send a message as a careless foreign producer does: with representations and names that hold the content."""
    task_id = str(uuid.uuid4())
    leak = {
        "argsrepr": f"('{MARKER} args',)",
        "kwargsrepr": f"{{'x': '{MARKER} kwargs'}}",
        "shadow": f"{MARKER} shadow",
    }
    headers = {"lang": "py", "task": task, "id": task_id, "root_id": task_id, "origin": f"{MARKER}@host", **leak}
    with Connection(url) as connection:
        connection.Producer().publish(
            [[], fields, {}], exchange="", routing_key=queue, serializer="json", headers=headers, correlation_id=task_id
        )


@pytest.fixture
def marked(sqlite_stage: Stage) -> str:
    """A signed submission whose source and every target hold the marker."""
    event = change_event(site_id=SITE_ID, event_id="event-leak", source_text=f"{MARKER} source", target_locales=LOCALES)
    results = [
        result for locale in LOCALES for result in results_for(event, locales=[locale], candidate=f"{MARKER} {locale}")
    ]
    return sqlite_stage.sign(submission(event, results))


def test_nothing_leaks_from_a_whole_run(fleet: LocalFleet, sqlite_stage: Stage, marked: str) -> None:
    """Good, bad and broken messages through a worker at DEBUG: markers, receipts and keys are nowhere to be seen."""
    stage, url = sqlite_stage, fleet.broker_url()
    stage.control({"provider": {"delay_seconds": 6.0}})
    worker = fleet.start_worker(settings={"LOG_LEVEL": "DEBUG"})
    fleet.start_beat()
    fleet.wait_for_worker(worker)
    with Events(url) as events:
        produce(url, "release.submit", "intake", {"version": 1, "submission": marked})
        produce(
            url, "release.submit", "intake", {"version": 1, "submission": marked.replace(MARKER, f"{MARKER} changed")}
        )
        produce(url, "release.submit", "intake", {"version": 1, "submission": {"text": MARKER}})
        produce(url, "release.submit", "intake", {"version": 1, "submission": MARKER, f"{MARKER} field": 1})
        produce(url, "release.withdraw", "intake", {"version": 1, "withdrawal": f"{MARKER} withdrawal"})
        produce(url, f"{MARKER}.task", "intake", {"version": 1, "text": MARKER})
        produce(url, "evidence.collect", "evidence", {"version": 1, "event_id": f"{MARKER} event"})
        wait_for(lambda: facts(stage).leased == len(LOCALES), worker, "the leases")
        looked = "".join(inspected(fleet, command) for command in ("active", "reserved", "stats", "conf"))
        wait_for(lambda: is_delivered(stage), worker, "the delivery")
        wait_for(lambda: facts(stage).rejections == 5, worker, "the rejections")
        wait_for(lambda: fleet.broker_client().hlen("unacked") == 0, worker, "the acknowledgements")
        stored = "\n".join(everything_in(fleet))
    surfaces = {
        "redis": stored,
        "events": json.dumps(events.seen),
        "inspect": looked,
        **{f"log of {child.name}": child.log_text() for child in fleet.children},
    }
    found = [(name, secret[:20]) for name, seen in surfaces.items() for secret in secrets(stage) if secret in seen]
    assert found == []
    assert "document_sha256=" in surfaces["events"]
    assert "evidence.collect" in looked
    assert '"task.done"' in surfaces["log of worker"]


def secrets(stage: Stage) -> list[str]:
    """Return what must be nowhere: the marker, every receipt and its signature, private keys, the password."""
    with stage.engine.connect() as conn:
        receipts = [str(row[0]) for row in conn.execute(text("SELECT receipt FROM receipts"))]
    assert len(receipts) == len(LOCALES)
    keys = [json.loads(path.read_text())["d"] for path in stage.fleet.directory.rglob("private/*.jwk")]
    assert len(keys) == len(PURPOSES)  # one of each: three of ours, five of the sandbox's
    password = (stage.fleet.directory / "broker" / "password").read_text()
    return [MARKER, *receipts, *(receipt.rpartition(".")[2] for receipt in receipts), *keys, password]


def inspected(fleet: LocalFleet, command: str) -> str:
    """Return what `celery inspect` shows of the running worker."""
    found = subprocess.run(
        [*_celery(), "inspect", "--json", "--timeout", "1", command],
        env=fleet.environment(),
        cwd=fleet.directory,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return found.stdout + found.stderr


def everything_in(fleet: LocalFleet) -> Iterator[str]:
    """Yield every key and value that Redis holds."""
    broker: Any = fleet.broker_client(decode_responses=True)
    readers = {
        "string": broker.get,
        "list": lambda key: broker.lrange(key, 0, -1),
        "set": broker.smembers,
        "hash": broker.hgetall,
        "zset": lambda key: broker.zrange(key, 0, -1),
    }
    for key in broker.scan_iter():
        yield f"{key} {readers[broker.type(key)](key)}"


def test_a_broken_configuration_is_refused_without_its_values(tmp_path: Path) -> None:
    """A worker with settings that cannot be used ends at once, names the setting, and repeats none of its value."""
    with LocalFleet(directory=tmp_path / "fleet") as fleet:
        fleet.settings |= {
            "BROKER_URL": f"redis+cluster://:{MARKER}@127.0.0.1:1/0",
            "PROVIDERS": f'{{"default": "{MARKER}"}}',
        }
        worker = fleet.start_worker()
        assert worker.process.wait(timeout=30) != 0
        log = worker.log_text()
    assert "LOCSEAL_BROKER_URL: names a Redis Cluster" in log
    assert MARKER not in log
