"""Evidence rows as workers, audits and tools drive them: claim, settle, approve, look. The public surface, kept stable.

Every operation checks its arguments first, then the database's columns (once per store), then the stored row; each
refusal has a stable code and writes nothing, but for the expiry of a lease that a claim met. The rows need no event,
plan or job rows. Operations may run concurrently with themselves and with everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, Engine, RowMapping, inspect, select, update
from sqlalchemy.types import TypeEngine

from worker.domain.attempt import (
    FAILED,
    LEASED,
    PENDING,
    SUCCEEDED,
    require_attempts_bound,
    require_lease_seconds,
)
from worker.domain.errors import Blocked, Invalid, is_error_code
from worker.domain.evidence import EvidenceClaim, EvidenceKey, EvidenceStatus
from worker.domain.identifier import require_hash, require_time, require_token
from worker.store.engine import read_clock, reading, writing
from worker.store.leases import EVIDENCE, LEASE_CLEARED
from worker.store.schema import evidence
from worker.store.setbacks import Ending
from worker.store.upserts import insert_into

BINDING: Final = ("event_id", "plan_id", "job_id", "result_sha256", "evidence_revision")
STATUS_COLUMNS: Final = (
    "request_id",
    *BINDING,
    "status",
    "attempts",
    "max_attempts",
    "next_attempt_at",
    "lease_expires_at",
    "last_error_code",
)


class EvidenceStore:
    """The bounded-attempt machine over evidence rows. Safe to share between threads; holds no state of a row."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_schema_known = False

    def claim(
        self, key: EvidenceKey, *, worker_id: str, now: float | None = None, lease_seconds: float, max_attempts: int
    ) -> EvidenceClaim | None:
        """Lease the row of a key to a worker, inserting it first if need be; None when it is leased or not due.

        `now` and `lease_seconds` are seconds; `now=None` asks the database's clock. A lease that ran out is taken away
        from its holder first, which stays stored even when the claim is then refused.
        """
        _check_key(key)
        require_token(worker_id, "evidence.worker_id.invalid")
        moment = _optional_time(now)
        seconds = require_lease_seconds(lease_seconds)
        bound = require_attempts_bound(max_attempts)
        if moment is not None and not moment < moment + seconds:
            raise Invalid("evidence.lease.invalid", "at that time a float cannot hold so short a lease")
        self._require_schema()

        def work(conn: Connection) -> EvidenceClaim | Blocked | None:
            return _claim(conn, key, worker_id=worker_id, now=moment, lease_seconds=seconds, max_attempts=bound)

        outcome = writing(self._engine, work)
        if isinstance(outcome, Blocked):  # raised only now, so that the expiry stays stored
            raise outcome
        return outcome

    def succeed(self, claim: EvidenceClaim, *, now: float | None = None) -> None:
        """Let the claimed attempt succeed; do nothing on a row that succeeded already.

        Raises `evidence.lease_lost`, `evidence.lease_expired` or `evidence.finish_lost`; nothing is written then.
        """
        _check_claim(claim)
        moment = _optional_time(now)
        ending = _ending(claim)

        def work(conn: Connection) -> bool:
            if _has_succeeded(conn, claim):
                return True
            at = _check_lease(conn, claim, moment)
            return bool(EVIDENCE.succeed(conn, [ending], now=at))

        self._settle(work)

    def fail(
        self,
        claim: EvidenceClaim,
        code: str,
        *,
        retryable: bool,
        not_before: float | None = None,
        now: float | None = None,
    ) -> None:
        """Let the claimed attempt fail with a stable code; do nothing on a row that succeeded already.

        The row waits 5, 10, 20, ... seconds, at most 3600, and `not_before` (a time) may only lengthen that, likewise
        up to 3600; it fails for good when the failure is not retryable or no attempt is left. Raises like `succeed`.
        """
        _check_claim(claim)
        _check_failure(code, retryable)
        ending = _ending(claim, code=code, is_retryable=retryable, not_before=_optional_time(not_before))
        moment = _optional_time(now)

        def work(conn: Connection) -> bool:
            if _has_succeeded(conn, claim):
                return True
            at = _check_lease(conn, claim, moment)
            return bool(EVIDENCE.fail(conn, [ending], now=at))

        self._settle(work)

    def release(self, claim: EvidenceClaim, code: str, *, not_before: float, now: float | None = None) -> None:
        """Hand the claimed row back, due at `not_before` (a time), without counting the attempt. Raises like `succeed`.

        For work whose call was never begun, an answer "accepted, not yet", and a breaker's probe that met a transport
        fault; whoever calls decides that.
        """
        _check_claim(claim)
        _check_failure(code, True)
        ending = _ending(claim, code=code, not_before=require_time(not_before))
        moment = _optional_time(now)

        def work(conn: Connection) -> bool:
            at = _check_lease(conn, claim, moment)
            return bool(EVIDENCE.release(conn, [ending], now=at))

        self._settle(work)

    def mark_approved(
        self, event_id: str, plan_id: str, job_id: str, result_sha256: str, *, now: float | None = None
    ) -> None:
        """Let every row of a job of an event succeed, whatever its state and revision: all of them, or none.

        Raises `evidence.state.binding_mismatch` when one of them is about another result. Rows that succeeded already
        stay as they are.
        """
        require_token(event_id, "coordinator.event_id.invalid")
        require_token(plan_id, "evidence.plan_id.invalid")
        require_token(job_id, "evidence.job_id.invalid")
        require_hash(result_sha256, "evidence.result_sha256.invalid")
        moment = _optional_time(now)
        self._require_schema()
        writing(self._engine, lambda conn: _mark_approved(conn, event_id, plan_id, job_id, result_sha256, now=moment))

    def statuses(self, event_id: str) -> tuple[EvidenceStatus, ...]:
        """Return the rows of an event, by creation and then id, without content and without lease tokens."""
        require_token(event_id, "coordinator.event_id.invalid")
        self._require_schema()
        query = (
            select(evidence)
            .where(evidence.c.event_id == event_id)
            .order_by(evidence.c.created_at, evidence.c.request_id)
        )
        with reading(self._engine) as conn:
            rows = conn.execute(query).mappings().all()
        return tuple(EvidenceStatus(**{name: EVIDENCE.check(row)[name] for name in STATUS_COLUMNS}) for row in rows)

    def _settle(self, work: Callable[[Connection], bool]) -> None:
        self._require_schema()
        if not writing(self._engine, work):
            raise Blocked("evidence.finish_lost", "the row moved on before the attempt was finished; nothing changed")

    def _require_schema(self) -> None:
        """Refuse a database whose evidence columns are not ours; a database once found right is not asked again."""
        if self._is_schema_known:
            return
        with reading(self._engine) as conn:
            inspector = inspect(conn)
            found = (
                {one["name"]: (_kind(one["type"]), one["nullable"]) for one in inspector.get_columns(evidence.name)}
                if inspector.has_table(evidence.name)
                else {}
            )
        expected = {column.name: (_kind(column.type), column.nullable) for column in evidence.columns}
        if found != expected:
            raise Blocked("evidence.state.schema_altered", "the evidence columns are not ours; run locseal db upgrade")
        self._is_schema_known = True


