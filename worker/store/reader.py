"""An engine for those who only look, such as metrics: one connection, and no statement longer than a second or two."""

from __future__ import annotations

import sqlite3
import time
from typing import Any, Final

from sqlalchemy import Engine, event
from sqlalchemy.engine import make_url

from worker.store.engine import is_sqlite, open_engine

STATEMENT_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 3
STEPS: Final = 10_000  # of SQLite's machine between two looks at the watch


def open_reader(url: str, *, statement_seconds: float = STATEMENT_SECONDS) -> Engine:
    """Open a database like `open_engine`, for reads: a statement that takes longer is cut off and raises `Unavailable`."""
    parsed = make_url(url)
    if not parsed.drivername.startswith("sqlite"):
        asked = parsed.query.get("options", "")
        options = f"{asked if isinstance(asked, str) else ' '.join(asked)} -c statement_timeout={statement_seconds:g}s"
        bounds = {"connect_timeout": str(CONNECT_SECONDS), "options": options.strip()}
        parsed = parsed.update_query_dict({**bounds, **{k: v for k, v in parsed.query.items() if k != "options"}})
    engine = open_engine(parsed, pool_size=1)
    if is_sqlite(engine):
        _bound_sqlite(engine, statement_seconds)
    return engine


def _bound_sqlite(engine: Engine, seconds: float) -> None:
    """Interrupt a statement of SQLite, which has no such setting; its rows may still be fetched after it was executed."""
    ends_at = time.monotonic() + seconds

    def is_over() -> int:
        return int(time.monotonic() > ends_at)

    @event.listens_for(engine, "connect")
    def _watch(raw: sqlite3.Connection, _record: object) -> None:
        raw.set_progress_handler(is_over, STEPS)

    @event.listens_for(engine, "before_cursor_execute")
    def _begin(*_: Any) -> None:
        nonlocal ends_at
        ends_at = time.monotonic() + seconds
