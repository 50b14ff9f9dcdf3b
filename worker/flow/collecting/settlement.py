"""What is made of finished calls: approvals signed outside any transaction, then one settle for all. Not a step.

The time of approval is read once, after the answers. Repeating a settle is harmless: rows that moved are not met again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from worker.domain.attempt import spread_wait
from worker.domain.review import (
    DEADLINE_PASSED,
    NOT_YET,
    TARGET_CONFLICT,
    Deferred,
    Ending,
    Refused,
    Reused,
    Verified,
)
from worker.flow.collecting.answered import Answered
from worker.flow.collecting.approval_signing import keys_behind, sign_approval
from worker.flow.collecting.route_news import route_news, shown_by
from worker.flow.collecting.told import tell_settled
from worker.flow.services import Services
from worker.store.due_evidence import ClaimedRow
from worker.store.engine import reading
from worker.store.settlements import Batch, Failure, Release, Settled, Success, settle
from worker.store.surveys import Survey, survey


def settle_answers(services: Services, answered: Sequence[Answered]) -> Settled:
    """Sign what was verified and settle everything that finished in one transaction.

    Raises `Unavailable` when the database cannot answer; nothing was settled then, and the caller may repeat it.
    """
    services.checkpoint("collect.answered")
    verified = [one.ending.request for one in answered if isinstance(one.ending, Verified)]
    with reading(services.engine) as conn:
        asked = {one.key.job_id: (one.request_id, one.document["target_sha256"]) for one in verified}
        found = survey(conn, asked, now=services.now())
    successes: list[Success] = []
    failures: list[Failure] = []
    releases: list[Release] = []
    reused: dict[str, str] = {}
    for one in answered:
        claim = one.row.claim
        ending = _signed(services, one, found)
        if isinstance(ending, Success):
            successes.append(ending)
        elif one.row.permit is not None and isinstance(ending, Refused) and shown_by(one) == "fault":
            releases.append(Release(claim=claim, code=ending.code, not_before=found.now))  # the breaker says when
        elif isinstance(ending, Refused):
            named = ending.retry_after_seconds
            wait = spread_wait(claim.attempt, jitter=services.jitter(), retry_after_seconds=named)
            failures.append(
                Failure(
                    claim=claim,
                    code=ending.code,
                    retryable=ending.retryable,
                    not_before=found.now + wait,
                    retry_after_seconds=named,
                    is_pushed=one.is_pushed,
                )
            )
        elif isinstance(ending, Deferred):
            releases.append(_release(services, one.row, ending, found.now))
        elif isinstance(ending, Reused):
            reused[one.row.key.job_id] = one.row.key.result_sha256
    services.checkpoint("collect.signed")
    keys = services.collecting.not_kept(keys_behind(services, successes))
    batch = Batch(
        successes=tuple(successes),
        failures=tuple(failures),
        releases=tuple(releases),
        reused=reused,
        keys=tuple(keys),
        told=route_news(services, answered, is_troubled=found.is_troubled),
    )
    settled = settle(services.engine, batch, now=services.now())
    if settled.has_kept_keys:
        services.collecting.keep(keys)
    services.checkpoint("collect.settled")
    codes = {one.claim.request_id: one.code for one in failures} | {one.claim.request_id: one.code for one in releases}
    tell_settled(services, answered, settled, codes)
    return settled


def _signed(services: Services, one: Answered, found: Survey) -> Ending | Success:
    """Return an ending as it is, but a verified answer as its signed approval."""
    if not isinstance(one.ending, Verified):
        return _in_time(services, one.row, one.ending, found.now)
    job_id = one.row.key.job_id
    if job_id in found.approved_otherwise:
        return Refused(code=TARGET_CONFLICT, retryable=False)
    signed = sign_approval(services, one.row.claim, one.ending, found.now)
    return replace(signed, is_shared=job_id in found.shared_jobs) if isinstance(signed, Success) else signed


def _in_time(services: Services, row: ClaimedRow, ending: Ending, now: float) -> Ending:
    """Return an ending as it is, but "accepted, not yet" as a terminal failure once the site's deadline is over."""
    is_awaited = isinstance(ending, Deferred) and ending.code == NOT_YET
    if not is_awaited or row.awaited_since_at is None or now < _gives_up_at(services, row, now):
        return ending
    return Refused(code=DEADLINE_PASSED, retryable=False)


def _release(services: Services, row: ClaimedRow, ending: Deferred, now: float) -> Release:
    """Return how work is handed back; who is awaited is asked once more when the deadline is over."""
    due_at = now + ending.wait_seconds
    is_awaited = ending.code == NOT_YET
    if is_awaited:
        due_at = min(due_at, max(now, _gives_up_at(services, row, now)))
    return Release(claim=row.claim, code=ending.code, not_before=due_at, is_awaited=is_awaited)


def _gives_up_at(services: Services, row: ClaimedRow, now: float) -> float:
    since = now if row.awaited_since_at is None else row.awaited_since_at
    return since + services.policies.for_site(row.site_id).review_deadline_seconds
