"""The Celery app and the services of this process; no logic. Importing it reads no configuration and opens nothing.

`celery -A worker.app worker` and `celery -A worker.app beat` find it. Settings are read when Celery first asks for
its configuration; the services are built when the first task asks for them, once per process, and never cross a fork.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import structlog
from celery import Celery, signals

from config.logs import set_up
from config.settings import SettingsError, load_settings
from worker.adapters.inbox import use_careful_transport
from worker.adapters.queue import CeleryQueue
from worker.adapters.ticker import Ticker
from worker.bootstrap import Plant, build_plant
from worker.diagnosis import say_symptoms
from worker.domain.errors import Blocked
from worker.domain.identifier import is_token
from worker.flow.keep_measures import keep_measures
from worker.flow.services import Services

app = Celery("locseal", set_as_current=True)
app.config_from_object("config.celeryconfig")
use_careful_transport()
queue = CeleryQueue(app)

log = structlog.get_logger(__name__)

draining = threading.Event()  # set once the process was asked to stop; what waits in a slot ends at once

_lock = threading.Lock()
_plant: Plant | None = None
_measuring: Ticker | None = None


def worker_id() -> str:
    """Return the id of this process incarnation: host, pid and a random part, so that no restart inherits a lease."""
    host = "".join(c for c in socket.gethostname() if is_token(c))[:100] or "host"
    return f"{host}.{os.getpid()}.{secrets.token_hex(6)}"


def services() -> Services:
    """Return the services of this process, building them on first use; raise `Unavailable` when that fails.

    Safe to call from any thread. A child of a fork builds its own.
    """
    return plant().services


def intake_pauses() -> Iterator[float]:
    """Yield the growing pauses, in seconds, for which intake waits out a fault in its slot; bounded in their sum."""
    chosen = load_settings()
    pause, left = chosen.intake_pause_seconds, chosen.intake_wait_seconds
    while left > 0:
        yield min(pause, left)
        left -= pause
        pause = min(2 * pause, chosen.intake_pause_max_seconds)


def plant() -> Plant:
    """Return what this process runs on; see `services`."""
    global _plant
    with _lock:
        if _plant is None or _plant.pid != os.getpid():
            _plant = build_plant(load_settings(), worker_id=worker_id(), queue=queue, draining=draining.is_set)
        return _plant


@signals.setup_logging.connect
def _set_up_logging(**_: Any) -> None:
    chosen = load_settings()
    set_up(chosen.log_level, chosen.log_format)  # instead of Celery's own, which prints exceptions


@signals.worker_init.connect
def _refuse_to_start(**_: Any) -> None:
    """Stop before anything is taken from a queue if this process could not work: SystemExit passes Celery's signals."""
    try:
        _set_up_logging()  # Celery does it only after this signal
        plant().check()
    except (Blocked, SettingsError) as refusal:
        if isinstance(refusal, Blocked) and refusal.retryable:
            log.warning("worker.start.waiting", code=refusal.code)  # a database that is away comes back
            return
        raise SystemExit(f"locseal: {refusal}") from None


def _place(url: str) -> str:
    """Return host, port and name of a URL: nothing of its user, password or query."""
    parts = urlsplit(url)
    path = parts.path.replace("//", "/", 1)  # SQLite's four slashes
    return f"{parts.netloc.rpartition('@')[2]}{path}"


@signals.worker_ready.connect
def _say_what_is_in_force(sender: Any = None, **_: Any) -> None:
    conf = app.conf
    log.info(
        "worker.started",
        queues=sorted(conf_queue.name for conf_queue in sender.task_consumer.queues),
        pool=str(conf.worker_pool),
        concurrency=conf.worker_concurrency,
        acks_late=sorted(name for name, task in app.tasks.items() if task.acks_late),
        prefetch_multiplier=conf.worker_prefetch_multiplier,
        disable_prefetch=conf.worker_disable_prefetch,
        visibility_timeout_seconds=conf.broker_transport_options["visibility_timeout"],
        soft_shutdown_seconds=conf.worker_soft_shutdown_timeout,
        # What "database.unavailable" and a lost wake are about; later lines carry the code alone.
        broker=[_place(one) for one in load_settings().broker().split(";")],
        database=_place(load_settings().database()),
    )

    say_symptoms(load_settings())


@signals.worker_shutting_down.connect
def _drain(**_: Any) -> None:
    draining.set()


@signals.worker_ready.connect
def _begin_to_measure(**_: Any) -> None:
    global _measuring
    seconds = load_settings().measure_interval_seconds
    _measuring = Ticker("measures", lambda: keep_measures(services()), seconds=seconds)
    _measuring.start()


@signals.worker_shutdown.connect
def _close(**_: Any) -> None:
    global _plant, _measuring
    if _measuring is not None:
        _measuring.stop()
        _measuring = None
    with _lock:
        if _plant is not None and _plant.pid == os.getpid():
            _plant.close()
        _plant = None
