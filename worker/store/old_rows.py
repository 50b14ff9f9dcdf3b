"""Old rows that belong to no event, counted and removed in bounded batches: rejections, and commands of release runs.

Also the ends of attempts, which go with whatever row they are about.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import ColumnElement, Connection, String, Table, delete, false, func, literal_column, select, tuple_

from worker.domain.retention import Retention
from worker.store.engine import json_rows, row_source
from worker.store.legal_holds import any_hold, is_site_touched
from worker.store.schema import rejections, run_commands, setbacks

ROWS_AT_ONCE: Final = 2000


def remove_setbacks(conn: Connection, subjects: Iterable[tuple[str, str]]) -> None:
    """Remove every end of an attempt at some rows."""
    rows = [{"subject": subject, "id": row_id} for subject, row_id in subjects]
    if rows:
        gone = row_source(conn, "gone", {"subject": String, "id": String}, "gone")
        pairs = tuple_(setbacks.c.subject, setbacks.c.subject_id).in_(select(gone.c.subject, gone.c.id))
        conn.execute(delete(setbacks).where(pairs), {"gone": json_rows(rows)})


def count_rejections(conn: Connection, wanted: Retention) -> int:
    """Return how many rejections may go."""
    return _count(conn, rejections, _old_rejections(wanted))


def remove_rejections(conn: Connection, wanted: Retention) -> int:
    """Remove some of the oldest rejections that may go and return how many; 0 when none is left."""
    oldest = (
        select(rejections.c.rejection_id)
        .where(*_old_rejections(wanted))
        .order_by(rejections.c.last_at, rejections.c.rejection_id)
        .limit(ROWS_AT_ONCE)
    )
    return conn.execute(delete(rejections).where(rejections.c.rejection_id.in_(oldest))).rowcount


def count_commands(conn: Connection, wanted: Retention) -> int:
    """Return how many commands of release runs may go."""
    return _count(conn, run_commands, _old_commands(wanted))


def remove_commands(conn: Connection, wanted: Retention) -> int:
    """Remove some of the oldest commands that may go, and what their visits left; return how many, 0 at the end."""
    oldest = (
        select(run_commands.c.attempt_id)
        .where(*_old_commands(wanted))
        .order_by(run_commands.c.updated_at, run_commands.c.attempt_id)
        .limit(ROWS_AT_ONCE)
    )
    gone = conn.execute(
        delete(run_commands).where(run_commands.c.attempt_id.in_(oldest)).returning(run_commands.c.attempt_id)
    )
    ids = list(gone.scalars())
    remove_setbacks(conn, [("run_command", attempt_id) for attempt_id in ids])
    return len(ids)


def _old_rejections(wanted: Retention) -> list[ColumnElement[bool]]:
    of_all = [] if wanted.site_id is None else [false()]  # a rejection belongs to no site
    return [*of_all, rejections.c.last_at < wanted.before_at, ~any_hold()]


def _old_commands(wanted: Retention) -> list[ColumnElement[bool]]:
    succeeded = run_commands.c.status == literal_column("'succeeded'")
    of_site = [] if wanted.site_id is None else [run_commands.c.site_id == wanted.site_id]
    is_old = run_commands.c.updated_at < wanted.before_at
    return [succeeded, is_old, *of_site, ~is_site_touched(run_commands.c.site_id)]


def _count(conn: Connection, table: Table, conditions: Sequence[ColumnElement[bool]]) -> int:
    return int(conn.execute(select(func.count()).select_from(table).where(*conditions)).scalar_one())
