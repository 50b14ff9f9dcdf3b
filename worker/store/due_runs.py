"""Which commands of release runs are due and were not woken lately. Wakes are stamped, never sent, here."""

from __future__ import annotations

from sqlalchemy import Connection, or_, select, text, update

from worker.store.engine import clock
from worker.store.schema import DUE, run_commands

DueCommand = tuple[str, str, str]  # run id, step id, attempt id


def stamp_due_commands(
    conn: Connection, *, room: int, recovery_seconds: float, now: float | None
) -> tuple[DueCommand, ...]:
    """Return at most `room` commands that are due and were not woken lately, longest due first, and stamp them."""
    at = clock(conn, now)
    due = (
        select(run_commands.c.attempt_id)
        .where(
            text(DUE),
            run_commands.c.next_attempt_at <= at,
            or_(run_commands.c.last_woken_at.is_(None), run_commands.c.last_woken_at <= at - recovery_seconds),
        )
        .order_by(run_commands.c.next_attempt_at, run_commands.c.created_at, run_commands.c.attempt_id)
        .limit(room)
        .with_for_update(skip_locked=True)
    )
    stamped = (
        update(run_commands)
        .where(run_commands.c.attempt_id.in_(due))
        .values(last_woken_at=at)
        .returning(run_commands.c.run_id, run_commands.c.step_id, run_commands.c.attempt_id)
    )
    return tuple(sorted(tuple(row) for row in conn.execute(stamped)))
