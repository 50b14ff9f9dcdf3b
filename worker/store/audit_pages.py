"""The whole database as a stream for an audit: each table in pages by its key, in constant memory, changing nothing.

A page is one snapshot: what is read beside it was true at the same moment, so a fleet at work is no violation. Pages
are bounded by rows and by bytes. Columns are read raw, since a damaged value must reach the rule that names it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    LargeBinary,
    Select,
    String,
    Table,
    and_,
    cast,
    exc,
    func,
    literal,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.types import NullType

from worker.domain.errors import Unavailable
from worker.store.engine import is_sqlite, json_rows, row_source
from worker.store.schema import (
    approvals,
    deliveries,
    delivery_answers,
    delivery_history,
    events,
    evidence,
    evidence_history,
    jobs,
    plan_jobs,
    receipts,
    results,
    setbacks,
    submissions,
    withdrawals,
)

ROWS_OF_PAGE: Final = 500
BYTES_OF_PAGE: Final = 4 * 1024 * 1024  # of long columns; a page holds one row at least
LONG: Final = ("body", "document", "payload", "row_json", "receipt", "binding")

RawRow = Mapping[str, Any]
Rows = Sequence[RawRow]


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What an audit is narrowed to; with neither, everything is read."""

    site: str | None = None
    event: str | None = None

    @property
    def is_whole(self) -> bool:
        """Tell whether everything is read."""
        return self.site is None and self.event is None


@dataclass(frozen=True, kw_only=True, eq=False)
class Stream:
    """One table in the order of some of its columns, which are unique together."""

    table: Table
    key: tuple[str, ...] = ()  # the primary key where none is given
    condition: ColumnElement[bool] | None = None
    columns: tuple[str, ...] = ()  # all where none is given
    falling: bool = False
    most_rows: int = ROWS_OF_PAGE

    @property
    def key_columns(self) -> list[ColumnElement[Any]]:
        """Return the columns of the order."""
        names = self.key or tuple(column.name for column in self.table.primary_key.columns)
        return [self.table.c[name] for name in names]

    @property
    def long_columns(self) -> list[ColumnElement[Any]]:
        """Return the columns whose length bounds a page."""
        return [c for c in self.table.c if c.name in LONG and (not self.columns or c.name in self.columns)]


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """Lend a connection that sees one moment of the database and writes nothing; faults become `Unavailable`."""
    try:
        with engine.connect() as conn:
            if is_sqlite(engine):
                raw: Any = conn.connection.driver_connection
                raw.text_factory = _forgiving
                try:
                    with conn.execution_options(locseal="snapshot").begin():
                        yield conn
                finally:
                    raw.text_factory = str
            else:
                whole = conn.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
                with whole.begin():
                    yield whole
    except (exc.DBAPIError, exc.TimeoutError, sqlite3.Error) as fault:
        kind = getattr(getattr(fault, "orig", None) or fault, "sqlstate", None) or type(fault).__name__
        raise Unavailable(
            "database.unavailable", f"the database cannot be read through ({kind}); see locseal doctor"
        ) from None


def _forgiving(raw: bytes) -> str:
    """Read a text column of SQLite whatever bytes it holds: what is no UTF-8 then fails its hash, and not the page."""
    return raw.decode("utf-8", "replace")


def has_scope(engine: Engine, scope: Scope) -> bool:
    """Tell whether the database knows what a scope names: a site by any event or document, an event likewise."""
    if scope.is_whole:
        return True
    with snapshot(engine) as conn:
        for table in (events, submissions, deliveries):
            named_there = _narrowed(table, scope)
            assert named_there is not None
            if conn.execute(select(literal(1)).select_from(table).where(named_there).limit(1)).first() is not None:
                return True
    return False


def count_rows(engine: Engine, stream: Stream, scope: Scope) -> int:
    """Return how many rows a stream will yield, or 0 where it is out of scope."""
    within = _within(stream, scope)
    if within is None:
        return 0
    with snapshot(engine) as conn:
        return int(conn.execute(select(func.count()).select_from(stream.table).where(*within)).scalar_one())


def pages(engine: Engine, stream: Stream, scope: Scope) -> Iterator[tuple[Connection, Sequence[RawRow]]]:
    """Yield the pages of a stream, each with the connection of its snapshot; none where it is out of scope."""
    within = _within(stream, scope)
    after: tuple[Any, ...] | None = None
    while within is not None:
        with snapshot(engine) as conn:
            found, is_last = _page(conn, stream, within, after)
            if found:
                last = tuple(found[-1][column.name] for column in stream.key_columns)
                yield conn, found
                is_last = is_last or last == after  # a key that cannot be read back would go round for ever
                after = last
        if is_last or not found:
            return


def raw_columns(conn: Connection, table: Table, names: Sequence[str] = ()) -> list[ColumnElement[Any]]:
    """Return a table's columns without their types, so that damage reaches the caller instead of a converter."""
    columns = [table.c[name] for name in names] if names else list(table.c)
    return [
        type_coerce(cast(c, LargeBinary) if is_sqlite(conn) and table.name == "release_runs" else c, NullType()).label(
            c.name
        )
        for c in columns
    ]


