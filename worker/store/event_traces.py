"""The trace of each event as a row, kept beside the work so that whoever goes on with an event goes on with its trace.

Written by intake where traces are on, never changed; without one an event has no trace.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, String, select

from worker.domain.trace import TraceContext, parse_traceparent
from worker.store.engine import clock, json_rows, row_source
from worker.store.schema import event_traces
from worker.store.upserts import insert_into


def keep_trace(conn: Connection, event_id: str, context: TraceContext, *, now: float | None) -> bool:
    """Keep the trace of an event; false where it has one already, which stays. In the transaction of its intake."""
    row = insert_into(conn, event_traces).values(
        event_id=event_id, traceparent=context.traceparent(), began_at=clock(conn, now)
    )
    kept = conn.execute(row.on_conflict_do_nothing().returning(event_traces.c.event_id))
    return kept.first() is not None


def traces_of(conn: Connection, event_ids: Iterable[str]) -> dict[str, TraceContext]:
    """Return the traces of some events, in one statement; events without one are left out."""
    named = row_source(conn, "named", {"event_id": String}, "named")
    rows = conn.execute(
        select(event_traces.c.event_id, event_traces.c.traceparent).where(
            event_traces.c.event_id.in_(select(named.c.event_id))
        ),
        {"named": json_rows([{"event_id": one} for one in sorted(set(event_ids))])},
    )
    found = {row.event_id: parse_traceparent(row.traceparent) for row in rows}
    return {event_id: context for event_id, context in found.items() if context is not None}
