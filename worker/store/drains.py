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

KEPT_SECONDS: Final = 2 * 72 * 3600.0  # twice the span over which expiries count, so that none outlives its excuse


def announce_drain(conn: Connection, worker_id: str, *, now: float | None) -> bool:
    """Record that a worker takes nothing more; false when it had said so before. The first time stays.

    Forgets announcements that nothing needs any more, so that the table never grows beyond some days of restarts.
    """
    prune_drains(conn, now=now)
    row = insert_into(conn, drains).values(worker_id=worker_id, announced_at=read_clock(conn, now))
    return conn.execute(row.on_conflict_do_nothing().returning(drains.c.worker_id)).one_or_none() is not None


def drained_among(conn: Connection, worker_ids: Collection[str]) -> frozenset[str]:
    """Return those of these workers that announced their end."""
    if not worker_ids:
        return frozenset()
    found = select(drains.c.worker_id).where(drains.c.worker_id.in_(sorted(worker_ids)))
    return frozenset(conn.execute(found).scalars())


def has_drained(worker_id: ColumnElement[Any], by: ColumnElement[Any] | None = None) -> ColumnElement[bool]:
    """Return the condition that the worker named in a column announced its end, where `by` is given until that time.

    For queries over leases and setbacks: what a lease did before its holder began to drain is not excused.
    """
    said = (
        [drains.c.worker_id == worker_id]
        if by is None
        else [drains.c.worker_id == worker_id, drains.c.announced_at <= by]
    )
    return exists().where(*said).correlate_except(drains)


def prune_drains(conn: Connection, *, now: float | None) -> int:
    """Forget announcements older than `KEPT_SECONDS`; return how many. An expiry that they excuse counts no longer."""
    gone = delete(drains).where(drains.c.announced_at < clock(conn, now) - KEPT_SECONDS)
    return len(conn.execute(gone.returning(drains.c.worker_id)).all())
