"""Asking again: evidence rows under a new revision, for locales whose approval ends, was revoked, or whose row failed.

Under the locks of the event's jobs and then of its row nothing else changes their results, approvals or deliveries, so
what is decided here by `domain.renewal` holds until the commit. The old rows stay as history. A delivery that is open
and unsent goes on to be sendable; it is marked, and gives way once its successor can be prepared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from sqlalchemy import Connection, RowMapping, select, update

from worker.domain.attempt import LEASED, PENDING, RETRY_WAIT
from worker.domain.canonical import parse_strict, sha256_hex
from worker.domain.change import ChangeEvent
from worker.domain.errors import Blocked
from worker.domain.evidence import build_request
from worker.domain.policy import SitePolicy
from worker.domain.renewal import RenewalKind, is_reopened
from worker.domain.turn import OUTCOME_UNKNOWN
from worker.store.coverage import has_current_approvals
from worker.store.deliveries import Delivery, find_delivery, lock_event
from worker.store.engine import is_sqlite, read_clock
from worker.store.event_plans import EVENT_TAMPERED
from worker.store.jobs import read_result
from worker.store.locale_standings import locale_standings, planned_locales, revisions_used
from worker.store.schema import deliveries, events, evidence, jobs, plan_jobs
from worker.store.stored_documents import MAX_STORED_BYTES, read_change
from worker.store.upserts import insert_into

IN_FLIGHT: Final = "evidence.renewal.in_flight"
ENDED: Final = "evidence.event_ended"
DELIVERED_ALREADY: Final = "evidence.event_has_delivery"


@dataclass(frozen=True, kw_only=True)
class Reopened:
    """A locale that is asked about again."""

    event_id: str
    job_id: str
    target_locale: str
    request_id: str
    evidence_revision: str


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """What became of one event: the locales asked about again, and the open delivery that will give way, if any."""

    event_id: str
    reopened: tuple[Reopened, ...] = ()
    delivery_id: str | None = None


def reopen(
    conn: Connection,
    event_id: str,
    kind: RenewalKind,
    policy: SitePolicy,
    *,
    job_id: str | None = None,
    every: bool = False,
    now: float | None,
) -> Renewal:
    """Ask again about those locales of an event that need it, or about none; see `domain.renewal`.

    Raises `coordinator.event_id.unknown`, `evidence.event_ended`, `evidence.renewal.in_flight` while a delivery is
    leased or in doubt, `cms.outcome_unknown` where one has to be reconciled first, `evidence.event_has_delivery` where
    an open delivery speaks for the event and no renewal was asked for. Safe to run concurrently with everything.
    """
    _lock_jobs(conn, event_id)
    state = lock_event(conn, event_id)
    if state is None:
        raise Blocked("coordinator.event_id.unknown", "there is no such event; see locseal releases list")
    if state != "open":
        raise Blocked(ENDED, f"the event is {state}; only what is not published yet needs evidence")
    at = read_clock(conn, now)
    delivery = _giving_way(conn, event_id, kind)
    rows = planned_locales(conn, event_id)
    standings = locale_standings(conn, event_id, rows, policy.accepted)
    chosen = [
        row
        for row in rows
        if job_id in {None, row["job_id"]}
        and is_reopened(
            kind, standings[row["job_id"]], now=at, within_seconds=policy.renews_within_seconds, every=every
        )
    ]
    reopened: tuple[Reopened, ...] = ()
    if chosen:
        change = _change(conn, event_id)
        renewed = {row["job_id"]: standings[row["job_id"]].row_renewed_at if kind == "retry" else at for row in chosen}
        reopened = _insert(conn, change, chosen, renewed, policy, at)
    if delivery is None or (not reopened and _is_covered(conn, delivery, at)):
        return Renewal(event_id=event_id, reopened=reopened)
    is_unsent = (deliveries.c.status.in_((PENDING, RETRY_WAIT)), deliveries.c.in_doubt.is_(False))
    asked = update(deliveries).where(deliveries.c.delivery_id == delivery.delivery_id, *is_unsent)
    if conn.execute(asked.values(renewal_asked_at=at)).rowcount != 1:
        raise _in_flight()  # it was claimed since it was read
    return Renewal(event_id=event_id, reopened=reopened, delivery_id=delivery.delivery_id)


def events_with_failed(conn: Connection, job_id: str) -> tuple[str, ...]:
    """Return the open events that have a failed evidence row of a job, in order."""
    rows = conn.execute(
        select(evidence.c.event_id)
        .join(events, events.c.event_id == evidence.c.event_id)
        .where(evidence.c.job_id == job_id, evidence.c.status == "failed", events.c.state == "open")
        .order_by(evidence.c.event_id)
        .distinct()
    )
    return tuple(rows.scalars())


def _lock_jobs(conn: Connection, event_id: str) -> None:
    """Lock the jobs of an event's plan in id order, before its own row, as intake does."""
    if is_sqlite(conn):  # BEGIN IMMEDIATE locked everything
        return
    of_plan = (
        select(plan_jobs.c.job_id)
        .join(events, events.c.plan_id == plan_jobs.c.plan_id)
        .where(events.c.event_id == event_id)
    )
    conn.execute(
        select(jobs.c.job_id).where(jobs.c.job_id.in_(of_plan)).order_by(jobs.c.job_id).with_for_update()
    ).all()


