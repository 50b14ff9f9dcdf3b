"""The only sender of messages: by name, JSON, keyword arguments. Nothing else in the product may publish.

A wake that Redis does not take is lost on purpose; the sweeper makes it good. So a sender never retries and never
waits longer than one connection and one answer (settings `broker_*_timeout_seconds`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from celery import Celery

from worker.domain.errors import Unavailable
from worker.domain.messages import EVIDENCE_COLLECT, VERSION, WIRE, represent

log = structlog.get_logger(__name__)

QUIET_SECONDS: Final = 5.0
ENOUGH_COLLECTORS: Final = 16  # waiting wakes for due evidence: no process is idle while so many wait


class CeleryQueue:
    """Sends through the app's connection pool. Safe to share between threads."""

    def __init__(self, app: Celery, *, ticks: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._ticks = ticks
        self._quiet_until = 0.0  # a frozen Redis must cost a collector one wait, not one for each event it readies

    def wake(self, message: str, **ids: str) -> bool:
        """Send one message of ids and return whether the broker took it. Never raises.

        After a lost wake the next few seconds' are dropped at once: the sweeper sends them again anyway. One for due
        evidence is spared where enough wait already: whoever takes one of those looks for whatever is due then.
        """
        if self._ticks() < self._quiet_until:
            return False
        try:
            if message != EVIDENCE_COLLECT or self._waiting(message) < ENOUGH_COLLECTORS:
                self._send(message, ids)
        except Exception as error:  # the border to the broker: whatever went wrong, the row stays due
            self._quiet_until = self._ticks() + QUIET_SECONDS
            log.warning("wake.lost", wake=message, error=type(error).__name__)
            return False
        return True

    def room(self, most: int, *messages: str) -> int:
        """Return how many of `most` more messages the longest queue of these messages has room for.

        0 when Redis does not answer: nothing should be sent to it now. Never raises.
        """
        try:
            with self._app.connection_or_acquire() as connection:
                channel = connection.default_channel
                longest = max(_length(channel, WIRE[message][0]) for message in messages)
        except Exception as error:  # the border to the broker
            log.warning("queue.unreadable", error=type(error).__name__)
            return 0
        return max(0, most - longest)

    def depths(self) -> dict[str, int]:
        """Return how many messages wait in each queue; raise `Unavailable("queue.unavailable")`."""
        try:
            with self._app.connection_or_acquire() as connection:
                channel = connection.default_channel
                return {queue: _length(channel, queue) for queue in sorted({queue for queue, _ in WIRE.values()})}
        except Exception as error:  # the border to the broker
            raise Unavailable("queue.unavailable", f"Redis does not answer ({type(error).__name__})") from None

    def holds(self, queue: str) -> bool:
        """Tell whether messages lie in a queue that nobody has taken; false when Redis does not say. Never raises."""
        try:
            with self._app.connection_or_acquire() as connection:
                return _length(connection.default_channel, queue) > 0
        except Exception as error:  # the border to the broker
            log.warning("queue.unreadable", error=type(error).__name__)
            return False

    def ping(self) -> None:
        """Ask the broker for a sign of life; raise `Unavailable("queue.unavailable")` when it gives none."""
        try:
            with self._app.connection_or_acquire() as connection:
                connection.default_channel.client.ping()
        except Exception as error:  # the border to the broker
            raise Unavailable("queue.unavailable", f"Redis did not answer ({type(error).__name__})") from None

    def submit(self, message: str, field: str, text: str) -> None:
        """Send a document for intake; raise `Unavailable("queue.unavailable")` when the broker did not take it."""
        try:
            self._send(message, {field: text})
        except Exception as error:
            raise Unavailable("queue.unavailable", f"Redis did not take the message ({type(error).__name__})") from None

    def _waiting(self, message: str) -> int:
        """Return how many messages wait in the queue of this one."""
        with self._app.connection_or_acquire() as connection:
            return _length(connection.default_channel, WIRE[message][0])

    def _send(self, message: str, fields: dict[str, str]) -> None:
        queue, names = WIRE[message]
        if tuple(fields) != names:
            raise ValueError("arguments of a message must be those of the wire, in its order")
        self._app.send_task(
            message,
            kwargs={"version": VERSION, **fields},
            queue=queue,
            retry=False,
            ignore_result=True,
            add_to_parent=False,
            argsrepr="",
            kwargsrepr=represent(message, fields),
        )


def _length(channel: Any, queue: str) -> int:
    try:
        return int(channel.queue_declare(queue=queue, passive=True).message_count)
    except channel.connection.client.channel_errors:
        return 0  # Redis has no key for an empty list


def open_queue(broker_url: str | None = None) -> CeleryQueue:
    """Return a queue for a process that is no worker (the commands): an app of its own, configured like the fleet's.

    Reads no configuration and opens nothing before the first message. With `broker_url` (a secret) it sends there and
    reads no configuration at all.
    """
    app = Celery("locseal-sender", set_as_current=False)
    if broker_url is None:
        app.config_from_object("config.celeryconfig")
    else:
        # Celery prefers $CELERY_BROKER_URL to `broker_url`; the write URL is not overruled by it.
        app.config_from_object(
            {"broker_write_url": broker_url, "broker_transport_options": {"socket_timeout": 4, "max_retries": 1}}
        )
    return CeleryQueue(app)
