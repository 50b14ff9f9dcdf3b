"""Whether due work waits that a worker could take now, for its watch over itself. Reads only; nothing is locked here.

What a pause, an open breaker or a full limit keeps back is not seen, nor what a release run does not permit. Work counts
only once it has been due for some time: until then it is merely new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, Float, and_, literal_column, or_, select, text

from worker.domain.breaker import CMS
from worker.domain.limits import FleetLimits
from worker.store.breakers import is_shut_off
from worker.store.due_evidence import ranked_due
from worker.store.due_runs import DueCommand
from worker.store.engine import clock, json_rows
from worker.store.limits import room_of, room_parameters
from worker.store.pauses import is_paused
from worker.store.permits import has_permit
from worker.store.schema import DUE, WAKE_ORDER, deliveries, evidence, run_commands

DELIVERY_ROWS: Final = 1000  # due deliveries that one look reads
NOBODY: Final = json_rows([])


def overdue_evidence(conn: Connection, *, seconds: float, limits: FleetLimits, now: float | None) -> str | None:
    """Return the event of the row that a claim would take first, if it has been due for so long; None without one.

    The claim's own choice, with its fairness, without its locks. What may only be probed is not seen.
    """
    at = clock(conn, now) - seconds
    ranked = ranked_due(conn, at, is_bounded=limits.is_any).subquery("ranked")
    first = (
        select(evidence.c.event_id)
        .join(ranked, ranked.c.request_id == evidence.c.request_id)
        .order_by(ranked.c.place)
        .limit(1)
    )
    given = {"limit": 1, "spare": 0, "preferred": "", "blocked_providers": NOBODY, "blocked_sites": NOBODY}
    if limits.is_any:
        given |= room_parameters(room_of(conn, limits, now=now))
    return conn.execute(first, given).scalar_one_or_none()


def overdue_delivery(
    conn: Connection, *, seconds: float, is_guided: Callable[[str], bool], now: float | None
) -> str | None:
    """Return the event of a delivery that has been due for so long and may be visited; None without one."""
    at = clock(conn, now)
    order = literal_column(WAKE_ORDER, Float)
    rows = conn.execute(
        select(
            deliveries.c.event_id,
            deliveries.c.site_id,
            or_(deliveries.c.in_doubt.is_(True), has_permit(at)).label("is_permitted"),
            or_(
                and_(deliveries.c.in_doubt.is_(False), is_paused(deliveries.c.site_id, None, at)),
                is_shut_off(CMS, deliveries.c.site_id, at),
            ).label("is_held"),
        )
        .where(text(DUE), order <= at, deliveries.c.next_attempt_at <= at - seconds)
        .order_by(order, deliveries.c.delivery_id)
        .limit(DELIVERY_ROWS)
    )
    may = (row.event_id for row in rows if not row.is_held and (row.is_permitted or not is_guided(row.site_id)))
    return next(may, None)


def overdue_command(conn: Connection, *, seconds: float, now: float | None) -> DueCommand | None:
    """Return a command of a release run that has been due for so long; None without one."""
    rows = conn.execute(
        select(run_commands.c.run_id, run_commands.c.step_id, run_commands.c.attempt_id)
        .where(text(DUE), run_commands.c.next_attempt_at <= clock(conn, now) - seconds)
        .order_by(run_commands.c.next_attempt_at, run_commands.c.created_at, run_commands.c.attempt_id)
        .limit(1)
    ).all()
    return (rows[0].run_id, rows[0].step_id, rows[0].attempt_id) if rows else None
