"""Open events whose approvals end soon, found again without any message, a bounded number at each look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy import Connection, Float, RowMapping, String, exists, or_, select, text, update

from worker.domain.turn import OUTCOME_UNKNOWN
from worker.store.engine import clock, json_rows, row_source
from worker.store.schema import approvals, deliveries, events, jobs, plan_jobs, sweeps

RENEWALS: Final = "renewals"  # the name of this walk in `sweeps`
EVENT_ROWS: Final = 1000  # open events one look takes in


def expiring_events(
    conn: Connection, within: Callable[[str], float], *, room: int, now: float | None
) -> tuple[str, ...]:
    """Return at most `room` open events without a delivery that have an approval to renew by itself.

    Walks the open events round and round, a bounded number at each call. `within` gives the seconds before its end at
    which an approval of a site is renewed, 0 for never. What is found is judged again by `reopen`.
    """
    window = _window(conn, now)
    leads = {site_id: within(site_id) for site_id in {row["site_id"] for row in window}}
    looked = [
        {"event_id": row["event_id"], "lead": leads[row["site_id"]]} for row in window if leads[row["site_id"]] > 0
    ]
    if not looked:
        return ()
    at = clock(conn, now)
    source = row_source(conn, "looked", {"event_id": String, "lead": Float}, "looked")
    of_job = (approvals.c.job_id == jobs.c.job_id, approvals.c.result_sha256 == jobs.c.current_result_sha256)
    not_revoked = approvals.c.revoked_at.is_(None)
    ends = exists().where(*of_job, not_revoked, approvals.c.expires_at <= at + source.c.lead)
    lasts = exists().where(*of_job, not_revoked, approvals.c.expires_at > at + source.c.lead)
    held = exists().where(
        deliveries.c.event_id == events.c.event_id,
        or_(
            deliveries.c.status != "failed",
            deliveries.c.in_doubt.is_(True),
            deliveries.c.last_error_code == OUTCOME_UNKNOWN,
        ),
    )
    found = (
        select(events.c.event_id)
        .select_from(source)
        .join(events, events.c.event_id == source.c.event_id)
        .join(plan_jobs, plan_jobs.c.plan_id == events.c.plan_id)
        .join(jobs, jobs.c.job_id == plan_jobs.c.job_id)
        .where(ends, ~lasts, ~held, events.c.state == "open")
        .order_by(events.c.event_id)
        .distinct()
        .limit(room)
    )
    return tuple(conn.execute(found, {"looked": json_rows(looked)}).scalars())


def _window(conn: Connection, now: float | None) -> Sequence[RowMapping]:
    """Return the next open events of the walk and move its cursor; the turn's row is there."""
    cursor = conn.execute(select(sweeps.c.cursor).where(sweeps.c.name == RENEWALS)).scalar_one_or_none() or ""
    following = (
        select(events.c.event_id, events.c.site_id)
        .where(text("state = 'open'"), events.c.event_id > cursor)
        .order_by(events.c.event_id)
        .limit(EVENT_ROWS)
    )
    window = conn.execute(following).mappings().all()
    follows = window[-1]["event_id"] if len(window) == EVENT_ROWS else ""
    conn.execute(update(sweeps).where(sweeps.c.name == RENEWALS).values(cursor=follows, swept_at=clock(conn, now)))
    return window
