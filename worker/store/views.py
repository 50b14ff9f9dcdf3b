"""Read models for people: events with their locales, and what became of a submission. Nothing is judged here.

Lists are paged by key (`before`, the last row seen), newest first, so a page costs the same wherever it lies. No text,
receipt or token is ever selected. What the rows mean in one sentence is `domain.waiting`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import (
    JSON,
    ColumnElement,
    Connection,
    RowMapping,
    cast,
    column,
    select,
    table,
    type_coerce,
)

from worker.domain.attempt import LEASED, PENDING, RETRY_WAIT, SUCCEEDED
from worker.domain.breaker import CMS, PROVIDER
from worker.domain.policy import REVIEW_DEADLINE_SECONDS
from worker.domain.waiting import DeliveryFacts, EventFacts, LocaleFacts, LocaleState
from worker.store.approvals import StoredApproval, choose, standing_approvals
from worker.store.breakers import closures_of
from worker.store.delivery_views import deliveries_of, delivery_facts
from worker.store.engine import is_sqlite, read_clock
from worker.store.pauses import covering, pauses_in_force
from worker.store.schema import (
    events,
    evidence,
    jobs,
    plan_jobs,
    results,
    submissions,
)

STATUS = table("submission_status", column("document_sha256"), column("state"), column("code"), column("at"))


@dataclass(frozen=True, kw_only=True)
class SubmissionState:
    """What became of one document. `state` is accepted or rejected; `code` says why it was rejected."""

    document_sha256: str
    state: str
    code: str | None
    at: float


@dataclass(frozen=True, kw_only=True)
class KeptDocument:
    """An accepted document about an event, without its body."""

    document_sha256: str
    kind: str
    kid: str
    accepted_at: float


@dataclass(frozen=True, kw_only=True)
class EventView:
    """One event with everything that decides what it waits for, and the accepted documents about it."""

    event_id: str
    site_id: str
    website_version: str
    source_id: str
    source_sequence: int
    plan_id: str
    created_at: float
    facts: EventFacts
    deliveries: tuple[DeliveryFacts, ...]
    documents: tuple[KeptDocument, ...]


def submission_state(conn: Connection, document_sha256: str) -> SubmissionState | None:
    """Return what became of a document, or None while nobody has taken it in."""
    row = conn.execute(select(STATUS).where(STATUS.c.document_sha256 == document_sha256)).mappings().one_or_none()
    return None if row is None else SubmissionState(**row)


def find_event_view(
    conn: Connection,
    event_id: str,
    *,
    accepted: frozenset[str],
    is_guided: bool,
    review_deadline_seconds: float = REVIEW_DEADLINE_SECONDS,
    now: float | None = None,
) -> EventView | None:
    """Return one event, or None.

    `accepted` are the policy digests that satisfy its site now; `is_guided` and `review_deadline_seconds` are of its
    policy.
    """
    at = read_clock(conn, now)
    event = conn.execute(select(events).where(events.c.event_id == event_id)).mappings().one_or_none()
    if event is None:
        return None
    rows = deliveries_of(conn, event_id, now=now)
    speaking = rows[0] if rows else None
    is_open = speaking is not None and speaking["status"] in {"pending", "retry_wait"}
    locales = _locales(conn, event, accepted, review_deadline_seconds, at)
    routes = {one.route for one in locales if one.route is not None and one.state != "approved"}
    facts = EventFacts(
        event_id=event_id,
        state=event["state"],
        superseded_by=event["superseded_by"],
        since=event["updated_at"],
        now=at,
        locales=locales,
        delivery=None if speaking is None else delivery_facts(speaking),
        older_delivery_id=speaking["older_delivery_id"] if speaking is not None and is_open else None,
        pauses=covering(pauses_in_force(conn, now=at), event["site_id"], () if is_open else routes),
        closures=closures_of(conn, {(CMS, event["site_id"])} if is_open else {(PROVIDER, one) for one in routes}),
        needs_permit=is_guided and is_open and speaking is not None and not speaking["has_permit"],
    )
    kept = conn.execute(
        select(*(submissions.c[one.name] for one in fields(KeptDocument)))
        .where(submissions.c.event_id == event_id)
        .order_by(submissions.c.accepted_at, submissions.c.document_sha256)
    ).mappings()
    names = ("event_id", "site_id", "website_version", "source_id", "source_sequence", "plan_id", "created_at")
    return EventView(
        **{name: event[name] for name in names},
        facts=facts,
        deliveries=tuple(delivery_facts(row) for row in rows),
        documents=tuple(KeptDocument(**row) for row in kept),
    )


def site_of_event(conn: Connection, event_id: str) -> str | None:
    """Return the site of an event, or None where there is no such event."""
    site_id: str | None = conn.execute(select(events.c.site_id).where(events.c.event_id == event_id)).scalar()
    return site_id


def _locales(
    conn: Connection, event: RowMapping, accepted: frozenset[str], deadline_seconds: float, now: float
) -> tuple[LocaleFacts, ...]:
    """Return the locales of an event's plan, in order."""
    planned = (
        select(
            plan_jobs.c.job_id,
            plan_jobs.c.target_locale,
            jobs.c.current_result_sha256,
            _flag(conn, "human_review_required").label("human"),
            _flag(conn, "independent_review_required").label("independent"),
            results.c.created_at,
        )
        .select_from(
            plan_jobs.outerjoin(jobs, jobs.c.job_id == plan_jobs.c.job_id).outerjoin(
                results,
                (results.c.job_id == jobs.c.job_id) & (results.c.result_sha256 == jobs.c.current_result_sha256),
            )
        )
        .where(plan_jobs.c.plan_id == event["plan_id"])
        .order_by(plan_jobs.c.target_locale)
    )
    rows = conn.execute(planned).mappings().all()
    asked = {
        (row["job_id"], row["result_sha256"]): row
        for row in conn.execute(
            select(*(column for column in evidence.c if column.name != "lease_token"))
            .where(evidence.c.event_id == event["event_id"])
            .order_by(evidence.c.created_at, evidence.c.request_id)
        ).mappings()
    }
    standing = standing_approvals(conn, [row["job_id"] for row in rows], now=now)
    locales = []
    for row in rows:
        result_sha256 = row["current_result_sha256"]
        approval = (
            choose(standing.get(row["job_id"], ()), result_sha256=result_sha256, accepted=accepted)
            if result_sha256 is not None
            else None
        )
        locales.append(_locale(row, asked.get((row["job_id"], result_sha256)), approval, deadline_seconds, now))
    return tuple(locales)


