"""Evidence rows as workers, audits and tools drive them: claim, settle, approve, look. The public surface, kept stable.

Every operation checks its arguments first, then the database's columns (once per store), then the stored row; each
refusal has a stable code and writes nothing, but for the expiry of a lease that a claim met. The rows need no event,
plan or job rows. Operations may run concurrently with themselves and with everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection, Engine, select, text

from worker.domain.attempt import (
    require_attempts_bound,
    require_lease_seconds,
)
from worker.domain.errors import Blocked, Invalid, is_error_code
from worker.domain.evidence import EvidenceClaim, EvidenceKey, EvidenceStatus
from worker.domain.identifier import require_hash, require_time, require_token
from worker.store.engine import is_sqlite, reading, writing
from worker.store.evidence_claims import BINDING, check_lease, claim_row, has_succeeded, mark_approved
from worker.store.leases import EVIDENCE
from worker.store.schema import evidence
from worker.store.setbacks import Ending

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

# (name, kind, whether NOT NULL) of the evidence columns as they are.
COLUMNS_OF_SQLITE: Final = """SELECT name, type, "notnull" FROM pragma_table_info('evidence')"""
COLUMNS_OF_POSTGRES: Final = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute
WHERE attrelid = to_regclass('evidence') AND attnum > 0 AND NOT attisdropped
"""


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
        self._require_schema()

        def work(conn: Connection) -> EvidenceClaim | Blocked | None:
            return claim_row(conn, key, worker_id=worker_id, now=moment, lease_seconds=seconds, max_attempts=bound)

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
            if has_succeeded(conn, claim):
                return True
            at = check_lease(conn, claim, moment)
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
            if has_succeeded(conn, claim):
                return True
            at = check_lease(conn, claim, moment)
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
            at = check_lease(conn, claim, moment)
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
        writing(self._engine, lambda conn: mark_approved(conn, event_id, plan_id, job_id, result_sha256, now=moment))

    def statuses(self, event_id: str) -> tuple[EvidenceStatus, ...]:
        """Return the rows of an event, by creation and then id, without content and without lease tokens."""
        require_token(event_id, "coordinator.event_id.invalid")
        self._require_schema()
        with reading(self._engine) as conn:
            rows = conn.execute(select(evidence).where(evidence.c.event_id == event_id)).mappings().all()
        # Sorted here: a database of another collation than ours would order the ids in its own way.
        sound = sorted(map(EVIDENCE.check, rows), key=lambda row: (row["created_at"], row["request_id"]))
        return tuple(EvidenceStatus(**{name: row[name] for name in STATUS_COLUMNS}) for row in sound)

    def _settle(self, work: Callable[[Connection], bool]) -> None:
        self._require_schema()
        if not writing(self._engine, work):
            raise Blocked("evidence.finish_lost", "the row moved on before the attempt was finished; nothing changed")

    def _require_schema(self) -> None:
        """Refuse a database whose evidence columns are not ours; a database once found right is not asked again."""
        if self._is_schema_known:
            return
        query = COLUMNS_OF_SQLITE if is_sqlite(self._engine) else COLUMNS_OF_POSTGRES
        with reading(self._engine) as conn:
            found = {name: (kind.lower(), bool(required)) for name, kind, required in conn.execute(text(query))}
        if found != _expected_columns(is_sqlite(self._engine)):
            raise Blocked("evidence.state.schema_altered", "the evidence columns are not ours; run locseal db upgrade")
        self._is_schema_known = True


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


def _expected_columns(of_sqlite: bool) -> dict[str, tuple[str, bool]]:
    kinds = {str(column.type): str(column.type).lower() for column in evidence.columns}
    if not of_sqlite:
        kinds |= {"VARCHAR": "character varying", "FLOAT": "double precision"}
    return {column.name: (kinds[str(column.type)], not column.nullable) for column in evidence.columns}
