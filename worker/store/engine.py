"""How the database is reached: one engine, one way to read, one way to write, one clock, one way to pass many rows.

Both databases run the same code path; the few words in which their SQL differs are here. No table is known here.
"""

from __future__ import annotations

import json
import math
import select as sockets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from psycopg import _queries as psycopg_queries
from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Float,
    String,
    bindparam,
    cast,
    column,
    create_engine,
    event,
    exc,
    func,
    literal,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import JSON
from sqlalchemy.engine import URL, make_url
from sqlalchemy.sql.selectable import FromClause
from sqlalchemy.types import TypeEngine

from worker.domain.errors import Blocked, Unavailable
from worker.store.private_files import check_private_database, private_file

# psycopg takes longer statements apart anew for every execution (a claim: 0.3 ms).
psycopg_queries.MAX_CACHED_STATEMENT_LENGTH = 32_768
psycopg_queries.MAX_CACHED_STATEMENT_PARAMS = 100

T = TypeVar("T")
Bind = Engine | Connection | Dialect
Moment = float | ColumnElement[float] | None  # None is the database's own clock

MOST_TRIES = 5  # of one transaction
BUSY_SECONDS = 10.0
REPEATABLE_STATES = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock not available

PING_AFTER_SECONDS = 1.0  # a connection that rested longer is asked whether it lives, silent or not

