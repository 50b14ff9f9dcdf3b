"""How a batch of finished attempts is settled: one transaction, in which every row stands on its own token.

The guarded UPDATE comes first and locks the jobs in id order, so that settles of a job, and intake that replaces its
result, follow one another. Only for the rows it returns are receipts and approvals inserted.
Nothing here signs, and nothing here calls anybody: what comes in was signed before the transaction began.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    FromClause,
    String,
    exists,
    func,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.dml import ReturningUpdate

from worker.domain.attempt import FAILED, SUCCEEDED
from worker.domain.evidence import EvidenceClaim
from worker.domain.key import PublicKey
from worker.domain.review import STORE_REFUSED
from worker.store.approvals import StoredApproval, StoredReceipt, insert_approvals, insert_receipts, stands
from worker.store.breakers import Told, tell
from worker.store.conditions import is_row_sound
from worker.store.engine import Moment, clock, is_sqlite, json_rows, row_source, writing
from worker.store.leases import EVIDENCE, LEASE_CLEARED
from worker.store.prepared import prepared
from worker.store.public_keys import keep_public_keys
from worker.store.responses import hurry_pushed
from worker.store.schema import approvals, evidence, jobs
from worker.store.setbacks import Ending, ended_parameters, ended_source


@dataclass(frozen=True, kw_only=True)
class Success:
    """An attempt that brought a signed approval, and the receipts behind it.

    `is_shared` says that other rows of the job wait, which the approval answers too.
    """

    claim: EvidenceClaim
    approval: StoredApproval
    receipts: tuple[StoredReceipt, ...]
    is_shared: bool = False


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An attempt that ended without; `not_before` is a time in seconds and may only lengthen the back-off.

    `retry_after_seconds` is the wait that the other side asked for, kept with the attempt.
    """

    claim: EvidenceClaim
    code: str
    retryable: bool
    not_before: float | None = None
    retry_after_seconds: float | None = None
    is_pushed: bool = False  # the answer came out of the inbox


