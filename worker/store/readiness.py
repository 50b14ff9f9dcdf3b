"""Which events are ready: every job of the plan has a current approval, and no delivery speaks for the event yet.

Asked in a new read after the commit that may have made an event ready, never inside it: of two transactions that each
settle one of the two last locales, the later reader sees both. Being told twice is harmless, so nothing is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Select,
    String,
    and_,
    exists,
    literal_column,
    or_,
    select,
    text,
)

from worker.store.approvals import stands
from worker.store.conditions import is_being_renewed
from worker.store.engine import Bind, Moment, clock, json_rows, row_source
from worker.store.prepared import prepared
from worker.store.schema import OPEN_OR_ACKNOWLEDGED, approvals, deliveries, events, evidence, jobs, plan_jobs

ACCEPTED = "accepted"  # the bind parameter of the accepted policy digests


def ready_events(
    conn: Connection, job_ids: Iterable[str], accepted: Mapping[str, frozenset[str]], *, now: float | None
) -> tuple[str, ...]:
    """Return the ids of the ready events whose plans contain any of these jobs, in order, in one statement.

    `accepted` gives the policy digests that satisfy each site; events of a site that it does not name are not ready.
    """
    statement, moment = _ready_among(conn, now)
    parameters = {
        "settled": json_rows([{"job_id": job_id} for job_id in sorted(set(job_ids))]),
        ACCEPTED: accepted_rows(accepted),
        **moment,
    }
    return tuple(conn.execute(statement, parameters).scalars())


@prepared
def _ready_among(bind: Dialect, now: Moment) -> Select[Any]:
    """Build the statement of `ready_events`.

    Plans and events are found first, as tables of their own: PostgreSQL would rather judge every open event and join
    afterwards (51 ms against 3 with 120 open).
    """
    settled = row_source(bind, "settled", {"job_id": String}, "settled")
    touched = (
        select(plan_jobs.c.plan_id)
        .where(plan_jobs.c.job_id.in_(select(settled.c.job_id)))
        .distinct()
        .cte("touched")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    found = (
        select(events.c.event_id, events.c.plan_id, events.c.state)
        .join_from(touched, events, events.c.plan_id == touched.c.plan_id)
        .cte("found")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    ready = is_ready(bind, accepted_source(bind), now=now, rows=found)
    return select(found.c.event_id).where(ready).order_by(found.c.event_id)


def is_ready(bind: Bind, accepted: FromClause, *, now: Moment, rows: FromClause = events) -> ColumnElement[bool]:
    """Return the condition on `rows` that an event is open, wholly approved and without a delivery that stays.

    A delivery that is being renewed stays until every locale that was asked about again has a newer approval.
    `accepted` is a source of (site_id, policy_sha256), such as `accepted_source`; whoever executes binds `ACCEPTED`.
    `rows` are `events`, or some of them with their id, plan and state.
    """
    spoken_for = exists().where(
        deliveries.c.event_id == rows.c.event_id,
        text(OPEN_OR_ACKNOWLEDGED.replace("status", "deliveries.status")),
        or_(~is_being_renewed(), _lacks_renewal(bind, accepted, now=now, rows=rows)),
    )
    is_wanted = and_(rows.c.state == literal_column("'open'"), ~spoken_for.correlate(rows))
    return and_(is_wanted, is_approved(bind, accepted, now=now, rows=rows))


def _lacks_renewal(bind: Bind, accepted: FromClause, *, now: Moment, rows: FromClause) -> ColumnElement[bool]:
    """Return the condition on `rows` that a locale was asked about again and has no approval given since."""
    renewed = exists().where(
        approvals.c.job_id == evidence.c.job_id,
        approvals.c.result_sha256 == evidence.c.result_sha256,
        approvals.c.approved_at >= evidence.c.renewed_at,
        accepted.c.site_id == approvals.c.site_id,
        accepted.c.policy_sha256 == approvals.c.policy_sha256,
        stands(clock(bind, now)),
    )
    return (
        exists()
        .where(
            evidence.c.event_id == rows.c.event_id,
            evidence.c.renewed_at.is_not(None),
            jobs.c.job_id == evidence.c.job_id,
            jobs.c.current_result_sha256 == evidence.c.result_sha256,
            ~renewed.correlate(evidence),
        )
        .correlate(rows)
    )


def is_approved(bind: Bind, accepted: FromClause, *, now: Moment, rows: FromClause = events) -> ColumnElement[bool]:
    """Return the condition on `rows` that every job of an event's plan has a current approval; as in `is_ready`."""
    current = exists().where(
        jobs.c.job_id == plan_jobs.c.job_id,
        approvals.c.job_id == jobs.c.job_id,
        approvals.c.result_sha256 == jobs.c.current_result_sha256,
        accepted.c.site_id == approvals.c.site_id,
        accepted.c.policy_sha256 == approvals.c.policy_sha256,
        stands(clock(bind, now)),
    )
    lacking = exists().where(plan_jobs.c.plan_id == rows.c.plan_id, ~current.correlate(plan_jobs))
    planned = exists().where(plan_jobs.c.plan_id == rows.c.plan_id)
    return and_(planned.correlate(rows), ~lacking.correlate(rows))


def accepted_source(bind: Bind) -> FromClause:
    """Return the source of (site_id, policy_sha256) that is fed by the parameter `ACCEPTED`."""
    return row_source(bind, "accepted", {"site_id": String, "policy_sha256": String}, ACCEPTED)


def accepted_rows(accepted: Mapping[str, frozenset[str]]) -> str:
    """Return the value of the parameter `ACCEPTED`."""
    return json_rows(
        [
            {"site_id": site_id, "policy_sha256": digest}
            for site_id in sorted(accepted)
            for digest in sorted(accepted[site_id])
        ]
    )
