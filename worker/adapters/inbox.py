"""How a message enters a worker: no entry of a queue may stop the process, and nothing of its content is shown.

Celery prints a message it does not understand, shows arguments as the producer describes them, and ends on a queue
entry that is no JSON. The classes here are named in `config/celeryconfig.py` and `tasks/border.py` and replace that.
Only names of ours, ids, sizes and digests get out; what a task should reject travels to it as `problem`.
"""

from __future__ import annotations

import hashlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty
from typing import Any

import structlog
from celery.worker.request import Request
from celery.worker.strategy import default as celery_strategy
from kombu.transport import TRANSPORT_ALIASES, redis
from redis.exceptions import ReadOnlyError, RedisError

from worker.adapters.frugal import FrugalChannel, FrugalConsumer
from worker.domain.canonical import parse_strict
from worker.domain.errors import Invalid
from worker.domain.identifier import is_token
from worker.domain.messages import MAX_BODY_BYTES, WIRE, represent
from worker.domain.trace import parse_traceparent

log = structlog.get_logger(__name__)
logger = logging.getLogger(__name__)  # for kombu, which prints a delivery tag and nothing else

REFUSED_PAUSE_SECONDS = 1.0

_GONE = (AttributeError, OSError, RedisError)  # of a connection that was lost under kombu


def raw_body(message: Any) -> bytes:
    """Return the body of a kombu message as the bytes that were sent."""
    body = message.body
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    return bytes(body or b"")


def open_body(message: Any) -> tuple[list[object], dict[str, object]]:
    """Return positional and keyword arguments of a message, or raise `Invalid` with a `message.*` code.

    Callbacks, chains and chords that a producer put into the body are dropped: the fleet has none.
    """
    if message.content_type != "application/json":
        raise Invalid("message.content_type.refused", "send application/json")
    value = parse_strict(raw_body(message), max_bytes=MAX_BODY_BYTES, code="message.body.invalid")
    if isinstance(value, dict):  # protocol 1: the arguments beside the headers
        value = [value.get("args", []), value.get("kwargs", {}), {}]
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[0], list):
        raise Invalid("message.body.invalid", "the body is not that of a task message")
    if not isinstance(value[1], dict):
        raise Invalid("message.body.invalid", "the keyword arguments are no object")
    return value[0], value[1]


def _clean_headers(task_name: str, headers: Mapping[str, Any], fields: Mapping[str, object]) -> dict[str, Any]:
    """Return headers of our own making: no ETA, expiry, shadow name, stamp or representation of a producer's."""
    ids = {name: value if is_token(value := headers.get(name)) else None for name in ("id", "root_id", "parent_id")}
    return {
        "lang": "py",
        "task": task_name,
        "id": ids["id"] or str(uuid.uuid4()),
        "root_id": ids["root_id"],
        "parent_id": ids["parent_id"],
        "retries": 0,
        "eta": None,
        "expires": None,
        "timelimit": [None, None],
        "argsrepr": "",
        "kwargsrepr": represent(task_name, fields),
        "ignore_result": True,
        "traceparent": caller.traceparent() if (caller := parse_traceparent(headers.get("traceparent"))) else None,
    }


class IdRequest(Request):  # type: ignore[misc]
    """A request whose arguments are shown as our ids only, in events, logs and `inspect`."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        # Already decoded: the pool need not parse a large body once more.
        self._body = self._payload
        self._content_type = self._content_encoding = None
        # Attributes of the task's request: what to record if this message has to be rejected.
        self._request_dict.update(problem=getattr(message, "problem", None), received=message)

    def info(self, safe: bool = False) -> dict[str, Any]:
        """Return what `inspect` shows. Celery gives the arguments themselves unless `safe`; we never do."""
        return {**super().info(safe=True), "args": self._argsrepr, "kwargs": self._kwargsrepr}


def careful_strategy(task: Any, app: Any, consumer: Any) -> Callable[..., Any]:
    """Return the handler of one task's messages: Celery's own, behind a door that cleans what comes in."""
    handle = celery_strategy(task, app, consumer)

    def on_message(message: Any, _payload: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        problem: Invalid | None = None
        args: list[object] = []
        fields: dict[str, object] = {}
        try:
            args, fields = open_body(message)
        except Invalid as refusal:
            problem = refusal
        message.headers = _clean_headers(task.name, message.headers or {}, fields)
        message._decoded_cache = (args, fields, {})  # noqa: SLF001 - where kombu keeps the decoded body
        message.problem = problem
        return handle(message, None, ack, reject, callbacks)

    return on_message


class CarefulConsumer(FrugalConsumer):
    """A consumer that drops what it cannot read with one line of facts and none of content."""

    def _drop(self, event: str, message: Any) -> None:
        info = message.delivery_info if isinstance(message.delivery_info, dict) else {}
        queue = info.get("routing_key")
        body = raw_body(message)
        known = {queue for queue, _ in WIRE.values()}
        log.error(
            event,
            queue=queue if queue in known else "other",
            size_bytes=len(body),
            body_sha256=hashlib.sha256(body).hexdigest(),
        )

    def ensure_connected(self, conn: Any) -> Any:
        """Reach Redis, asking every two seconds however long it is away: kombu's own pause grows to half a minute."""
        conn.ensure_connection = partial(conn.ensure_connection, interval_step=0)
        return super().ensure_connected(conn)

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Say that Redis cannot be used and pause: one that is reached and refuses would be asked without end."""
        if isinstance(exc, ReadOnlyError):
            log.error("broker.read_only", pause_seconds=REFUSED_PAUSE_SECONDS)
        else:
            super().on_connection_error_before_connected(exc)
        time.sleep(REFUSED_PAUSE_SECONDS)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Drop a message that is no task message."""
        self._drop("message.unreadable", message)
        message.reject_log_error(logger, self.connection_errors)

    def on_unknown_task(self, body: Any, message: Any, exc: Any) -> None:
        """Drop a message whose name is none of ours."""
        self._drop("message.unknown", message)
        message.reject_log_error(logger, self.connection_errors)

    def on_invalid_task(self, body: Any, message: Any, exc: Any) -> None:
        """Drop a message that Celery itself refuses."""
        self._drop("message.refused", message)
        message.reject_log_error(logger, self.connection_errors)

    def on_decode_error(self, message: Any, exc: Any) -> None:
        """Drop a message without headers whose body cannot be decoded."""
        self._drop("message.undecodable", message)
        message.ack_log_error(logger, self.connection_errors)