POSTGRES_SETTINGS = {
    # A frozen process must not hold row locks for ever, nor may anybody wait for them for ever.
    "idle_in_transaction_session_timeout": "30s",
    "lock_timeout": "10s",
    # Our statements are short; compiling a claim took 110 ms of its 115.
    "jit": "off",
    # Claims read the first few of very many rows in index order; where estimates are poor, the planner would rather
    # fetch them all by bitmap and sort (200,000 due rows: 900 ms against 10 ms for each claim).
    "enable_bitmapscan": "off",
    # Every statement of ours looks up named rows, or walks an index from one end. While a table is small, or its
    # statistics old, the planner would rather read it whole and hash or merge it (a settle: 80 ms against 6), and
    # keep that plan for the life of the connection.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
POSTGRES_CLOCK = "(SELECT extract(epoch FROM clock_timestamp())::float8)"  # a sub-select: now() stands still
SQLITE_CLOCK = "((julianday('now') - 2440587.5) * 86400.0)"  # unixepoch('subsec') is NULL before SQLite 3.42


# --- opening --------------------------------------------------------------------------------------------------------


def open_engine(url: str | URL, *, pool_size: int = 10) -> Engine:
    """Open `sqlite:///path` or `postgresql+psycopg://...` and return its engine. Opens no connection to a server.

    An SQLite file is created private (0600 in a 0700 directory). Raises `Blocked("store.url.invalid")` for any other
    URL, `RunCorrupt` for a path that others could read or exchange, `Unavailable` when the file
    cannot be opened. Engines must not cross a fork.
    """
    try:
        parsed = make_url(url)
    except exc.ArgumentError:
        raise Blocked("store.url.invalid", "the database URL cannot be read") from None
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"}:
        return _open_sqlite(parsed, pool_size)
    if parsed.drivername in {"postgresql", "postgresql+psycopg"}:
        return _open_postgres(parsed.set(drivername="postgresql+psycopg"), pool_size)
    raise Blocked("store.url.invalid", "use sqlite:///path or postgresql+psycopg://...")


def _open_sqlite(url: URL, pool_size: int) -> Engine:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:") or url.query:
        raise Blocked("store.url.invalid", "SQLite needs a plain file path; every connection would see another memory")
    path = private_file(Path(url.database))
    check_private_database(path)
    # mode=rw: a file that vanished is a fault; SQLite must not make a new, empty, world-readable one in its place.
    address = f"{path.as_uri()}?mode=rw"

    def connect() -> sqlite3.Connection:
        raw = sqlite3.connect(
            address,
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        raw.execute("PRAGMA synchronous = FULL")
        raw.execute("PRAGMA foreign_keys = OFF")
        return raw

    try:
        raw = connect()
        try:
            raw.execute("PRAGMA journal_mode = WAL")  # kept in the file
        finally:
            raw.close()
    except sqlite3.Error as fault:
        raise Unavailable(
            "database.unavailable", f"the SQLite file cannot be opened ({type(fault).__name__})"
        ) from None
    engine = create_engine(url, creator=connect, hide_parameters=True, pool_size=pool_size, max_overflow=pool_size)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _begin_sqlite(connection: Connection) -> None:
    """Begin by hand: the driver's own way begins late and deferred, and then fails at once when others write."""
    kind = connection.get_execution_options().get("locseal", "other")
    if kind != "reading":
        connection.exec_driver_sql("BEGIN IMMEDIATE" if kind == "writing" else "BEGIN")


def _open_postgres(url: URL, pool_size: int) -> Engine:
    asked = url.query.get("options", "")
    ours = " ".join(f"-c {name}={value}" for name, value in POSTGRES_SETTINGS.items())
    options = f"{asked if isinstance(asked, str) else ' '.join(asked)} {ours}".strip()
    defaults = {"application_name": "locseal", "connect_timeout": "10"}
    engine = create_engine(
        url.difference_update_query(["options"]),
        hide_parameters=True,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_use_lifo=True,  # few warm connections, each with its statements prepared and planned
        connect_args={
            **{k: v for k, v in defaults.items() if k not in url.query},
            "options": options,
            "prepare_threshold": 1,  # from the second use on: a claim takes longer to plan than to run
        },
    )
    event.listen(engine, "checkin", _note_use)
    event.listen(engine, "checkout", lambda raw, record, _proxy: _ping_if_doubtful(engine, raw, record))
    return engine


def _note_use(_raw: Any, record: Any) -> None:
    record.info["used_at"] = time.monotonic()


def _ping_if_doubtful(engine: Engine, raw: Any, record: Any) -> None:
    """Ask a connection whether it lives where it rested or has news, so that a restarted server costs no task its attempt.

    A server that ends a connection says so on its socket. One used a moment ago that is silent is not asked: that was a
    third of all round trips.
    """
    used_at = record.info.get("used_at")
    if used_at is None:
        return  # just made
    looking = sockets.poll()
    looking.register(raw.fileno(), sockets.POLLIN)
    if time.monotonic() - used_at < PING_AFTER_SECONDS and not looking.poll(0):
        return
    try:
        engine.dialect.do_ping(raw)
    except engine.dialect.loaded_dbapi.Error:
        raise exc.InvalidatePoolError from None  # the pool drops what it has and connects anew


# --- reading and writing --------------------------------------------------------------------------------------------


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Lend a connection for reads, without a transaction; operational faults become `Unavailable`."""
    try:
        with engine.connect() as conn:
            if is_sqlite(engine):
                yield conn.execution_options(locseal="reading")
            else:
                yield conn.execution_options(isolation_level="AUTOCOMMIT")
    except (exc.DBAPIError, exc.TimeoutError) as fault:
        raise _unavailable(fault) from None


def writing(engine: Engine, work: Callable[[Connection], T], *, most_tries: int = MOST_TRIES) -> T:
    """Run `work` in one transaction and return what it returns, once that is committed.

    The whole transaction is repeated, at most `most_tries` times in all, when the database says that it lost a race; so
    `work` must touch nothing but its connection. Raises what `work` raises (nothing is written then), `IntegrityError`
    where a constraint holds, `Unavailable("database.busy")` when the last try lost its race too, and
    `Unavailable("database.unavailable")` for every other fault of the database.
    """
    for tries_left in reversed(range(most_tries)):
        try:
            with engine.connect().execution_options(locseal="writing") as conn, conn.begin():
                return work(conn)
        except exc.IntegrityError:
            raise
        except (exc.DBAPIError, exc.TimeoutError) as fault:
            if not _lost_a_race(fault):
                raise _unavailable(fault) from None
            if tries_left == 0:
                raise Unavailable("database.busy", "others kept the rows locked; try again") from None
    raise AssertionError("the loop above returns or raises")


def _lost_a_race(fault: Exception) -> bool:
    cause = getattr(fault, "orig", None)
    if isinstance(cause, sqlite3.OperationalError):
        return (cause.sqlite_errorcode & 0xFF) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
    return getattr(cause, "sqlstate", None) in REPEATABLE_STATES


def _unavailable(fault: Exception) -> Unavailable:
    """Name the kind of fault only: a database's own message may quote what was written."""
    cause = getattr(fault, "orig", None) or fault
    kind = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or type(cause).__name__
    return Unavailable("database.unavailable", f"the database cannot answer ({kind}); try again, or see locseal doctor")


def is_sqlite(bind: Bind) -> bool:
    """Tell whether this is SQLite; otherwise it is PostgreSQL."""
    return _dialect(bind).name == "sqlite"


def _dialect(bind: Bind) -> Dialect:
    return bind if isinstance(bind, Dialect) else bind.dialect


# --- one clock, many rows -------------------------------------------------------------------------------------------


def clock(bind: Bind, now: Moment) -> ColumnElement[float]:
    """Return the time as an SQL expression: the given one, or for None the database's own clock."""
    if isinstance(now, ColumnElement):  # of a statement that is built once and executed at many times
        return now
    if now is not None:
        return literal(float(now), Float)
    return literal_column(SQLITE_CLOCK if is_sqlite(bind) else POSTGRES_CLOCK, Float)


def read_clock(conn: Connection, now: float | None) -> float:
    """Return the time in seconds: the given one, or for None the database's own clock, asked now."""
    if now is not None:
        return now
    moment = float(conn.execute(select(clock(conn, None))).scalar_one())
    assert math.isfinite(moment)
    return moment


def json_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Return the parameter that feeds a `row_source`: the rows as one JSON string."""
    return json.dumps(list(rows), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def row_source(bind: Bind, name: str, columns: Mapping[str, type[TypeEngine[Any]]], param: str) -> FromClause:
    """Return a selectable named `name` whose rows come out of the one JSON string parameter `param`.

    The SQL text stays the same however many rows are passed, so it is prepared once. A missing or null member is NULL.
    Pass a float that must stay exact to the last bit as a parameter of its own: SQLite rounds in JSON.
    """
    typed = [column(key, kind()) for key, kind in columns.items()]
    if is_sqlite(bind):
        each = func.json_each(bindparam(param)).table_valued("value", name=f"{name}_each")
        members = [type_coerce(func.json_extract(each.c.value, f'$."{c.name}"'), c.type).label(c.name) for c in typed]
        return select(*members).select_from(each).subquery(name)
    whole = func.json_to_recordset(cast(bindparam(param, type_=String), JSON))
    return whole.table_valued(*typed, name=name).render_derived(name=name, with_types=True)
