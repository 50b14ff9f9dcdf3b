"""The one transaction that takes a submission in (SPEC section 3): every rule, then every row, or nothing at all.

Under the lock of the source nothing else changes its events, jobs and current results; under the locks of its jobs no
approval of them appears. So what is read here holds until the commit. Signatures and the document's own rules were
checked before; who is woken afterwards is decided in the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from worker.domain.change import ChangeEvent
from worker.domain.errors import Blocked, Invalid
from worker.domain.evidence import build_request
from worker.domain.policy import SitePolicy
from worker.domain.result import Result
from worker.domain.signature import PublicKey, TrustSet
from worker.domain.submission import Submission
from worker.store.approvals import StoredApproval, choose, standing_approvals, verify_approval
from worker.store.deliveries import close_superseded, close_unsent, lock_event
from worker.store.events import EventRow, insert_event, open_events_with, supersede_older
from worker.store.jobs import JobRow, ResultRow, insert_results, lock_jobs, read_result, replace_results
from worker.store.public_keys import keep_public_keys
from worker.store.revisions import SUPERSEDED, Opened, Revision, close_revisions, open_revisions, retire_revisions
from worker.store.sources import Intake, lock_source, read_intake
from worker.store.submissions import RELEASE, insert_submission
from worker.store.withdrawals import mark_applied

REPLACED = "cms.delivery.result_replaced"
LOCALE_REQUIRED = "submission.locale.required"


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """A verified submission on its way in.

    `places` gives the position of each job's result in the message, for paths; `approval_trust` is asked only where an
    approval may stand already.
    """

    document_sha256: str
    body: str = field(repr=False)
    submission: Submission = field(repr=False)
    places: Mapping[str, int]
    key: PublicKey
    policy: SitePolicy
    approval_trust: Callable[[], TrustSet] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class TakenIn:
    """What is to be done next, as event ids in order: `asks` have evidence due, `approved` got approvals alone."""

    asks: tuple[str, ...] = ()
    approved: tuple[str, ...] = ()


def take_in(conn: Connection, incoming: Incoming, *, now: float | None) -> TakenIn:
    """Store a submission and everything that follows from it; an exact repeat stores nothing.

    Raises `Invalid` where the submission contradicts what was accepted before; the transaction must then be undone.
    Safe to run concurrently with itself, with settles and with the delivery's claim.
    """
    event, results = incoming.submission.event, _results(incoming.submission)
    source_id = event.localization.source_id
    lock_source(conn, event.site_id, source_id, event.event_id, now=now)
    known = read_intake(
        conn,
        document_sha256=incoming.document_sha256,
        event_id=event.event_id,
        site_id=event.site_id,
        source_id=source_id,
        source_sequence=event.source_sequence,
        jobs={job.job_id: results[job.job_id].sha256 if job.job_id in results else None for job in event.jobs},
    )
    if known.is_repeat:
        return TakenIn()
    row, superseded_by = _place(event, known, incoming.policy)
    _lock(conn, event, results, now=now)
    standing = standing_approvals(conn, known.jobs, now=now) if known.jobs else {}
    replaced = _replaced(incoming, known, standing)
    fresh = [
        job_id
        for job_id in results
        if job_id in replaced or job_id not in known.jobs or known.jobs[job_id].current_result_sha256 is None
    ]
    _store(conn, incoming, row, superseded_by, known, now=now)
    if fresh:
        insert_results(conn, [_row(results[job_id]) for job_id in sorted(fresh)], now=now)
    if replaced:
        replace_results(conn, {one: (old, results[one].sha256) for one, old in replaced.items()}, now=now)
        retire_revisions(conn, replaced, now=now)
    changed = [job_id for job_id in fresh if job_id in known.jobs]
    others = open_events_with(conn, changed, besides=event.event_id) if changed else ()
    if replaced:
        _close_old_texts(conn, [event.event_id, *(other.event_id for other in others)], now=now)
    asked = _current(event, results, known) if row.state == "open" else {}
    rows = _revisions(event, asked, incoming, known, standing)
    for other in others:
        rows += _revisions(other, {one: results[one] for one in changed}, incoming, known, standing)
    return _next(open_revisions(conn, rows, now=now) if rows else ())


def _results(submission: Submission) -> dict[str, Result]:
    return {pair.job.job_id: pair.result for pair in submission.results}


def _row(result: Result) -> ResultRow:
    return ResultRow(
        job_id=result.job_id, result_sha256=result.sha256, target_sha256=result.target_sha256, document=result.text
    )


def _place(event: ChangeEvent, known: Intake, policy: SitePolicy) -> tuple[EventRow, str | None]:
    """Return the event's row as it stands or is to be made, and the newer event that supersedes it (or None)."""
    same = known.same_event
    if same is not None:
        if same.event_sha256 != event.sha256:
            raise Invalid(
                "submission.event.collision", "another event has this id; choose a new one", path="event.event_id"
            )
        return same, None
    if not policy.required_locales <= {event.localization.source_locale, *event.localization.target_locales}:
        raise Invalid(
            LOCALE_REQUIRED,
            "the site requires locales that the event does not name; see locseal policy show",
            path="event.localization.target_locales",
        )
    if known.same_sequence is not None:
        raise Invalid(
            "submission.sequence.collision",
            "another event has this place in the source; send the change with a higher sequence",
            path="event.source_sequence",
        )
    newest = known.newest
    newer = newest.event_id if newest is not None and newest.source_sequence > event.source_sequence else None
    row = EventRow(
        event_id=event.event_id,
        site_id=event.site_id,
        source_id=event.localization.source_id,
        source_sequence=event.source_sequence,
        plan_id=event.plan_id,
        event_sha256=event.sha256,
        state="withdrawn" if known.is_withdrawn else "superseded" if newer else "open",
    )
    return row, newer


