"""The wire stands in several places that may not import each other: they must say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from celery import Celery
from celery.app.defaults import DEFAULTS
from celery.exceptions import ImproperlyConfigured
from kombu import Queue

from worker.domain.messages import WIRE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app with the shipped configuration, and no environment but its own."""
    monkeypatch.setenv("LOCSEAL_BROKER_URL", "redis://127.0.0.1:1/0")
    app = Celery(set_as_current=False)
    app.config_from_object("config.celeryconfig")
    return app


def test_routes_are_those_of_the_wire(configured: Celery) -> None:
    """Every message of the wire, and no other, has its queue in Celery's routes."""
    routes = {name: route["queue"] for name, route in configured.conf.task_routes.items()}
    assert routes == {name: queue for name, (queue, _) in WIRE.items()}


def test_queues_are_those_of_the_wire(configured: Celery) -> None:
    """A worker consumes exactly the queues of the wire; a message for another queue is an error, not a new queue."""
    queues: tuple[Queue, ...] = configured.conf.task_queues
    assert {queue.name for queue in queues} == {queue for queue, _ in WIRE.values()}
    assert configured.conf.task_create_missing_queues is False


def test_json_is_all_that_travels(configured: Celery) -> None:
    """Nothing but JSON is accepted or sent, and there is no result backend."""
    conf = configured.conf
    assert (conf.accept_content, conf.result_accept_content) == (["json"], ["json"])
    assert {conf.task_serializer, conf.result_serializer, conf.event_serializer} == {"json"}
    assert (conf.result_backend, conf.task_ignore_result) == (None, True)


def test_one_message_in_hand_and_early_acknowledgement(configured: Celery) -> None:
    """Threads, one message for each slot, acknowledged on receipt unless a task says otherwise; events on."""
    conf = configured.conf
    assert conf.worker_pool == "threads"
    assert (conf.worker_prefetch_multiplier, conf.worker_disable_prefetch) == (1, True)
    assert (conf.task_acks_late, conf.worker_send_task_events, conf.task_send_sent_event) == (False, True, False)
    assert (conf.beat_scheduler, conf.task_publish_retry) == ("celery.beat:Scheduler", False)


def test_every_name_in_the_configuration_is_a_setting_of_celery() -> None:
    """The shipped configuration holds no name that Celery would ignore."""
    import config.celeryconfig as shipped

    assert [name for name in vars(shipped) if name[0] != "_" and name not in DEFAULTS] == []


def test_a_misspelt_setting_stops_the_start() -> None:
    """A name that Celery does not know is refused when the configuration is read."""
    source = (ROOT / "config" / "celeryconfig.py").read_text()
    wrong = source.replace("worker_prefetch_multiplier = 1", "worker_prefetch_multiplyer = 1")
    with pytest.raises(ImproperlyConfigured, match="worker_prefetch_multiplyer"):
        exec(compile(wrong, "celeryconfig", "exec"), {"__name__": "celeryconfig"})  # noqa: S102 - our own file


def test_the_catalogue_is_the_wire() -> None:
    """The table in tasks/README.md lists exactly the messages, queues and arguments of the code, in their order."""
    text = (ROOT / "tasks" / "README.md").read_text()
    rows = re.findall(r"^\| `([a-z.]+)` \| `([a-z]+)` \| (.+?) \|", text, re.MULTILINE)
    listed = [(name, queue, re.findall(r"`([a-z_]+)`", arguments)) for name, queue, arguments in rows]
    assert listed == [(name, queue, ["version", *arguments]) for name, (queue, arguments) in WIRE.items()]