def _page(
    conn: Connection, stream: Stream, within: Sequence[ColumnElement[bool]], after: tuple[Any, ...] | None
) -> tuple[Sequence[RawRow], bool]:
    keys = stream.key_columns
    order = [key.desc() for key in keys] if stream.falling else keys
    begin = [*within] if after is None else [*within, _beyond(stream, after)]
    columns = raw_columns(conn, stream.table, stream.columns)
    if not stream.long_columns:
        rows = _read(conn, select(*columns).where(*begin).order_by(*order).limit(stream.most_rows))
        return rows, len(rows) < stream.most_rows
    sizes = conn.execute(
        select(*keys, _bytes(conn, stream).label("size")).where(*begin).order_by(*order).limit(stream.most_rows)
    ).all()
    taken, total = 0, 0
    for row in sizes:
        total += row.size or 0
        if taken and total > BYTES_OF_PAGE:
            break
        taken += 1
    rows = _read(conn, select(*columns).where(*begin).order_by(*order).limit(taken)) if taken else []
    return rows, taken == len(sizes) < stream.most_rows


def _read(conn: Connection, query: Select[Any]) -> list[RawRow]:
    return [dict(row) for row in conn.execute(query).mappings()]


def _bytes(conn: Connection, stream: Stream) -> ColumnElement[int]:
    length = func.length if is_sqlite(conn) else func.octet_length
    total: ColumnElement[int] = literal(0)
    for column in stream.long_columns:
        total += func.coalesce(length(column), 0)
    return total


def _beyond(stream: Stream, after: tuple[Any, ...]) -> ColumnElement[bool]:
    """Return the condition that a row comes after a key, written so that both databases walk the index."""
    keys = stream.key_columns
    further = [key < value if stream.falling else key > value for key, value in zip(keys, after, strict=True)]
    same = [key == value for key, value in zip(keys, after, strict=True)]
    steps = [and_(*same[:place], further[place]) for place in range(len(keys))]
    from_here = keys[0] <= after[0] if stream.falling else keys[0] >= after[0]
    return and_(from_here, or_(*steps))


def named(conn: Connection, name: str, ids: Sequence[object]) -> tuple[Select[Any], dict[str, str]]:
    """Return a select of ids and the parameter that feeds it; values that are no text are left out."""
    source = row_source(conn, name, {"id": String}, name)
    rows = [{"id": one} for one in sorted({one for one in ids if isinstance(one, str) and "\x00" not in one})]
    return select(source.c.id), {name: json_rows(rows)}


def rows_of(
    conn: Connection, table: Table, column: str, ids: Iterable[object], *names: str, **equal: object
) -> list[RawRow]:
    """Return the raw columns (the named ones, else all) of a table's rows whose `column` is one of some ids."""
    wanted, parameters = named(conn, "wanted", list(ids))
    conditions = [table.c[name] == value for name, value in equal.items()]
    query = select(*raw_columns(conn, table, names)).where(table.c[column].in_(wanted), *conditions)
    found = conn.execute(query, parameters)
    return [dict(row) for row in found.mappings()]


def column_of(rows: Rows, name: str) -> list[Any]:
    """Return one column of some rows."""
    return [row[name] for row in rows]


# --- scope ----------------------------------------------------------------------------------------------------------


def _within(stream: Stream, scope: Scope) -> list[ColumnElement[bool]] | None:
    """Return the conditions of a stream in a scope; None where its rows belong to no site or event."""
    conditions = [] if stream.condition is None else [stream.condition]
    if scope.is_whole:
        return conditions
    narrowed = _narrowed(stream.table, scope)
    return None if narrowed is None else [*conditions, narrowed]


def _narrowed(table: Table, scope: Scope) -> ColumnElement[bool] | None:
    asked = [] if scope.site is None else [events.c.site_id == scope.site]
    asked += [] if scope.event is None else [events.c.event_id == scope.event]
    found = select(events.c.event_id).where(*asked)
    planned = select(plan_jobs.c.job_id).where(plan_jobs.c.plan_id.in_(select(events.c.plan_id).where(*asked)))
    if table is evidence:
        return table.c.event_id.in_(found)
    if table in {submissions, events, withdrawals, deliveries}:
        own = [] if scope.site is None else [table.c.site_id == scope.site]
        return and_(*own, *([] if scope.event is None else [table.c.event_id == scope.event]))
    if table is plan_jobs:
        return table.c.plan_id.in_(select(events.c.plan_id).where(*asked))
    if table in {jobs, results, approvals, evidence_history}:
        return table.c.job_id.in_(planned)
    if table is receipts:
        return table.c.request_id.in_(select(approvals.c.request_id).where(approvals.c.job_id.in_(planned)))
    if table is delivery_history:
        return table.c.event_id.in_(found)
    sent = select(deliveries.c.delivery_id).where(deliveries.c.event_id.in_(found))
    if table is delivery_answers:
        return table.c.delivery_id.in_(sent)
    if table is setbacks:
        tried = select(evidence.c.request_id).where(evidence.c.event_id.in_(found))
        return or_(table.c.subject_id.in_(tried), table.c.subject_id.in_(sent))
    return None
