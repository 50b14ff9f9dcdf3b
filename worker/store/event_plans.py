"""An event with all that its publication is made of: the plan's jobs, their current results, the approvals that stand.

One read for any number of locales. Everything read is verified before use; a document that was altered in the database
stops this event alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    Connection,
    Dialect,
    RowMapping,
    Select,
    String,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    null,
    select,
)

from worker.domain.canonical import sha256_hex
from worker.domain.change import ChangeEvent
from worker.domain.delivery import ApprovedLocale
from worker.domain.errors import Blocked
from worker.domain.key import TrustSet
from worker.domain.result import check_result
from worker.store.approvals import COLUMNS, StoredApproval, approval_of, choose, stands, verify_approval
from worker.store.conditions import is_being_renewed
from worker.store.deliveries import is_spoken_for
from worker.store.engine import Moment, clock
from worker.store.prepared import prepared
from worker.store.schema import approvals, deliveries, events, jobs, plan_jobs, results
from worker.store.stored_documents import read_change, read_result

EVENT_TAMPERED = "release.event.tampered"
RESULT_TAMPERED = "release.result.tampered"


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job of the plan; `approvals` stand now for its current result, those that last longest first. Unverified."""

    job_id: str
    target_locale: str
    result_sha256: str | None
    result: str | None = field(repr=False)
    approvals: tuple[StoredApproval, ...] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class EventPlan:
    """An event and its jobs, in the order of their ids. `spoken_id` is its open or acknowledged delivery, if any.

    `is_renewing` says that this delivery is unsent and was asked to give way to one with renewed approvals.
    """

    event_id: str
    site_id: str
    source_id: str
    source_sequence: int
    plan_id: str
    event_sha256: str
    state: str
    document: str | None = field(repr=False)
    spoken_id: str | None
    spoken_payload: str | None = field(repr=False)
    is_renewing: bool
    jobs: tuple[PlannedJob, ...]


def load_plan(conn: Connection, event_id: str, *, now: float | None, with_texts: bool) -> EventPlan | None:
    """Return an event with its jobs in one statement, or None. Without texts the documents are left out."""
    statement, moment = (_with_texts if with_texts else _without_texts)(conn, now)
    rows = conn.execute(statement, {"event_id": event_id, **moment}).mappings().all()
    if not rows:
        return None
    first = rows[0]
    of_job: dict[str, list[RowMapping]] = {}
    for row in rows:
        of_job.setdefault(row["planned_job_id"], []).append(row)
    named = ("event_id", "source_id", "source_sequence", "plan_id", "event_sha256", "state", "document")
    return EventPlan(
        **{name: first[name] for name in named},
        site_id=first["event_site_id"],
        spoken_id=first["spoken_id"],
        spoken_payload=first["spoken_payload"],
        is_renewing=bool(first["is_renewing"]),
        jobs=tuple(_job(found) for found in of_job.values()),
    )


def verified_change(plan: EventPlan) -> ChangeEvent:
    """Return the change event of a plan that was loaded with texts, or raise `release.event.tampered`."""
    try:
        if plan.document is None or sha256_hex(plan.document) != plan.event_sha256:
            raise _tampered(EVENT_TAMPERED)
        change = read_change(plan.document)
    except Blocked:
        raise _tampered(EVENT_TAMPERED) from None
    stored = [(job.job_id, job.target_locale) for job in plan.jobs]
    same = (change.event_id, change.site_id, change.source_sequence, change.plan_id) == (
        plan.event_id,
        plan.site_id,
        plan.source_sequence,
        plan.plan_id,
    )
    if not same or stored != [(job.job_id, job.target_locale) for job in change.jobs]:
        raise _tampered(EVENT_TAMPERED)
    return change


def approved_locales(
    plan: EventPlan, change: ChangeEvent, chosen: Iterable[StoredApproval], trust: TrustSet
) -> tuple[ApprovedLocale, ...]:
    """Return what the publication says of each job, every result and approval verified against the event.

    `chosen` has one approval for each job of the plan, in its order. Raises `release.result.tampered` or
    `release.approval.tampered`.
    """
    found = []
    for planned, job, approval in zip(plan.jobs, change.jobs, chosen, strict=True):
        if planned.result is None or sha256_hex(planned.result) != planned.result_sha256:
            raise _tampered(RESULT_TAMPERED)
        try:
            result = read_result(planned.result)
            check_result(job, change, result)
        except Blocked:
            raise _tampered(RESULT_TAMPERED) from None
        signed = verify_approval(approval, trust)
        bound = (signed.site_id, signed.job_id, signed.result_sha256, signed.target_sha256, signed.target_locale)
        if bound != (plan.site_id, job.job_id, result.sha256, result.target_sha256, job.target_locale):
            raise _tampered("release.approval.tampered")
        found.append(
            ApprovedLocale(
                locale=job.target_locale,
                target_text=result.candidate,
                target_sha256=result.target_sha256,
                approval_id=signed.approval_id,
                approval_expires_at=signed.expires_at,
            )
        )
    return tuple(found)