def _locale(
    row: RowMapping, asked: RowMapping | None, approval: StoredApproval | None, deadline_seconds: float, now: float
) -> LocaleFacts:
    """Return one locale."""
    known: dict[str, Any] = {"target_locale": row["target_locale"], "job_id": row["job_id"], "need": _need(row)}
    if asked is not None:
        names = ("request_id", "evidence_revision", "attempts", "max_attempts", "next_attempt_at", "lease_owner")
        known |= {name: asked[name] for name in (*names, "lease_expires_at")}
        known |= {"code": asked["last_error_code"], "since": asked["updated_at"], "route": asked["provider"]}
        awaited = asked["awaited_since_at"]
        known |= {"awaited_since_at": awaited, "gives_up_at": awaited and awaited + deadline_seconds}
    if approval is not None:
        known |= {"approval_id": approval.approval_id, "approval_expires_at": approval.expires_at}
        return LocaleFacts(state="approved", **(known | {"since": approval.approved_at}))
    if row["current_result_sha256"] is None:
        return LocaleFacts(state="untranslated", **known)
    return LocaleFacts(state=_state(asked, now), **({"since": row["created_at"]} | known))


def _state(asked: RowMapping | None, now: float) -> LocaleState:
    """Return where the question about a locale stands that no approval answers."""
    if asked is None:
        return "unasked"
    if asked["status"] == SUCCEEDED:
        return "lapsed"
    if asked["status"] == LEASED:
        return "leased"
    if asked["status"] in {PENDING, RETRY_WAIT}:
        return "retrying" if asked["next_attempt_at"] > now else "due"
    return "failed"


def _need(row: RowMapping) -> Literal["quality receipt", "human receipt", "independent or human receipt"]:
    """Return the receipt that decides about a result."""
    if row["human"]:
        return "human receipt"
    return "independent or human receipt" if row["independent"] else "quality receipt"


def _flag(conn: Connection, member: str) -> ColumnElement[bool]:
    """Return a boolean member of the stored result, without reading its text."""
    document = type_coerce(results.c.document, JSON) if is_sqlite(conn) else cast(results.c.document, JSON)
    flag: ColumnElement[bool] = document[member].as_boolean()
    return flag
