"""The log filter: our lines and other libraries' lose content, credentials and tracebacks, and keep what helps."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from config.logs import LONGEST_TEXT, clean, kind, set_up
from worker.domain.errors import Blocked

SECRET = "CANARY-A1"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Everything logged during a test, parsed; the logging of the test run is put back afterwards."""
    sink = io.StringIO()
    root = logging.getLogger()
    before = (root.handlers[:], root.level, sys.excepthook, threading.excepthook, structlog.get_config())
    levels = {name: logging.getLogger(name).level for name in list(logging.root.manager.loggerDict)}
    monkeypatch.setattr(sys, "stderr", sink)
    set_up("DEBUG")
    found = Lines(sink)
    yield found
    root.handlers[:], root.level, sys.excepthook, threading.excepthook = before[0], before[1], before[2], before[3]
    structlog.configure(**before[4])
    logging.captureWarnings(False)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class Lines(list[dict[str, Any]]):
    """Reads what was written so far each time it is looked at."""

    def __init__(self, sink: io.StringIO) -> None:
        self._sink = sink

    def all(self) -> list[dict[str, Any]]:
        assert SECRET not in self._sink.getvalue()
        return [json.loads(line) for line in self._sink.getvalue().splitlines()]


def test_our_lines_lose_content_and_credentials(lines: Lines) -> None:
    """Members that name content are dropped, URLs lose user and query, exceptions become their kind and place."""
    log = structlog.get_logger("worker.flow")
    try:
        raise ValueError(f"bad text {SECRET}")
    except ValueError as error:
        log.warning(
            "evidence.failed",
            event_id="e-1",
            receipt=SECRET,
            source_text=SECRET,
            body={"x": SECRET},
            url=f"https://user:{SECRET}@cms.invalid/x?token={SECRET}",
            nested={"signature": SECRET, "attempt": 2},
            problem=error,
            exc_info=True,
        )
    (line,) = lines.all()
    assert line["event"] == "evidence.failed"
    assert line["event_id"] == "e-1"
    assert line["url"] == "https://***@cms.invalid/x"
    assert line["nested"] == {"attempt": 2}
    assert (line["problem"], line["error"]) == ("ValueError", "ValueError")
    assert line["error_at"].startswith("tests/tasks/test_logs.py:")
    assert {"receipt", "source_text", "body"} & line.keys() == set()


def test_other_libraries_lines_lose_exceptions(lines: Lines) -> None:
    """A foreign line keeps its sentence; the exception in it becomes its kind, its traceback the place."""
    try:
        raise RuntimeError(SECRET)
    except RuntimeError as error:
        logging.getLogger("celery.worker").critical("Unrecoverable error: %r", error, exc_info=True)
    (line,) = lines.all()
    assert line["event"].startswith("Unrecoverable error: 'RuntimeError' [RuntimeError at tests/tasks/test_logs.py:")
    assert "exception" not in line


def test_a_failing_task_is_logged_without_its_arguments(lines: Lines) -> None:
    """Celery's line about a failed task repeats exception, traceback and arguments; ours names task and id."""
    data = {
        "name": "release.submit",
        "id": "i-1",
        "exc": SECRET,
        "traceback": SECRET,
        "args": SECRET,
        "description": "failed",
    }
    logging.getLogger("celery.app.trace").error("Task %(name)s[%(id)s] raised: %(exc)s", data, extra={"data": data})
    (line,) = lines.all()
    assert line["event"] == "Task release.submit[i-1] failed"


def test_a_lost_connection_says_where_and_why(lines: Lines) -> None:
    """Connection errors keep host, port and reason: operators need them, and they hold no content."""
    logging.getLogger("celery.worker").error("broker: %s", ConnectionRefusedError("Error 111 connecting to redis:6379"))
    (line,) = lines.all()
    assert line["event"] == "broker: ConnectionRefusedError: Error 111 connecting to redis:6379"


def test_broker_urls_lose_their_passwords(lines: Lines) -> None:
    """Every one of several broker URLs is masked."""
    logging.getLogger("kombu").info(f"trying redis://:{SECRET}@r1:6379/0;redis://:{SECRET}@r2:6380/0")
    (line,) = lines.all()
    assert line["event"] == "trying redis://***@r1:6379/0;redis://***@r2:6380/0"


@pytest.mark.parametrize(
    "name", ["sqlalchemy.engine", "httpx2", "httpcore2", "kombu", "celery.pool", "psycopg", "redis"]
)
def test_libraries_stay_quiet_at_debug(lines: Lines, name: str) -> None:
    """At DEBUG, libraries that print statements, bodies or arguments there still do not."""
    logging.getLogger(name).debug(SECRET)
    assert lines.all() == []


def test_an_uncaught_exception_is_one_clean_line(lines: Lines) -> None:
    """What ends a process or a thread is logged by kind and place."""
    try:
        raise RuntimeError(SECRET)
    except RuntimeError as error:
        sys.excepthook(RuntimeError, error, error.__traceback__)
    thread = threading.Thread(target=lambda: {}["x"])
    thread.start()
    thread.join()
    first, second = lines.all()
    assert (first["event"], first["error"]) == ("process.failed", "RuntimeError")
    assert (second["event"], second["error"]) == ("thread.failed", "KeyError")


def test_a_bad_format_of_another_library_is_no_fault(lines: Lines) -> None:
    """A foreign line whose arguments do not fit is printed as it stands."""
    logging.getLogger("kombu").warning("%d of", "x")
    assert lines.all()[0]["event"] == "%d of"


def test_texts_are_one_line_and_bounded() -> None:
    """A printed text has no line breaks and at most 500 characters."""
    assert clean("a\n b\t c") == "a b c"
    assert clean("x" * 600) == "x" * LONGEST_TEXT + "..."


def test_a_stable_code_is_shown() -> None:
    """An error of ours is shown by its code, never by its sentence."""
    assert kind(Blocked("database.unavailable", SECRET)) == "Blocked: database.unavailable"
