"""Approvals as people look at them and revoke them: lists, what one of them holds up, and the one thing that ends it.

Read only, but for `revoke`. No receipt and no text is ever selected; payloads are only searched for an id.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import Boolean, ColumnElement, Connection, Select, and_, func, or_, select, tuple_, update

from worker.domain.attempt import LEASED
from worker.store.engine import clock, read_clock
from worker.store.schema import approvals, deliveries, events, jobs, plan_jobs

ApprovalState = Literal["standing", "expired", "revoked", "replaced"]
STATES: tuple[ApprovalState, ...] = ("standing", "expired", "revoked", "replaced")


@dataclass(frozen=True, kw_only=True)
class ApprovalLine:
    """One approval of a list. `state` is judged at the time of the look; `replaced` is of a result no longer current."""

    approval_id: str
    job_id: str
    site_id: str
    target_locale: str | None
    result_sha256: str
    request_id: str
    policy_sha256: str
    approved_at: float
    expires_at: float
    revoked_at: float | None
    revoked_by: str | None
    revoked_reason: str | None
    kid: str
    state: ApprovalState


@dataclass(frozen=True, kw_only=True)
class StoppedDelivery:
    """An unpublished delivery that names an approval. `is_live_perhaps`: its bytes may be at the CMS already."""

    delivery_id: str
    event_id: str
    status: str
    is_live_perhaps: bool


@dataclass(frozen=True, kw_only=True)
class Consequence:
    """What revoking an approval does: the deliveries it stops, and the open events that lose their coverage."""

    approval: ApprovalLine
    deliveries: tuple[StoppedDelivery, ...]
    events: tuple[str, ...]
    other_approval_ids: tuple[str, ...]  # of the same result, which go on to stand


def list_approvals(
    conn: Connection,
    *,
    limit: int,
    before: tuple[float, str] | None = None,
    event_id: str | None = None,
    job_id: str | None = None,
    site_id: str | None = None,
    state: ApprovalState | None = None,
    expires_within_seconds: float | None = None,
    now: float | None = None,
) -> tuple[ApprovalLine, ...]:
    """Return approvals, those that last longest first. `before` is (`expires_at`, `approval_id`) of the last one seen."""
    at = read_clock(conn, now)
    page = _lines()
    if event_id is not None:
        of_plan = select(plan_jobs.c.job_id).join(events, events.c.plan_id == plan_jobs.c.plan_id)
        page = page.where(approvals.c.job_id.in_(of_plan.where(events.c.event_id == event_id)))
    for name, value in (("job_id", job_id), ("site_id", site_id)):
        if value is not None:
            page = page.where(approvals.c[name] == value)
    if state is not None:
        page = page.where(_is(state, at))
    if expires_within_seconds is not None:
        page = page.where(_is("standing", at), approvals.c.expires_at <= at + expires_within_seconds)
    if before is not None:
        page = page.where(tuple_(approvals.c.expires_at, approvals.c.approval_id) < tuple_(*before))
    page = page.order_by(approvals.c.expires_at.desc(), approvals.c.approval_id.desc()).limit(limit)
    return tuple(_line(dict(row), at) for row in conn.execute(page).mappings())


def consequence_of_revoking(conn: Connection, approval_id: str, *, now: float | None = None) -> Consequence | None:
    """Return what revoking an approval would do, or None where there is no such approval."""
    at = read_clock(conn, now)
    found = conn.execute(_lines().where(approvals.c.approval_id == approval_id)).mappings().one_or_none()
    if found is None:
        return None
    approval = _line(dict(found), at)
    of_events = (
        select(events.c.event_id)
        .join(plan_jobs, plan_jobs.c.plan_id == events.c.plan_id)
        .where(plan_jobs.c.job_id == approval.job_id)
    )
    named = deliveries.c.payload.contains(f'"approval_id":"{approval_id}"')
    stopped = conn.execute(
        select(deliveries.c.delivery_id, deliveries.c.event_id, deliveries.c.status, deliveries.c.in_doubt)
        .where(
            deliveries.c.event_id.in_(of_events),
            or_(deliveries.c.status.in_(("pending", "retry_wait", LEASED)), deliveries.c.in_doubt.is_(True)),
            named,
        )
        .order_by(deliveries.c.event_id, deliveries.c.delivery_id)
    ).all()
    others = conn.execute(
        select(approvals.c.approval_id)
        .where(
            approvals.c.job_id == approval.job_id,
            approvals.c.result_sha256 == approval.result_sha256,
            approvals.c.approval_id != approval_id,
            approvals.c.revoked_at.is_(None),
            approvals.c.expires_at > at,
        )
        .order_by(approvals.c.approval_id)
    ).scalars()
    waiting = conn.execute(of_events.where(events.c.state == "open").order_by(events.c.event_id)).scalars()
    return Consequence(
        approval=approval,
        deliveries=tuple(
            StoppedDelivery(
                delivery_id=row.delivery_id,
                event_id=row.event_id,
                status=row.status,
                is_live_perhaps=row.status == LEASED or bool(row.in_doubt),
            )
            for row in stopped
        ),
        events=tuple(waiting),
        other_approval_ids=tuple(others),
    )


def revoke(conn: Connection, approval_id: str, *, reason: str, operator: str, now: float | None) -> bool:
    """End an approval for ever; false where it had been revoked before, which stays as it was."""
    ended = (
        update(approvals)
        .where(approvals.c.approval_id == approval_id, approvals.c.revoked_at.is_(None))
        .values(revoked_at=clock(conn, now), revoked_reason=reason, revoked_by=operator)
    )
    return conn.execute(ended).rowcount == 1


def _lines() -> Select[Any]:
    names = [one.name for one in fields(ApprovalLine) if one.name not in {"state", "target_locale"}]
    is_current: ColumnElement[bool] = func.coalesce(
        jobs.c.current_result_sha256 == approvals.c.result_sha256, False, type_=Boolean
    )
    columns = [approvals.c[name] for name in names]
    return select(*columns, jobs.c.target_locale, is_current.label("is_current")).outerjoin_from(
        approvals, jobs, jobs.c.job_id == approvals.c.job_id
    )


def _is(state: ApprovalState, at: float) -> ColumnElement[bool]:
    is_replaced = jobs.c.current_result_sha256.is_distinct_from(approvals.c.result_sha256)
    not_revoked = approvals.c.revoked_at.is_(None)
    conditions: dict[str, ColumnElement[bool]] = {
        "revoked": ~not_revoked,
        "replaced": and_(not_revoked, is_replaced),
        "expired": and_(not_revoked, ~is_replaced, approvals.c.expires_at <= at),
        "standing": and_(not_revoked, ~is_replaced, approvals.c.expires_at > at),
    }
    return conditions[state]


def _line(row: dict[str, Any], at: float) -> ApprovalLine:
    is_current = row.pop("is_current")
    state: ApprovalState = "standing"
    if row["revoked_at"] is not None:
        state = "revoked"
    elif not is_current:
        state = "replaced"
    elif row["expires_at"] <= at:
        state = "expired"
    return ApprovalLine(**row, state=state)