def choose_approvals(
    plan: EventPlan, accepted: frozenset[str], *, is_renewed: bool = False
) -> list[StoredApproval | None]:
    """Return for each job the approval that stands for it under the accepted policies, or None where there is none.

    What the event's delivery names already is preferred, so that preparing again gives the same; else, and for its
    renewal, the one that lasts longest.
    """
    named = "" if is_renewed else plan.spoken_payload or ""
    found: list[StoredApproval | None] = []
    for job in plan.jobs:
        candidates = sorted(job.approvals, key=lambda one: f'"{one.approval_id}"' not in named)
        found.append(choose(candidates, result_sha256=job.result_sha256 or "", accepted=accepted))
    return found


@prepared
def _with_texts(bind: Dialect, now: Moment) -> Select[Any]:
    return _query(bind, now, with_texts=True)


@prepared
def _without_texts(bind: Dialect, now: Moment) -> Select[Any]:
    return _query(bind, now, with_texts=False)


def _query(bind: Dialect, now: Moment, *, with_texts: bool) -> Select[Any]:
    nothing = cast(null(), Text)
    others = plan_jobs.alias("others")
    first = select(func.min(others.c.job_id)).where(others.c.plan_id == events.c.plan_id).scalar_subquery()
    is_first = plan_jobs.c.job_id == first  # the event's own text travels once, not once for every job
    spoken = and_(deliveries.c.event_id == events.c.event_id, is_spoken_for())
    spoken_payload = select(deliveries.c.payload).where(spoken).correlate(events).scalar_subquery()
    return (
        select(
            events.c.event_id,
            events.c.site_id.label("event_site_id"),
            events.c.source_id,
            events.c.source_sequence,
            events.c.plan_id,
            events.c.event_sha256,
            events.c.state,
            case((is_first, events.c.document), else_=nothing).label("document")
            if with_texts
            else nothing.label("document"),
            select(deliveries.c.delivery_id).where(spoken).correlate(events).scalar_subquery().label("spoken_id"),
            select(is_being_renewed()).where(spoken).correlate(events).scalar_subquery().label("is_renewing"),
            case((is_first, spoken_payload), else_=nothing).label("spoken_payload")
            if with_texts
            else nothing.label("spoken_payload"),
            plan_jobs.c.job_id.label("planned_job_id"),
            plan_jobs.c.target_locale,
            jobs.c.current_result_sha256,
            (results.c.document if with_texts else nothing).label("result"),
            *(column.label(f"approval_{column.name}") for column in COLUMNS),
        )
        .select_from(events)
        .join(plan_jobs, plan_jobs.c.plan_id == events.c.plan_id)
        .outerjoin(jobs, jobs.c.job_id == plan_jobs.c.job_id)
        .outerjoin(
            results, and_(results.c.job_id == jobs.c.job_id, results.c.result_sha256 == jobs.c.current_result_sha256)
        )
        .outerjoin(
            approvals,
            and_(
                approvals.c.job_id == jobs.c.job_id,
                approvals.c.result_sha256 == jobs.c.current_result_sha256,
                stands(clock(bind, now)),
            ),
        )
        .where(events.c.event_id == bindparam("event_id", type_=String))
        .order_by(plan_jobs.c.job_id, approvals.c.expires_at.desc(), approvals.c.approval_id)
    )


def _job(rows: list[RowMapping]) -> PlannedJob:
    first = rows[0]
    standing = [
        approval_of({column.name: row[f"approval_{column.name}"] for column in COLUMNS})
        for row in rows
        if row["approval_approval_id"] is not None
    ]
    return PlannedJob(
        job_id=first["planned_job_id"],
        target_locale=first["target_locale"],
        result_sha256=first["current_result_sha256"],
        result=first["result"],
        approvals=tuple(standing),
    )


def _tampered(code: str) -> Blocked:
    return Blocked(code, "a stored document is not what was accepted; audit the event")