def _in_flight() -> Blocked:
    return Blocked(IN_FLIGHT, "the delivery is on its way or in doubt; once its outcome is known, ask again")


def _giving_way(conn: Connection, event_id: str, kind: RenewalKind) -> Delivery | None:
    """Return the open, unsent delivery that a renewal replaces, or None where the event has none; else refuse."""
    columns = (deliveries.c.status, deliveries.c.in_doubt, deliveries.c.last_error_code, deliveries.c.renewal_asked_at)
    rows = conn.execute(select(*columns).where(deliveries.c.event_id == event_id)).all()
    if any(row.last_error_code == OUTCOME_UNKNOWN or (row.status == "failed" and row.in_doubt) for row in rows):
        raise Blocked(OUTCOME_UNKNOWN, "nobody knows what the CMS has; first: locseal deliveries reconcile")
    if any(row.status == LEASED or row.in_doubt for row in rows):
        raise _in_flight()
    open_one = next((row for row in rows if row.status != "failed"), None)
    if open_one is None:
        return None
    if kind == "expiring" or (kind == "retry" and open_one.renewal_asked_at is None):
        raise Blocked(DELIVERED_ALREADY, "the event has an open delivery; see locseal evidence renew")
    return find_delivery(conn, event_id)


def _is_covered(conn: Connection, delivery: Delivery, at: float) -> bool:
    payload = parse_strict(delivery.payload, max_bytes=MAX_STORED_BYTES)
    return has_current_approvals(conn, [one["approval_id"] for one in payload["localizations"]], now=at)


def _change(conn: Connection, event_id: str) -> ChangeEvent:
    row = conn.execute(select(events.c.document, events.c.event_sha256).where(events.c.event_id == event_id)).one()
    if sha256_hex(row.document) != row.event_sha256:
        raise Blocked(EVENT_TAMPERED, "the stored event is not what was accepted; audit the event")
    return read_change(row.document)


def _insert(
    conn: Connection,
    change: ChangeEvent,
    chosen: Sequence[RowMapping],
    renewed: Mapping[str, float | None],
    policy: SitePolicy,
    at: float,
) -> tuple[Reopened, ...]:
    """Insert one row for each chosen locale, due now, under the next revision of its result."""
    used = revisions_used(conn, [(row["job_id"], row["current_result_sha256"]) for row in chosen])
    of_job = {job.job_id: job for job in change.jobs}
    opened = []
    for row in chosen:
        job = of_job[row["job_id"]]
        result = read_result(job, change, row["document"], row["current_result_sha256"])
        key = build_request(change, job, result, f"r{used[job.job_id] + 1}").key
        values = asdict(key) | {
            "site_id": change.site_id,
            "provider": policy.route(job.content_type),
            "max_attempts": policy.evidence_max_attempts,
            "renewed_at": renewed[job.job_id],
        }
        moments = dict.fromkeys(("next_attempt_at", "created_at", "updated_at", "last_woken_at"), at)
        conn.execute(insert_into(conn, evidence).values(status=PENDING, attempts=0, **values, **moments))
        opened.append(
            Reopened(
                event_id=change.event_id,
                job_id=job.job_id,
                target_locale=job.target_locale,
                request_id=key.request_id,
                evidence_revision=key.evidence_revision,
            )
        )
    return tuple(opened)
