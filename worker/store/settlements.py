"""How a batch of finished attempts is settled: one transaction, in which every row stands on its own token.

The jobs are locked in id order first, so settles of a job, and intake that replaces its result, follow one another.
Then the guarded UPDATE says which rows were still this worker's; only for those are receipts and approvals inserted.
Nothing here signs, and nothing here calls anybody: what comes in was signed before the transaction began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, Engine, String, exists, null, select, tuple_, update
from sqlalchemy.exc import IntegrityError

from worker.domain.attempt import SUCCEEDED
from worker.domain.evidence import EvidenceClaim
from worker.domain.key import PublicKey
from worker.domain.review import STORE_REFUSED, TARGET_CONFLICT
from worker.store.approvals import StoredApproval, StoredReceipt, insert_approvals, insert_receipts, stands
from worker.store.engine import clock, json_rows, row_source, writing
from worker.store.leases import EVIDENCE, LEASE_CLEARED
from worker.store.public_keys import keep_public_keys
from worker.store.schema import approvals, evidence, jobs
from worker.store.setbacks import Ending


@dataclass(frozen=True, kw_only=True)
class Success:
    """An attempt that brought a signed approval, and the receipts behind it."""

    claim: EvidenceClaim
    approval: StoredApproval
    receipts: tuple[StoredReceipt, ...]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An attempt that ended without; `not_before` is a time in seconds and may only lengthen the back-off."""

    claim: EvidenceClaim
    code: str
    retryable: bool
    not_before: float | None = None


