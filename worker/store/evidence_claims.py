"""The steps of the evidence machine inside one transaction: what a claim does in its order, what a settle asks first.

Who calls has judged the arguments (`evidence`); who leaves rows to others than one at a time is in `due_evidence`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, RowMapping, select, update

from worker.domain.attempt import FAILED, LEASED, PENDING, SUCCEEDED
from worker.domain.errors import Blocked, Invalid
from worker.domain.evidence import EvidenceClaim, EvidenceKey
from worker.store.engine import read_clock
from worker.store.leases import EVIDENCE, LEASE_CLEARED
from worker.store.schema import evidence
from worker.store.upserts import insert_into

BINDING: Final = ("event_id", "plan_id", "job_id", "result_sha256", "evidence_revision")


def claim_row(
    conn: Connection,
    key: EvidenceKey,
    *,
    worker_id: str,
    now: float | None,
    lease_seconds: float,
    max_attempts: int,
) -> EvidenceClaim | Blocked | None:
    """Take the steps of a claim in their order; a refusal that must not undo an expiry is returned, not raised."""
    row = EVIDENCE.lock(conn, key.request_id)
    if row is None:
        _insert(conn, key, now=now, max_attempts=max_attempts)
        row = EVIDENCE.lock(conn, key.request_id)  # ours, or that of whoever was quicker
    if row is None or any(row[name] != getattr(key, name) for name in BINDING):
        raise Blocked("evidence.state.binding_mismatch", "this request id and this binding do not belong together")
    if row["max_attempts"] != max_attempts:
        raise Blocked("evidence.state.attempt_policy_changed", "a row keeps the bound on attempts it was made with")
    at = read_clock(conn, now)  # after the wait for the row's lock
    if not at < at + lease_seconds:
        raise Invalid("evidence.lease.invalid", "at that time a float cannot hold so short a lease")
    if row["status"] == LEASED and row["lease_expires_at"] <= at:
        EVIDENCE.expire_rows(conn, [row], now=at)
        row = EVIDENCE.lock(conn, key.request_id)
        assert row is not None
    if row["status"] == SUCCEEDED:
        return Blocked("evidence.revision.already_consumed", "this revision was used; ask under a new one")
    if row["status"] == FAILED:
        return Blocked("evidence.attempts_exhausted", "no attempt is left; see locseal evidence retry")
    if row["status"] == LEASED or row["next_attempt_at"] > at:
        return None
    if row["attempts"] >= row["max_attempts"]:  # only a row written by hand waits with no attempt left
        return Blocked("evidence.attempts_exhausted", "no attempt is left; see locseal evidence retry")
    taken = EVIDENCE.take(conn, key.request_id, worker_id=worker_id, lease_seconds=lease_seconds, now=at)
    if taken is None:
        return Blocked("evidence.claim.lost", "another worker was quicker; look again", retryable=True)
    return claim_of(taken)


def claim_of(row: RowMapping) -> EvidenceClaim:
    """Return the claim that a leased row stands for."""
    return EvidenceClaim(
        request_id=row["request_id"],
        lease_owner=row["lease_owner"],
        lease_token=row["lease_token"],
        lease_expires_at=float(row["lease_expires_at"]),  # SQLite returns a whole one as an int
        attempt=row["attempts"],
        max_attempts=row["max_attempts"],
    )


def key_of(row: RowMapping) -> EvidenceKey:
    """Return the question that a row asks."""
    return EvidenceKey(request_id=row["request_id"], **{name: row[name] for name in BINDING})


def _insert(conn: Connection, key: EvidenceKey, *, now: float | None, max_attempts: int) -> None:
    """Insert a row, pending and due now, unless its id or its binding is there already."""
    at = read_clock(conn, now)
    conn.execute(
        insert_into(conn, evidence)
        .values(
            request_id=key.request_id,
            **{name: getattr(key, name) for name in BINDING},
            status=PENDING,
            attempts=0,
            max_attempts=max_attempts,
            next_attempt_at=at,
            created_at=at,
            updated_at=at,
        )
        .on_conflict_do_nothing()
    )


def has_succeeded(conn: Connection, claim: EvidenceClaim) -> bool:
    """Tell whether the row of a claim succeeded already, under whoever's claim."""
    row = EVIDENCE.lock(conn, claim.request_id)
    return row is not None and row["status"] == SUCCEEDED


def check_lease(conn: Connection, claim: EvidenceClaim, now: float | None) -> float:
    """Refuse a claim whose lease is another's or over; return the time (seconds) by which it was judged."""
    row = EVIDENCE.lock(conn, claim.request_id)
    if row is None or (row["lease_owner"], row["lease_token"]) != (claim.lease_owner, claim.lease_token):
        raise Blocked("evidence.lease_lost", "the row is not leased under this claim (any more); drop the work")
    at = read_clock(conn, now)
    if row["lease_expires_at"] <= at:
        raise Blocked("evidence.lease_expired", "the lease ran out before the attempt was finished; drop the work")
    return at


def mark_approved(
    conn: Connection, event_id: str, plan_id: str, job_id: str, result_sha256: str, *, now: float | None
) -> None:
    """Let every row of a job of an event succeed, or none of them."""
    of_job = (evidence.c.event_id == event_id, evidence.c.plan_id == plan_id, evidence.c.job_id == job_id)
    query = select(evidence).where(*of_job).order_by(evidence.c.request_id).with_for_update()
    rows = [EVIDENCE.check(row) for row in conn.execute(query).mappings()]
    if any(row["result_sha256"] != result_sha256 for row in rows):
        raise Blocked("evidence.state.binding_mismatch", "a row of this job is about another result; nothing changed")
    at = read_clock(conn, now)
    conn.execute(
        update(evidence)
        .where(*of_job, evidence.c.result_sha256 == result_sha256, evidence.c.status != SUCCEEDED)
        .values(status=SUCCEEDED, next_attempt_at=at, updated_at=at, last_error_code=None, **LEASE_CLEARED)
    )