@dataclass(frozen=True, kw_only=True)
class Release:
    """Work handed back, due at `not_before` (seconds); no attempt is counted.

    `is_awaited` says that the provider accepted it and answers later; the first time is kept with the row.
    """

    claim: EvidenceClaim
    code: str
    not_before: float
    is_awaited: bool = False


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
    told: tuple[Told, ...] = ()  # what the calls showed about the routes


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What the settle did; ids of rows whose lease was lost or over are in none of these."""

    approved: frozenset[str] = frozenset()  # request ids, other rows of the same jobs among them
    failed: Mapping[str, str] = field(default_factory=dict)  # request id -> retry_wait or failed
    released: frozenset[str] = frozenset()
    has_kept_keys: bool = False


def settle(engine: Engine, batch: Batch, *, now: float | None) -> Settled:
    """Settle a batch in one transaction; a row that breaks a constraint is settled alone and fails retryably.

    Safe to repeat and to run beside anything: a row moves only under its own live lease, while its job's current
    result is still the one that was asked about. Raises `Unavailable`; nothing was written then.
    """
    if not (batch.successes or batch.failures or batch.releases or batch.reused or batch.told):
        return Settled()
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


def succeed_none(conn: Connection) -> None:
    """Run the guarded UPDATE of many successes for no row: it is then built, compiled and planned. Changes nothing."""
    statement, moment = _succeeding_many(conn, None)
    conn.execute(statement, ended_parameters([]) | moment).close()


def mark_jobs_approved(conn: Connection, answered: Mapping[str, str], *, now: float | None) -> frozenset[str]:
    """Let every evidence row of these jobs succeed where an approval of the result stands; return the rows that did.

    `answered` gives the result hash by job id. The caller has verified the approvals and holds the jobs' locks.
    """
    at = clock(conn, now)
    source = row_source(conn, "answered", {"job_id": String, "result_sha256": String}, "answered")
    statement = (
        update(evidence)
        .where(
            tuple_(evidence.c.job_id, evidence.c.result_sha256).in_(select(source.c.job_id, source.c.result_sha256)),
            evidence.c.status != SUCCEEDED,
            _is_sound(is_sqlite(conn)),  # a damaged row is left as it is
            exists().where(
                approvals.c.job_id == evidence.c.job_id,
                approvals.c.result_sha256 == evidence.c.result_sha256,
                or_(evidence.c.renewed_at.is_(None), approvals.c.approved_at >= evidence.c.renewed_at),
                stands(at),
            ),
        )
        .values(status=SUCCEEDED, next_attempt_at=at, last_error_code=null(), updated_at=at, **LEASE_CLEARED)
        .returning(evidence.c.request_id)
    )
    rows = [{"job_id": job_id, "result_sha256": result} for job_id, result in sorted(answered.items())]
    return frozenset(conn.execute(statement, {"answered": json_rows(rows)}).scalars())


def _settle_alone(engine: Engine, success: Success, keys: tuple[PublicKey, ...], now: float | None) -> Settled:
    try:
        return writing(engine, lambda conn: _settle(conn, Batch(successes=(success,), keys=keys), now))
    except IntegrityError:
        refused = Failure(claim=success.claim, code=STORE_REFUSED, retryable=True)
        return writing(engine, lambda conn: _settle(conn, Batch(failures=(refused,)), now))


def _settle(conn: Connection, batch: Batch, now: float | None) -> Settled:
    successes = {one.claim.request_id: one for one in batch.successes}
    approved = _succeed(conn, [_ending(one.claim) for one in batch.successes], now)
    kept = [successes[request_id] for request_id in sorted(approved)]
    if kept:
        insert_receipts(conn, [receipt for one in kept for receipt in one.receipts])
        insert_approvals(conn, [one.approval for one in kept])
    if kept and batch.keys:
        keep_public_keys(conn, batch.keys, now=now)
    answered = {one.approval.job_id: one.approval.result_sha256 for one in kept if one.is_shared} | dict(batch.reused)
    if answered:
        _lock_jobs(conn, answered)
        approved |= mark_jobs_approved(conn, answered, now=now)
    failed = EVIDENCE.fail(conn, [_failure(one) for one in batch.failures], now=now)
    released = _release(conn, [one for one in batch.releases if not one.is_awaited], now=now)
    since = {"awaited_since_at": func.coalesce(evidence.c.awaited_since_at, clock(conn, now))}
    released |= _release(conn, [one for one in batch.releases if one.is_awaited], now=now, values=since)
    unanswered = {one.claim.request_id for one in batch.failures if one.retryable and not one.is_pushed}
    hurry_pushed(conn, (unanswered & failed.keys()) | released, now=now)
    tell(conn, batch.told, now=now)
    return Settled(approved=approved, failed=failed, released=released, has_kept_keys=bool(kept))


def _release(
    conn: Connection, releases: Iterable[Release], *, now: float | None, values: Mapping[str, Any] | None = None
) -> frozenset[str]:
    endings = [_ending(one.claim, one.code, one.not_before) for one in releases]
    return EVIDENCE.release(conn, endings, now=now, values=values)


def _succeed(conn: Connection, endings: Sequence[Ending], now: float | None) -> frozenset[str]:
    """Let attempts succeed under the locks of their jobs, and return the ids that did; one statement.

    The lock and the job's current result come out of the same sub-select, so a result that was replaced while this
    waited for the lock is seen as it is now. It is a table of its own, or PostgreSQL locks all jobs again for every row.
    """
    if not endings:
        return frozenset()
    statement, moment = (_succeeding_one if len(endings) == 1 else _succeeding_many)(conn, now)
    return frozenset(conn.execute(statement, ended_parameters(endings) | moment).scalars())


@prepared
def _succeeding_one(bind: Dialect, now: Moment) -> ReturningUpdate[Any]:
    return _succeeding(bind, ended_source(bind, is_alone=True), now)


@prepared
def _succeeding_many(bind: Dialect, now: Moment) -> ReturningUpdate[Any]:
    return _succeeding(bind, ended_source(bind, is_alone=False), now)


def _succeeding(bind: Dialect, ended: FromClause, now: Moment) -> ReturningUpdate[Any]:
    asked = evidence.alias("asked")
    locked = (
        select(jobs.c.job_id, jobs.c.current_result_sha256)
        .where(jobs.c.job_id.in_(select(asked.c.job_id).where(asked.c.request_id.in_(select(ended.c.row_id)))))
        .order_by(jobs.c.job_id)
        .with_for_update(of=jobs)
        .cte("locked")
    )
    is_current = (
        evidence.c.job_id == locked.c.job_id,
        evidence.c.result_sha256 == locked.c.current_result_sha256,
    )
    return EVIDENCE.succeeding(bind, ended, now=now, where=is_current)


@functools.cache  # two databases; built once, since that takes longer than the statement
def _is_sound(of_sqlite: bool) -> ColumnElement[bool]:
    return or_(
        evidence.c.status == FAILED,
        is_row_sound(evidence, tokens=EVIDENCE.tokens, hashes=EVIDENCE.hashes, of_sqlite=of_sqlite),
    )


def _lock_jobs(conn: Connection, job_ids: Iterable[str]) -> None:
    """Lock jobs in id order until the transaction ends."""
    if is_sqlite(conn):  # BEGIN IMMEDIATE locked everything
        return
    source = row_source(conn, "named", {"job_id": String}, "named")
    statement = (
        select(jobs.c.job_id)
        .where(jobs.c.job_id.in_(select(source.c.job_id)))
        .order_by(jobs.c.job_id)
        .with_for_update(of=jobs)
    )
    conn.execute(statement, {"named": json_rows([{"job_id": job_id} for job_id in sorted(job_ids)])}).all()


def _ending(claim: EvidenceClaim, code: str | None = None, not_before: float | None = None) -> Ending:
    return Ending(
        row_id=claim.request_id, owner=claim.lease_owner, token=claim.lease_token, code=code, not_before=not_before
    )


def _failure(failure: Failure) -> Ending:
    ending = _ending(failure.claim, failure.code, failure.not_before)
    return replace(ending, is_retryable=failure.retryable, retry_after_seconds=failure.retry_after_seconds)