def _lock(conn: Connection, event: ChangeEvent, results: Mapping[str, Result], *, now: float | None) -> None:
    rows = [
        JobRow(
            job_id=job.job_id,
            target_locale=job.target_locale,
            result_sha256=results[job.job_id].sha256 if job.job_id in results else None,
        )
        for job in event.jobs
    ]
    lock_jobs(conn, event.site_id, rows, now=now)


def _replaced(incoming: Incoming, known: Intake, standing: Mapping[str, tuple[StoredApproval, ...]]) -> dict[str, str]:
    """Return the old result hash of every job whose result is rightly replaced; refuse a second result otherwise."""
    replaced = {}
    for pair in incoming.submission.results:
        job_id, result = pair.job.job_id, pair.result
        current = known.jobs[job_id].current_result_sha256 if job_id in known.jobs else None
        if current is None or current == result.sha256:
            continue
        path = f"results.{incoming.places[job_id]}"
        if result.replaces != current:
            raise Invalid(
                "submission.result.conflict",
                "the job has another result; to replace it, name its hash in `replaces`",
                path=path,
            )
        if job_id in standing:
            raise Invalid(
                "submission.result.approved", "the job's result is approved; revoke that approval first", path=path
            )
        replaced[job_id] = current
    return replaced


def _store(
    conn: Connection, incoming: Incoming, row: EventRow, superseded_by: str | None, known: Intake, *, now: float | None
) -> None:
    """Write the document, its key and, where it is new, the event with all that it puts an end to."""
    event = incoming.submission.event
    insert_submission(
        conn,
        document_sha256=incoming.document_sha256,
        kind=RELEASE,
        site_id=row.site_id,
        event_id=row.event_id,
        kid=incoming.key.kid,
        body=incoming.body,
        now=now,
    )
    keep_public_keys(conn, [incoming.key], now=now)
    if known.same_event is not None:
        return
    insert_event(
        conn,
        row,
        website_version=event.website_version,
        document=event.text,
        locales=[(job.job_id, job.target_locale) for job in event.jobs],
        superseded_by=superseded_by,
        now=now,
    )
    if known.is_withdrawn:
        mark_applied(conn, row.event_id, row.site_id, now=now)
    if known.newest is None or superseded_by is not None:
        return
    older = supersede_older(
        conn,
        site_id=row.site_id,
        source_id=row.source_id,
        below_sequence=row.source_sequence,
        superseded_by=row.event_id,
        now=now,
    )
    if older:
        close_revisions(conn, older, SUPERSEDED, now=now)
        close_superseded(conn, older, now=now)


def _close_old_texts(conn: Connection, event_ids: Sequence[str], *, now: float | None) -> None:
    """Close prepared deliveries that hold a replaced text; the events' locks keep new ones from being prepared."""
    for event_id in sorted(event_ids):
        lock_event(conn, event_id)
    close_unsent(conn, event_ids, REPLACED, now=now)


def _current(event: ChangeEvent, results: Mapping[str, Result], known: Intake) -> dict[str, Result]:
    """Return the current result of every job of the plan that has one and whose question may still be open."""
    found = dict(results)
    for job in event.jobs:
        stored = known.jobs.get(job.job_id)
        if job.job_id not in found and stored is not None and stored.document is not None:
            found[job.job_id] = read_result(job, event, stored.document, stored.current_result_sha256)
    return found


def _revisions(
    event: ChangeEvent,
    results: Mapping[str, Result],
    incoming: Incoming,
    known: Intake,
    standing: Mapping[str, tuple[StoredApproval, ...]],
) -> list[Revision]:
    """Return the evidence rows to open for an event; a standing approval answers its row at once."""
    rows = []
    for job in event.jobs:
        result = results.get(job.job_id)
        if result is None:
            continue
        before = known.jobs[job.job_id].revisions if job.job_id in known.jobs else 0
        key = build_request(event, job, result, f"r{before + 1}").key
        is_approved = _stands(standing.get(job.job_id, ()), result, incoming)
        rows.append(
            Revision(
                request_id=key.request_id,
                event_id=key.event_id,
                plan_id=key.plan_id,
                job_id=key.job_id,
                result_sha256=key.result_sha256,
                evidence_revision=key.evidence_revision,
                site_id=event.site_id,
                provider=incoming.policy.route(job.content_type),
                max_attempts=incoming.policy.evidence_max_attempts,
                status="succeeded" if is_approved else "pending",
            )
        )
    return rows


def _stands(candidates: Iterable[StoredApproval], result: Result, incoming: Incoming) -> bool:
    """Tell whether a verified approval of this very result stands under the site's policy.

    One that does not verify answers nothing: evidence is asked for, and whoever uses the approval names the tampering.
    """
    chosen = choose(tuple(candidates), result_sha256=result.sha256, accepted=incoming.policy.accepted)
    if chosen is None or chosen.target_sha256 != result.target_sha256:
        return False
    try:
        verify_approval(chosen, incoming.approval_trust())
    except Blocked:
        return False
    return True


def _next(opened: Iterable[Opened]) -> TakenIn:
    opened = tuple(opened)
    asks = {one.event_id for one in opened if one.status == "pending"}
    return TakenIn(asks=tuple(sorted(asks)), approved=tuple(sorted({one.event_id for one in opened} - asks)))
