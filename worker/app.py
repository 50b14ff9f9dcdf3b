"""The Celery app and the services of this process; no logic. Importing it reads no configuration and opens nothing.

`celery -A worker.app worker` and `celery -A worker.app beat` find it. Settings are read when Celery first asks for
its configuration; the services are built when the first task asks for them, once per process, and never cross a fork.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final
from urllib.parse import urlsplit

import structlog
from celery import Celery, bootsteps, signals
from celery.worker import state

from config.logs import set_up
from config.settings import SettingsError, load_settings
from worker.adapters.inbox import use_careful_transport
from worker.adapters.queue import CeleryQueue
from worker.adapters.ticker import Ticker
from worker.adapters.vitals import LAST_SECONDS, Vitals
from worker.bootstrap import Plant, build_plant
from worker.diagnosis import say_symptoms
from worker.domain.errors import Blocked
from worker.domain.identifier import is_token
from worker.domain.messages import WIRE
from worker.flow.keep_measures import keep_measures
from worker.flow.services import Services
from worker.lifetime import Lifetime

app = Celery("locseal", set_as_current=True)
app.config_from_object("config.celeryconfig")
use_careful_transport()
queue = CeleryQueue(app)

log = structlog.get_logger(__name__)

vitals = Vitals()  # of this worker: shared with the children that its pool forks

CHILD_WAITS_SECONDS: Final = 5.0  # of a signalled child of a pool, for its parent's word that the whole worker ends

_lock = threading.Lock()
_plant: Plant | None = None
_measuring: Ticker | None = None


def worker_id() -> str:
    """Return the id of this process incarnation: host, pid and a random part, so that no restart inherits a lease."""
    host = "".join(c for c in socket.gethostname() if is_token(c))[:100] or "host"
    return f"{host}.{os.getpid()}.{secrets.token_hex(6)}"


def takes(message: str) -> bool:
    """Tell whether this worker takes messages of this name itself: whether their queue is one of those it was given."""
    return WIRE[message][0] in app.amqp.queues.consume_from


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
            _plant = build_plant(load_settings(), worker_id=worker_id(), queue=queue, vitals=vitals)
        return _plant


def _present() -> Plant | None:
    """Return what this process runs on, if it was built already; never waits."""
    found = _plant
    return found if found is not None and found.pid == os.getpid() else None


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
        plant().warm_up()
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

    say_symptoms(load_settings(), [read.name for read in sender.task_consumer.queues])


class Life(bootsteps.StartStopStep):  # type: ignore[misc]
    """Begins what runs beside the work, once Celery's signal handlers stand; and lets the work drain before they act."""

    requires = ("celery.worker.components:Pool",)  # what is forked at the start is forked before there are threads

    def start(self, parent: Any) -> None:
        """Listen to the signals that end a worker, and start to watch."""
        chosen = load_settings()
        for number, seconds in (
            (signal.SIGTERM, chosen.grace_period_seconds),
            (signal.SIGINT, chosen.grace_period_seconds),
            (signal.SIGQUIT, chosen.soft_shutdown_seconds + LAST_SECONDS),  # Celery goes on only when they are over
        ):
            _drain_on(number, seconds)
        kinds = vitals.claimed_at().keys() & set(parent.app.amqp.queues.consume_from)
        Lifetime(
            vitals,
            chosen,
            _present,
            kinds=frozenset(kinds),
            heartbeat=chosen.heartbeat(),
            holds=queue.holds,
            stop=_stop,
        ).start()

    def close(self, parent: Any) -> None:
        """Begin the drain of a worker that ends for another reason than a signal; too late is better than never."""
        del parent
        vitals.begin_drain(seconds=load_settings().grace_period_seconds)


app.steps["worker"].add(Life)


def _drain_on(number: int, seconds: float) -> None:
    """Let a signal begin the drain before Celery's own handler of it runs, which may wait for long."""
    celerys = signal.getsignal(number)

    def drain(number: int, frame: FrameType | None) -> None:
        vitals.begin_drain(seconds=seconds)
        if callable(celerys):
            celerys(number, frame)

    signal.signal(number, drain)


def _stop(exit_code: int) -> None:
    """Ask Celery to end this worker as it does after a signal."""
    state.should_stop = exit_code


@signals.worker_process_init.connect
def _begin_child(**_: Any) -> None:
    """Let a child of a pool drain with its worker. A signal to the whole group, as some supervisors send, spares it."""
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have held it as it forked
    signal.signal(signal.SIGTERM, _end_child)
    Lifetime(vitals, load_settings(), _present).start()


def _end_child(number: int, _frame: FrameType | None) -> None:
    if vitals.wait_for_drain(CHILD_WAITS_SECONDS) and not vitals.is_cut():
        return  # the work is finished first; then the parent ends this child
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


@signals.worker_ready.connect
def _leave_out_what_stays(**_: Any) -> None:
    """Spare the garbage collector all that was loaded by now: looking through it stops the process for 80 ms each time."""
    gc.collect()
    gc.freeze()


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