@dataclass(frozen=True, kw_only=True)
class Release:
    """Work handed back, due at `not_before` (seconds); no attempt is counted."""

    claim: EvidenceClaim
    code: str
    not_before: float


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What is settled together. `reused` holds result hashes by job, where a standing approval was verified.

    `keys` are the public keys that anything in it was verified by and that may not be kept yet, for auditors.
    """

    successes: tuple[Success, ...] = ()
    keys: tuple[PublicKey, ...] = ()
    failures: tuple[Failure, ...] = ()
    releases: tuple[Release, ...] = ()
    reused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What the settle did; ids of rows whose lease was lost or over are in none of these."""

    approved: frozenset[str] = frozenset()  # request ids, other rows of the same jobs among them
    failed: Mapping[str, str] = field(default_factory=dict)  # request id -> retry_wait or failed
    released: frozenset[str] = frozenset()
    has_kept_keys: bool = False


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What a locked job says: whether other evidence rows wait for it, and whether an approval forbids this one."""

    has_others: bool
    has_conflict: bool


def settle(engine: Engine, batch: Batch, *, now: float | None) -> Settled:
    """Settle a batch in one transaction; a row that breaks a constraint is settled alone and fails retryably.

    Safe to repeat and to run beside anything: a row moves only under its own live lease, while its job's current
    result is still the one that was asked about. Raises `Unavailable`; nothing was written then.
    """
    try:
        return writing(engine, lambda conn: _settle(conn, batch, now))
    except IntegrityError:
        pass  # one row took the others back with it: now each success stands for itself
    done = writing(engine, lambda conn: _settle(conn, replace(batch, successes=()), now))
    for success in batch.successes:
        alone = _settle_alone(engine, success, batch.keys, now)
        done = Settled(
            approved=done.approved | alone.approved,
            failed={**done.failed, **alone.failed},
            released=done.released,
            has_kept_keys=done.has_kept_keys or alone.has_kept_keys,
        )
    return done


def mark_jobs_approved(conn: Connection, results: Mapping[str, str], *, now: float | None) -> frozenset[str]:
    """Let every evidence row of these jobs succeed where an approval of the result stands; return the rows that did.

    `results` gives the result hash by job id. The caller has verified the approvals and holds the jobs' locks.
    """
    at = clock(conn, now)
    source = row_source(conn, "answered", {"job_id": String, "result_sha256": String}, "answered")
    statement = (
        update(evidence)
        .where(
            tuple_(evidence.c.job_id, evidence.c.result_sha256).in_(select(source.c.job_id, source.c.result_sha256)),
            evidence.c.status != SUCCEEDED,
            exists().where(
                approvals.c.job_id == evidence.c.job_id,
                approvals.c.result_sha256 == evidence.c.result_sha256,
                stands(at),
            ),
        )
        .values(status=SUCCEEDED, next_attempt_at=at, last_error_code=null(), updated_at=at, **LEASE_CLEARED)
        .returning(evidence.c.request_id)
    )
    rows = [{"job_id": job_id, "result_sha256": result} for job_id, result in sorted(results.items())]
    return frozenset(conn.execute(statement, {"answered": json_rows(rows)}).scalars())


def _settle_alone(engine: Engine, success: Success, keys: tuple[PublicKey, ...], now: float | None) -> Settled:
    try:
        return writing(engine, lambda conn: _settle(conn, Batch(successes=(success,), keys=keys), now))
    except IntegrityError:
        refused = Failure(claim=success.claim, code=STORE_REFUSED, retryable=True)
        return writing(engine, lambda conn: _settle(conn, Batch(failures=(refused,)), now))


def _settle(conn: Connection, batch: Batch, now: float | None) -> Settled:
    locked = _lock_jobs(conn, batch, now)
    free, refused = _without_conflicts(batch.successes, locked)
    approved = EVIDENCE.succeed(conn, [_ending(one.claim) for one in free], now=now)
    kept = [one for one in free if one.claim.request_id in approved]
    if kept:
        insert_receipts(conn, [receipt for one in kept for receipt in one.receipts])
        insert_approvals(conn, [one.approval for one in kept])
    if kept and batch.keys:
        keep_public_keys(conn, batch.keys, now=now)
    answered = dict(batch.reused)
    for one in kept:
        if locked[one.approval.job_id].has_others:
            answered[one.approval.job_id] = one.approval.result_sha256
    if answered:
        approved |= mark_jobs_approved(conn, answered, now=now)
    endings = [_ending(one.claim, one.code, one.not_before, one.retryable) for one in (*batch.failures, *refused)]
    failed = EVIDENCE.fail(conn, endings, now=now)
    handed_back = [_ending(one.claim, one.code, one.not_before) for one in batch.releases]
    released = EVIDENCE.release(conn, handed_back, now=now)
    return Settled(approved=approved, failed=failed, released=released, has_kept_keys=bool(kept))


def _without_conflicts(successes: Sequence[Success], locked: Mapping[str, _Job]) -> tuple[list[Success], list[Failure]]:
    """Part successes into those that may stand, and refusals of those whose job is approved for another target.

    A job without a row has nothing that could say which result is current: its success is dropped.
    """
    known = [one for one in successes if one.approval.job_id in locked]
    free = [one for one in known if not locked[one.approval.job_id].has_conflict]
    refused = [
        Failure(claim=one.claim, code=TARGET_CONFLICT, retryable=False)
        for one in known
        if locked[one.approval.job_id].has_conflict
    ]
    return free, refused


def _lock_jobs(conn: Connection, batch: Batch, now: float | None) -> dict[str, _Job]:
    """Lock the jobs of a batch in id order and return what was known of each when the statement began.

    An approval for another target that commits while this waits for a lock is not seen here; but then the job's
    current result is the other one, and the guarded UPDATE, a later statement, sees that.
    """
    rows: list[dict[str, str | None]] = [
        {"job_id": one.approval.job_id, "request_id": one.claim.request_id, "target": one.approval.target_sha256}
        for one in batch.successes
    ]
    rows += [{"job_id": job_id, "request_id": None, "target": None} for job_id in batch.reused]
    if not rows:
        return {}
    source = row_source(conn, "asked", {"job_id": String, "request_id": String, "target": String}, "asked")
    has_others = exists().where(
        evidence.c.job_id == jobs.c.job_id,
        evidence.c.status != SUCCEEDED,
        evidence.c.request_id.not_in(select(source.c.request_id).where(source.c.request_id.is_not(None))),
    )
    has_conflict = exists().where(
        approvals.c.job_id == jobs.c.job_id,
        approvals.c.target_sha256.not_in(select(source.c.target).where(source.c.job_id == jobs.c.job_id)),
        stands(clock(conn, now)),
    )
    statement = (
        select(jobs.c.job_id, has_others.label("has_others"), has_conflict.label("has_conflict"))
        .where(jobs.c.job_id.in_(select(source.c.job_id)))
        .order_by(jobs.c.job_id)
        .with_for_update(of=jobs)
    )
    found = conn.execute(statement, {"asked": json_rows(rows)}).mappings()
    return {
        row["job_id"]: _Job(has_others=bool(row["has_others"]), has_conflict=bool(row["has_conflict"])) for row in found
    }


def _ending(
    claim: EvidenceClaim, code: str | None = None, not_before: float | None = None, is_retryable: bool = True
) -> Ending:
    return Ending(
        row_id=claim.request_id,
        owner=claim.lease_owner,
        token=claim.lease_token,
        code=code,
        is_retryable=is_retryable,
        not_before=not_before,
    )
