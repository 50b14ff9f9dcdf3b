"""Workers that announced their end, by the id under which they hold leases.

What such a worker still had open when it ended keeps its lease until that runs out, and counts as an attempt; but it is
no sign of poison, since the worker did not die of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, delete, exists, select

from worker.store.engine import clock, read_clock
from worker.store.schema import drains
from worker.store.upserts import insert_into

KEPT_SECONDS: Final = 2 * 72 * 3600.0  # at least; twice the span over which expiries count by default


def announce_drain(conn: Connection, worker_id: str, *, now: float | None, within_seconds: float = 0.0) -> bool:
    """Record that a worker takes nothing more; false when it had said so before. The first time stays.

    Forgets announcements that nothing needs any more, so that the table never grows beyond some days of restarts.
    `within_seconds` is the span over which expiries count: an announcement is kept for twice that, so that none
    outlives its excuse.
    """
    prune_drains(conn, now=now, kept_seconds=max(KEPT_SECONDS, 2 * within_seconds))
    row = insert_into(conn, drains).values(worker_id=worker_id, announced_at=read_clock(conn, now))
    return conn.execute(row.on_conflict_do_nothing().returning(drains.c.worker_id)).one_or_none() is not None


def announced_at(conn: Connection, worker_ids: Collection[str]) -> dict[str, float]:
    """Return when those of these workers that announced their end did so, by id."""
    if not worker_ids:
        return {}
    found = select(drains.c.worker_id, drains.c.announced_at).where(drains.c.worker_id.in_(sorted(worker_ids)))
    return {row.worker_id: row.announced_at for row in conn.execute(found)}


def has_drained(worker_id: ColumnElement[Any], by: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that the worker named in a column announced its end until a time.

    For queries over setbacks: what a lease did before its holder began to drain is not excused.
    """
    said = (drains.c.worker_id == worker_id, drains.c.announced_at <= by)
    return exists().where(*said).correlate_except(drains)


def prune_drains(conn: Connection, *, now: float | None, kept_seconds: float = KEPT_SECONDS) -> int:
    """Forget announcements older than `kept_seconds`; return how many. An expiry that they excuse counts no longer."""
    gone = delete(drains).where(drains.c.announced_at < clock(conn, now) - kept_seconds)
    return len(conn.execute(gone.returning(drains.c.worker_id)).all())
