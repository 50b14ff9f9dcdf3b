"""The one sender against a real Redis that answers, freezes, refuses, or is gone."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry

from worker.adapters.queue import ENOUGH_COLLECTORS, QUIET_SECONDS, CeleryQueue
from worker.cli.local_fleet import LocalFleet
from worker.domain.errors import Unavailable

MOST_SECONDS = 6.0


@pytest.fixture
def sender(fleet: LocalFleet, monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app with the shipped configuration, on a broker of its own."""
    fleet.start_broker()
    monkeypatch.setenv("LOCSEAL_BROKER_URL", fleet.broker_url())
    app = Celery(set_as_current=False)
    app.config_from_object("config.celeryconfig")
    # The configuration module was read for another test's broker before; this app has its own.
    app.conf.broker_url = app.conf.broker_read_url = app.conf.broker_write_url = fleet.broker_url()
    return app


def test_a_wake_is_ids_only(fleet: LocalFleet, sender: Celery) -> None:
    """A wake is one JSON message on its queue: keyword arguments, a version, ids as representation, no ETA."""
    assert CeleryQueue(sender).wake("evidence.collect", event_id="e-1") is True
    broker: Any = fleet.broker_client(decode_responses=True)
    (raw,) = broker.lrange("evidence", 0, -1)
    entry = json.loads(raw)
    headers = entry["headers"]
    assert (entry["content-type"], headers["task"]) == ("application/json", "evidence.collect")
    assert (headers["argsrepr"], headers["kwargsrepr"]) == ("", "event_id='e-1'")
    assert (headers["eta"], headers["expires"], headers["retries"]) == (None, None, 0)
    assert entry["properties"]["priority"] == 0


def test_only_messages_of_the_wire_are_sent(fleet: LocalFleet, sender: Celery) -> None:
    """Another name or other arguments are not sent."""
    for message, ids in (("no.such", {"event_id": "e"}), ("evidence.collect", {}), ("fleet.sweep", {"event_id": "e"})):
        assert CeleryQueue(sender).wake(message, **ids) is False
    broker: Any = fleet.broker_client()
    assert broker.keys("*") == []


def freeze(fleet: LocalFleet) -> None:
    fleet.children[0].send(signal.SIGSTOP)


def pause(fleet: LocalFleet) -> None:
    fleet.broker_client().execute_command("CLIENT", "PAUSE", 60_000, "WRITE")


def kill(fleet: LocalFleet) -> None:
    fleet.children[0].kill()


def fill(fleet: LocalFleet) -> None:
    fleet.broker_client().config_set("maxmemory", "1")


def follow(fleet: LocalFleet) -> None:
    fleet.broker_client().execute_command("REPLICAOF", "127.0.0.1", "1")


@pytest.mark.parametrize(
    ("fault", "is_connected"),
    [(freeze, True), (freeze, False), (pause, True), (kill, True), (kill, False), (fill, True), (follow, True)],
)
def test_a_wake_never_waits_long_and_never_raises(
    fleet: LocalFleet, sender: Celery, fault: Callable[[LocalFleet], None], is_connected: bool
) -> None:
    """Whatever is wrong with Redis, a wake returns False within 6 s, and the next ones at once."""
    ticks = [0.0]
    queue = CeleryQueue(sender, ticks=lambda: ticks[0])
    if is_connected:
        assert queue.wake("evidence.collect", event_id="e-0") is True
    fault(fleet)
    began = time.monotonic()
    assert queue.wake("evidence.collect", event_id="e-1") is False
    assert time.monotonic() - began < MOST_SECONDS
    began = time.monotonic()
    assert [queue.wake("evidence.collect", event_id=f"e-{number}") for number in range(100)] == [False] * 100
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("fault", [freeze, kill, fill])
def test_a_submission_that_redis_does_not_take_says_so(
    fleet: LocalFleet, sender: Celery, fault: Callable[[LocalFleet], None]
) -> None:
    """Whoever submits hears within 6 s that Redis did not take the document, and that trying again may help."""
    fault(fleet)
    began = time.monotonic()
    with pytest.raises(Unavailable) as refusal:
        CeleryQueue(sender).submit("release.submit", "submission", "text")
    assert time.monotonic() - began < MOST_SECONDS
    assert (refusal.value.code, refusal.value.retryable) == ("queue.unavailable", True)


def test_wakes_go_on_when_redis_is_back(fleet: LocalFleet, sender: Celery) -> None:
    """After a fault the sender tries again by itself, a few seconds later at the latest."""
    ticks = [0.0]
    queue = CeleryQueue(sender, ticks=lambda: ticks[0])
    kill(fleet)
    assert queue.wake("evidence.collect", event_id="e-1") is False
    fleet.children.clear()
    fleet.start_broker()
    assert queue.wake("evidence.collect", event_id="e-1") is False
    ticks[0] = QUIET_SECONDS
    assert queue.wake("evidence.collect", event_id="e-1") is True


def test_the_room_of_the_longest_queue(fleet: LocalFleet, sender: Celery) -> None:
    """Room is what the longest of the queues leaves of the most; none when Redis does not answer."""
    queue = CeleryQueue(sender)
    assert queue.room(200, "evidence.collect", "delivery.prepare") == 200
    for number in range(3):
        queue.wake("delivery.prepare", event_id=f"e-{number}")
    queue.wake("evidence.collect", event_id="e-1")
    assert queue.room(200, "evidence.collect", "delivery.prepare") == 197
    assert queue.room(2, "evidence.collect", "delivery.prepare") == 0
    kill(fleet)
    assert queue.room(200, "evidence.collect", "delivery.prepare") == 0


def test_the_broker_wants_its_password(fleet: LocalFleet) -> None:
    """The private broker of a local fleet serves nobody without the password."""
    fleet.start_broker()
    with (
        redis.Redis(port=fleet.broker_port, retry=Retry(NoBackoff(), 0)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_enough_waiting_wakes_for_evidence_say_it_all(sender: Celery) -> None:
    """Where enough wakes for due evidence wait, further ones are spared; other messages are not."""
    queue = CeleryQueue(sender)
    for number in range(ENOUGH_COLLECTORS + 3):
        assert queue.wake("evidence.collect", event_id=f"e-{number}") is True
        assert queue.wake("delivery.publish", event_id=f"e-{number}") is True
    assert queue.depths()["evidence"] == ENOUGH_COLLECTORS
    assert queue.depths()["delivery"] == ENOUGH_COLLECTORS + 3
