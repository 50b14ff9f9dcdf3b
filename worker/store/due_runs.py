"""Which commands of release runs are due and were not woken lately. Wakes are stamped, never sent, here."""

from __future__ import annotations

from sqlalchemy import Connection, String, or_, select, text, update

from worker.store.engine import clock, json_rows, row_source
from worker.store.recovery import Found, longest_unwoken, unwoken_since
from worker.store.schema import DUE, run_commands

DueCommand = tuple[str, str, str]  # run id, step id, attempt id


def stamp_due_commands(conn: Connection, *, room: int, recovery_seconds: float, now: float | None) -> Found:
    """Return at most `room` commands that are due and were not woken lately, longest due first, and stamp them."""
    at = clock(conn, now)
    rows = conn.execute(
        select(
            run_commands.c.run_id,
            run_commands.c.step_id,
            run_commands.c.attempt_id,
            unwoken_since(run_commands).label("since"),
            at.label("at"),
        )
        .where(
            text(DUE),
            run_commands.c.next_attempt_at <= at,
            or_(run_commands.c.last_woken_at.is_(None), run_commands.c.last_woken_at <= at - recovery_seconds),
        )
        .order_by(run_commands.c.next_attempt_at, run_commands.c.created_at, run_commands.c.attempt_id)
        .limit(room)
        .with_for_update(skip_locked=True)
    ).all()
    if not rows:
        return Found()
    named = row_source(conn, "named", {"id": String}, "named")
    conn.execute(
        update(run_commands).where(run_commands.c.attempt_id.in_(select(named.c.id))).values(last_woken_at=at),
        {"named": json_rows([{"id": row.attempt_id} for row in rows])},
    )
    wakes = tuple({"run_id": row.run_id, "step_id": row.step_id, "attempt_id": row.attempt_id} for row in rows)
    return Found(wakes=wakes, unwoken_seconds=longest_unwoken(rows[0].at, [row.since for row in rows]))
