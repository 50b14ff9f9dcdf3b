"""Structured logs, and the filter that keeps content out of them. Imports nothing of ours; nothing runs on import.

One line per transition: `event` names it, `message` says it to people, every other member is for machines. Other
libraries' lines pass the same filter: their tracebacks and exception texts can hold statements, bodies and URLs with
passwords, so only the kind of an exception and the place it came from are printed.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from collections.abc import Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final

import structlog

LONGEST_TEXT: Final = 500

# Members that must never be printed, whoever logs them.
FORBIDDEN: Final = frozenset(
    {
        "args", "authorization", "binding", "body", "candidate", "content", "document", "exc", "headers", "kwargs",
        "mac", "password", "payload", "private_key", "prose", "receipt", "secret", "signature", "source_text",
        "submission", "target_text", "text", "token", "traceback", "withdrawal",
    }
)  # fmt: skip

# Errors of these kinds name a host, a port and a reason, and nothing that travelled.
_CONNECTION_KINDS: Final = frozenset(
    {
        "BusyLoadingError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "OSError",
        "ReadOnlyError", "TimeoutError", "gaierror",
    }
)  # fmt: skip
_CONNECTION_HOMES: Final = ("builtins", "redis.exceptions", "socket")

_CREDENTIALS: Final = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/@;,'\"]*@")
_QUERY: Final = re.compile(r"(?P<address>[a-zA-Z][a-zA-Z0-9+.-]*://[^\s?'\"]*)\?[^\s'\"]*")

# Libraries that print arguments, statements or addresses at DEBUG (and some at INFO).
_QUIET: Final = {
    "amqp": logging.INFO,
    "alembic": logging.WARNING,
    "asyncio": logging.ERROR,  # its warnings print coroutines with their arguments
    "celery": logging.INFO,
    "celery.worker.strategy": logging.WARNING,  # "received": ours logs the transition
    "celery.app.trace": logging.WARNING,  # "succeeded": likewise
    "celery.beat": logging.WARNING,
    "httpcore2": logging.WARNING,
    "httpx2": logging.WARNING,
    "kombu": logging.INFO,
    "opentelemetry": logging.WARNING,
    "psycopg": logging.WARNING,
    "redis": logging.INFO,
    "sqlalchemy": logging.WARNING,
    "tornado.access": logging.WARNING,
    "urllib3": logging.WARNING,
    "uvicorn.access": logging.WARNING,
}


def clean(text: str) -> str:
    """Return a text fit to print: one line, no credentials or query of a URL, at most 500 characters."""
    if "://" in text:
        text = _QUERY.sub(r"\g<address>", _CREDENTIALS.sub(r"\g<scheme>***@", text))
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "..."


def kind(error: BaseException) -> str:
    """Return what may be printed of an exception: its kind, and for a lost connection where to and why."""
    cls = type(error)
    if cls.__name__ in _CONNECTION_KINDS and cls.__module__ in _CONNECTION_HOMES:
        return f"{cls.__name__}: {clean(str(error))}"
    code = getattr(error, "code", None)
    return f"{cls.__name__}: {clean(code)}" if isinstance(code, str) else cls.__name__


def place(trace: TracebackType | None) -> str:
    """Return where an exception came from, `file:line`, without any value."""
    frames = traceback.extract_tb(trace)
    if not frames:
        return ""
    return f"{'/'.join(frames[-1].filename.split('/')[-3:])}:{frames[-1].lineno}"


def set_up(level: str = "INFO", form: str = "json") -> None:
    """Send every log line of the process to stderr through the filter, as JSON or coloured for people. Idempotent.

    `form` is json, console, or auto: console where stderr is a terminal.
    """
    if form == "auto":
        form = "console" if sys.stderr.isatty() else "json"
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        redact,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=logging.getLogger,  # structlog's own looks for the calling line, which nothing prints
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: Any = structlog.dev.ConsoleRenderer() if form == "console" else structlog.processors.JSONRenderer()
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(ForeignFilter())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name, lowest in _QUIET.items():
        logging.getLogger(name).setLevel(max(lowest, logging.getLevelNamesMapping()[level]))
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def redact(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep what may be printed of one line: no forbidden member, every text clean, exceptions by their kind."""
    error = fields.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()
    if isinstance(error, BaseException):
        error = (type(error), error, error.__traceback__)
    if isinstance(error, tuple) and error[1] is not None:
        fields["error"], fields["error_at"] = kind(error[1]), place(error[2])
    for name in list(fields):
        if name in FORBIDDEN:
            del fields[name]
        else:
            fields[name] = _printable(fields[name])
    return fields


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, BaseException):
        return kind(value)
    if isinstance(value, Mapping):
        return {str(name): _printable(item) for name, item in value.items() if name not in FORBIDDEN}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_printable(item) for item in value]
    return clean(type(value).__name__)


class ForeignFilter(logging.Filter):
    """Cleans what other libraries log before it is formatted: exceptions to their kind, texts without credentials."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record in place; every record passes."""
        if isinstance(record.msg, Mapping):  # a line of ours, redacted already
            return True
        suffix = ""
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
            suffix = f" [{kind(record.exc_info[1])} at {place(record.exc_info[2])}]"
        record.msg, record.args = clean(_sentence(record)) + suffix, None
        record.exc_info = record.exc_text = record.stack_info = None
        return True


def _sentence(record: logging.LogRecord) -> str:
    data = getattr(record, "data", None)
    if record.name == "celery.app.trace" and isinstance(data, Mapping):
        # A task's failure: Celery's line repeats the exception and its traceback.
        return f"Task {data.get('name')}[{data.get('id')}] {data.get('description', 'ended')}"
    args: Any = record.args
    if isinstance(args, tuple):
        args = tuple(kind(item) if isinstance(item, BaseException) else item for item in args)
    elif isinstance(args, Mapping):
        args = {name: kind(item) if isinstance(item, BaseException) else item for name, item in args.items()}
    try:
        return str(record.msg) % args if args else str(record.msg)
    except (TypeError, ValueError, KeyError):
        return str(record.msg)


def _log_uncaught(_cls: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    structlog.get_logger("locseal").critical("process.failed", error=kind(error), error_at=place(trace))


def _log_uncaught_in_thread(details: threading.ExceptHookArgs) -> None:
    if details.exc_value is not None and not isinstance(details.exc_value, SystemExit):
        log = structlog.get_logger("locseal")
        log.critical("thread.failed", error=kind(details.exc_value), error_at=place(details.exc_traceback))
