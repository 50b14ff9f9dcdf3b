"""Which events are ready: every job of the plan has a current approval, and no delivery speaks for the event yet.

Asked in a new read after the commit that may have made an event ready, never inside it: of two transactions that each
settle one of the two last locales, the later reader sees both. Being told twice is harmless, so nothing is marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import ColumnElement, Connection, FromClause, String, and_, exists, or_, select, text

from worker.store.approvals import stands
from worker.store.conditions import is_being_renewed
from worker.store.engine import clock, json_rows, row_source
from worker.store.schema import OPEN_OR_ACKNOWLEDGED, approvals, deliveries, events, evidence, jobs, plan_jobs

ACCEPTED = "accepted"  # the bind parameter of the accepted policy digests


def ready_events(
    conn: Connection, job_ids: Iterable[str], accepted: Mapping[str, frozenset[str]], *, now: float | None
) -> tuple[str, ...]:
    """Return the ids of the ready events whose plans contain any of these jobs, in order, in one statement.

    `accepted` gives the policy digests that satisfy each site; events of a site that it does not name are not ready.
    """
    settled = row_source(conn, "settled", {"job_id": String}, "settled")
    touched = select(plan_jobs.c.plan_id).where(plan_jobs.c.job_id.in_(select(settled.c.job_id)))
    statement = (
        select(events.c.event_id)
        .where(events.c.plan_id.in_(touched), is_ready(conn, accepted_source(conn), now=now))
        .order_by(events.c.event_id)
    )
    parameters = {
        "settled": json_rows([{"job_id": job_id} for job_id in sorted(set(job_ids))]),
        ACCEPTED: accepted_rows(accepted),
    }
    return tuple(conn.execute(statement, parameters).scalars())


def is_ready(conn: Connection, accepted: FromClause, *, now: float | None) -> ColumnElement[bool]:
    """Return the condition on `events` that an event is open, wholly approved and without a delivery that stays.

    A delivery that is being renewed stays until every locale that was asked about again has a newer approval.
    `accepted` is a source of (site_id, policy_sha256), such as `accepted_source`; whoever executes binds `ACCEPTED`.
    """
    spoken_for = exists().where(
        deliveries.c.event_id == events.c.event_id,
        text(OPEN_OR_ACKNOWLEDGED.replace("status", "deliveries.status")),
        or_(~is_being_renewed(), _lacks_renewal(conn, accepted, now=now)),
    )
    return and_(events.c.state == "open", is_approved(conn, accepted, now=now), ~spoken_for.correlate(events))


def _lacks_renewal(conn: Connection, accepted: FromClause, *, now: float | None) -> ColumnElement[bool]:
    """Return the condition on `events` that a locale was asked about again and has no approval given since."""
    renewed = exists().where(
        approvals.c.job_id == evidence.c.job_id,
        approvals.c.result_sha256 == evidence.c.result_sha256,
        approvals.c.approved_at >= evidence.c.renewed_at,
        accepted.c.site_id == approvals.c.site_id,
        accepted.c.policy_sha256 == approvals.c.policy_sha256,
        stands(clock(conn, now)),
    )
    return (
        exists()
        .where(
            evidence.c.event_id == events.c.event_id,
            evidence.c.renewed_at.is_not(None),
            jobs.c.job_id == evidence.c.job_id,
            jobs.c.current_result_sha256 == evidence.c.result_sha256,
            ~renewed.correlate(evidence),
        )
        .correlate(events)
    )


def is_approved(conn: Connection, accepted: FromClause, *, now: float | None) -> ColumnElement[bool]:
    """Return the condition on `events` that every job of an event's plan has a current approval; as in `is_ready`."""
    current = exists().where(
        jobs.c.job_id == plan_jobs.c.job_id,
        approvals.c.job_id == jobs.c.job_id,
        approvals.c.result_sha256 == jobs.c.current_result_sha256,
        accepted.c.site_id == approvals.c.site_id,
        accepted.c.policy_sha256 == approvals.c.policy_sha256,
        stands(clock(conn, now)),
    )
    lacking = exists().where(plan_jobs.c.plan_id == events.c.plan_id, ~current.correlate(plan_jobs))
    planned = exists().where(plan_jobs.c.plan_id == events.c.plan_id)
    return and_(planned.correlate(events), ~lacking.correlate(events))


def accepted_source(conn: Connection) -> FromClause:
    """Return the source of (site_id, policy_sha256) that is fed by the parameter `ACCEPTED`."""
    return row_source(conn, "accepted", {"site_id": String, "policy_sha256": String}, ACCEPTED)


def accepted_rows(accepted: Mapping[str, frozenset[str]]) -> str:
    """Return the value of the parameter `ACCEPTED`."""
    return json_rows(
        [
            {"site_id": site_id, "policy_sha256": digest}
            for site_id in sorted(accepted)
            for digest in sorted(accepted[site_id])
        ]
    )