# --- inside one transaction -----------------------------------------------------------------------------------------


def _claim(
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


def _has_succeeded(conn: Connection, claim: EvidenceClaim) -> bool:
    row = EVIDENCE.lock(conn, claim.request_id)
    return row is not None and row["status"] == SUCCEEDED


def _check_lease(conn: Connection, claim: EvidenceClaim, now: float | None) -> float:
    """Refuse a claim whose lease is another's or over; return the time (seconds) by which it was judged."""
    row = EVIDENCE.lock(conn, claim.request_id)
    if row is None or (row["lease_owner"], row["lease_token"]) != (claim.lease_owner, claim.lease_token):
        raise Blocked("evidence.lease_lost", "the row is not leased under this claim (any more); drop the work")
    at = read_clock(conn, now)
    if row["lease_expires_at"] <= at:
        raise Blocked("evidence.lease_expired", "the lease ran out before the attempt was finished; drop the work")
    return at


def _mark_approved(
    conn: Connection, event_id: str, plan_id: str, job_id: str, result_sha256: str, *, now: float | None
) -> None:
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


# --- arguments ------------------------------------------------------------------------------------------------------


def _check_key(key: object) -> None:
    if not isinstance(key, EvidenceKey):
        raise Invalid("evidence.request.invalid", "expected an EvidenceKey")
    require_token(key.request_id, "evidence.request_id.invalid")
    require_token(key.event_id, "coordinator.event_id.invalid")
    require_token(key.plan_id, "evidence.plan_id.invalid")
    require_token(key.job_id, "evidence.job_id.invalid")
    require_token(key.evidence_revision, "coordinator.evidence_revision.invalid")
    require_hash(key.result_sha256, "evidence.result_sha256.invalid")


def _check_claim(claim: object) -> None:
    if not isinstance(claim, EvidenceClaim):
        raise Invalid("evidence.claim.invalid", "expected an EvidenceClaim")
    require_token(claim.request_id, "evidence.request_id.invalid")
    require_token(claim.lease_owner, "evidence.worker_id.invalid")
    require_token(claim.lease_token, "evidence.lease_token.invalid")
    require_time(claim.lease_expires_at)
    require_attempts_bound(claim.max_attempts)
    require_attempts_bound(claim.attempt, "evidence.claim.invalid")


def _check_failure(code: object, retryable: object) -> None:
    if not is_error_code(code) or not isinstance(retryable, bool):
        raise Invalid("evidence.failure.invalid", "expected a stable code, and a boolean that says if it is retryable")


def _optional_time(now: object) -> float | None:
    return None if now is None else require_time(now)


def _ending(
    claim: EvidenceClaim, *, code: str | None = None, is_retryable: bool = True, not_before: float | None = None
) -> Ending:
    return Ending(
        row_id=claim.request_id,
        owner=claim.lease_owner,
        token=claim.lease_token,
        code=code,
        is_retryable=is_retryable,
        not_before=not_before,
    )


def _kind(of: TypeEngine[object]) -> type:
    """Return what Python makes of a column: databases name the same type differently."""
    try:
        return of.python_type
    except NotImplementedError:
        return object