def _is_entry(value: object) -> bool:
    """Tell whether a queue entry has the parts that kombu and Celery use without looking, in the types they expect."""
    if not isinstance(value, dict):
        return False
    headers, body, properties = value.get("headers"), value.get("body"), value.get("properties")
    if not isinstance(headers, dict) or not isinstance(body, str) or not isinstance(properties, dict):
        return False
    info = properties.get("delivery_info")
    if not isinstance(info, dict) or not isinstance(properties.get("delivery_tag"), str):
        return False
    return (
        isinstance(headers.get("task", ""), str)
        and isinstance(info.get("exchange"), str)
        and isinstance(info.get("routing_key"), str)
        and properties.get("body_encoding") in (None, "base64", "utf-8")  # a list is in no set
    )


class CarefulQoS(redis.QoS):
    """Keeps the book of late-ack messages in hand, also when their connection is gone.

    kombu reaches for the lost connection then and fails with an AttributeError: the consumer would stop for good, and
    its process would stay as long as a task waits in its slot. What cannot be told to Redis is left to its visibility
    timeout; the message may be handed out again, and an exact repeat is free.
    """

    def restore_unacked(self, client: Any = None) -> None:
        """Put back what is in hand, as far as there is a connection; forget it in any case."""
        try:
            super().restore_unacked(client)  # type: ignore[no-untyped-call]
        except _GONE as error:
            self._left("restore", error)
            self._delivered.clear()

    def ack(self, delivery_tag: str) -> None:
        """Tell Redis that a message is done, as far as there is a connection."""
        try:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]
        except AttributeError as error:
            self._left("acknowledge", error)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put a message back or drop it, as far as there is a connection."""
        try:
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call]
        except AttributeError as error:
            self._left("reject", error)

    def _left(self, step: str, error: Exception) -> None:
        log.warning("queue.message.left", step=step, error=type(error).__name__)


class CarefulChannel(FrugalChannel):
    """A channel that steps over a queue entry that is no JSON. kombu has taken it off the queue by then."""

    QoS = CarefulQoS

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except (ValueError, RecursionError):
            order = getattr(self._queue_cycle, "items", None)  # the queue it came from was moved to the end just now
            log.error("queue.entry.unreadable", queue=order[-1] if order else "")
            raise Empty from None

    def _get(self, queue: str, timeout: Any = None) -> Any:
        try:
            return super()._get(queue)  # type: ignore[no-untyped-call]
        except (ValueError, RecursionError):
            log.error("queue.entry.unreadable", queue=queue)
            raise Empty from None


class CarefulTransport(redis.Transport):
    """Redis, where an entry of the wrong shape is dropped instead of ending the process."""

    Channel = CarefulChannel

    def _deliver(self, message: Any, queue: str) -> None:
        if not _is_entry(message):
            log.error("queue.entry.malformed", queue=queue)
            return
        try:
            super()._deliver(message, queue)  # type: ignore[no-untyped-call]
        except ValueError:  # a body that is no base64 or no UTF-8
            log.error("queue.entry.malformed", queue=queue)


class CarefulSentinelChannel(CarefulChannel, redis.SentinelChannel):
    """The same on the Redis that Sentinels name."""


class CarefulSentinelTransport(CarefulTransport, redis.SentinelTransport):
    """The same behind Sentinels."""

    Channel = CarefulSentinelChannel


def use_careful_transport() -> None:
    """Let `redis://`, `rediss://` and `sentinel://` mean our transports in this process. Opens nothing."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = "worker.adapters.inbox:CarefulTransport"
    TRANSPORT_ALIASES["sentinel"] = "worker.adapters.inbox:CarefulSentinelTransport"
