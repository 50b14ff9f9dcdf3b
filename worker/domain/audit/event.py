"""Change events, their plans, jobs and results: every id derived anew, every end of an event accounted for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.domain.audit.finding import Finding, Row, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.audit.plain import Shape, shape_findings
from worker.domain.canonical import parse_strict, sha256_hex
from worker.domain.change import ChangeEvent, Job, parse_change
from worker.domain.errors import Blocked
from worker.domain.result import Result, check_result, parse_result, review_flags
from worker.domain.submission import LONGEST_SUBMISSION_BYTES
from worker.domain.text import text_sha256
from worker.domain.turn import SUPERSEDED

AREA = "event"
STATES = frozenset({"open", "delivered", "superseded", "withdrawn"})
SHAPE = Shape(
    tokens=("event_id", "site_id", "website_version", "source_id", "plan_id"),
    hashes=("event_sha256",),
    times=("created_at", "updated_at"),
    optional_times=("last_woken_at",),
)
JOB_SHAPE = Shape(tokens=("job_id", "site_id"), times=("created_at", "updated_at"))
RESULT_SHAPE = Shape(
    tokens=("job_id",),
    hashes=("result_sha256", "target_sha256"),
    times=("created_at",),
    optional_times=("replaced_at",),
)


def stored_change(row: Mapping[str, Any]) -> tuple[ChangeEvent | None, list[Finding]]:
    """Return the change event in a row, or None and why it is not what was accepted."""
    about = row_of(AREA, row["event_id"])
    if not isinstance(row["document"], str) or sha256_hex(row["document"]) != row["event_sha256"]:
        return None, [about.breaks("hash_mismatch", "the stored event is not the one that was hashed")]
    try:
        change = parse_change(parse_strict(row["document"], max_bytes=LONGEST_SUBMISSION_BYTES))
    except Blocked:
        return None, [about.breaks("document_invalid", "the stored event breaks a rule of events")]
    if change.text != row["document"]:
        return None, [about.breaks("document_invalid", "the stored event is not in canonical form")]
    return change, []


@dataclass(frozen=True, kw_only=True)
class BesideEvents:
    """What the database holds about some events; all but `plans` and `jobs` by event id."""

    plans: Mapping[str, Mapping[str, str]]  # plan id -> job id -> target locale
    jobs: Mapping[str, tuple[str, str]]  # job id -> (site id, target locale)
    submitted: frozenset[str]  # a signed document about it is kept
    withdrawn: frozenset[tuple[str, str]]  # (event id, site id) of applied withdrawals
    newest: Mapping[str, int]  # the highest sequence known of its source
    successors: Mapping[str, tuple[str, str, int]]  # of events named as the newer one: site, source, sequence
    deliveries: Mapping[str, tuple[tuple[str, str, str | None], ...]]  # (delivery id, status, error code)
    accepted: frozenset[str]  # delivery ids that the CMS, or an operator, said are live


def event_findings(row: Mapping[str, Any], change: ChangeEvent, beside: BesideEvents) -> Iterator[Finding]:
    """Yield what is wrong with an event whose document is sound."""
    about = row_of(AREA, row["event_id"])
    yield from shape_findings(about, row, SHAPE)
    columns = (row["event_id"], row["site_id"], row["website_version"], row["source_id"], row["source_sequence"])
    source = change.localization
    if columns != (change.event_id, change.site_id, change.website_version, source.source_id, change.source_sequence):
        yield about.breaks("row_mismatch", "the row does not repeat its document")
    if row["plan_id"] != change.plan_id:
        yield about.breaks("plan_mismatch", "the plan's id is not derived from the event")
    jobs = {job.job_id: job.target_locale for job in change.jobs}
    if dict(beside.plans.get(change.plan_id, {})) != jobs:
        yield about.breaks("plan_jobs_mismatch", "the stored plan is not the set of jobs that the event needs")
    missing = [job_id for job_id in jobs if job_id not in beside.jobs]
    if missing:
        yield about.breaks("job_missing", "a job of the event's plan is gone")
    elif any(beside.jobs[job_id] != (change.site_id, locale) for job_id, locale in jobs.items()):
        yield about.breaks("job_mismatch", "a stored job does not repeat what its id is derived from")
    if change.event_id not in beside.submitted:
        yield about.breaks("submission_missing", "no signed document about the event is kept")
    yield from _ends(about, row, change, beside)


def _ends(about: Row, row: Mapping[str, Any], change: ChangeEvent, beside: BesideEvents) -> Iterator[Finding]:
    state, found = row["state"], beside.deliveries.get(change.event_id, ())
    published = {one for one, status, _ in found if status == "succeeded" or one in beside.accepted}
    succeeded = [one for one, status, _ in found if status == "succeeded"]
    if len(published) > 1:
        yield about.breaks("published_twice", "two publications of the event were accepted")
    elif sum(status != "failed" for _, status, _ in found) > 1:
        yield about.breaks("deliveries_conflict", "the event has two open or acknowledged deliveries")
    if state not in STATES:
        yield about.breaks("state_invalid", "no such state of an event")
    elif state == "delivered" and not succeeded:
        yield about.breaks("delivered_without_publication", "the event counts as delivered without a publication")
    elif state != "delivered" and succeeded:
        yield about.breaks("publication_unrecorded", "a publication was acknowledged, but the event does not say so")
    elif state == "withdrawn" and (change.event_id, change.site_id) not in beside.withdrawn:
        yield about.breaks("withdrawn_without_word", "the event was withdrawn without a signed withdrawal")
    elif state == "open" and beside.newest.get(change.event_id, 0) > change.source_sequence:
        yield about.breaks("not_superseded", "the event is open though a newer one of its source is known")
    elif state == "superseded" and row["superseded_by"] is None and SUPERSEDED not in {code for _, _, code in found}:
        yield about.breaks("superseded_without_reason", "nothing newer is known of the superseded event's source")
    if row["superseded_by"] is not None:
        site_id, source_id, sequence = beside.successors.get(row["superseded_by"], (None, None, 0))
        same_source = (site_id, source_id) == (change.site_id, change.localization.source_id)
        if state == "open" or not same_source or sequence <= change.source_sequence:
            yield about.breaks("successor_invalid", "the event named as its successor is not a newer one of its source")


def bound_result(about: Row, change: ChangeEvent, job: Job, document: str) -> tuple[Result | None, list[Finding]]:
    """Return a stored result of a job once it is held against job and event; its own bytes are judged elsewhere."""
    try:
        result = parse_result(parse_strict(document, max_bytes=LONGEST_SUBMISSION_BYTES))
    except Blocked:
        return None, []
    try:
        check_result(job, change, result)
    except Blocked:
        return None, [about.breaks("job_mismatch", "the result is not bound to the job and the texts that it names")]
    return result, []


@dataclass(frozen=True, kw_only=True)
class BesideResults:
    """The current results of jobs, and which jobs are in a plan."""

    current: Mapping[str, str | None]  # job id -> current result hash; absent where there is no such job


def result_findings(row: Mapping[str, Any], beside: BesideResults, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a result by itself, and with its place as the current one."""
    about = row_of("result", row["job_id"], row["result_sha256"])
    if sha256_hex(row["document"]) != row["result_sha256"]:
        yield about.breaks("hash_mismatch", "the stored result is not the one that was hashed")
        return
    yield from shape_findings(about, row, RESULT_SHAPE)
    try:
        result = parse_result(parse_strict(row["document"], max_bytes=LONGEST_SUBMISSION_BYTES))
    except Blocked:
        yield about.breaks("document_invalid", "the stored result breaks a rule of results")
        return
    flags = {name: getattr(result, name) for name in review_flags(result)}
    if result.text != row["document"] or flags != review_flags(result):
        yield about.breaks("document_invalid", "the stored result is not canonical, or its flags do not follow from it")
    if (result.job_id, result.target_sha256) != (row["job_id"], row["target_sha256"]):
        yield about.breaks("row_mismatch", "the row does not repeat its document")
    elif text_sha256(result.candidate) != result.target_sha256:
        yield about.breaks("text_mismatch", "the translated text does not have the hash that is declared for it")
    if row["job_id"] not in beside.current:
        yield about.breaks("job_missing", "the job of the result is gone")
    elif (beside.current[row["job_id"]] == row["result_sha256"]) != (row["replaced_at"] is None):
        yield about.breaks("state_mismatch", "the job and the result disagree about which result is current")


@dataclass(frozen=True, kw_only=True)
class BesideJobs:
    """Which results there are, and which jobs are in a plan."""

    results: frozenset[tuple[str, str]]
    planned: frozenset[str]


def job_findings(row: Mapping[str, Any], beside: BesideJobs, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a job. What its id is derived from stands in the event, and is judged there."""
    about = row_of("job", row["job_id"])
    yield from shape_findings(about, row, JOB_SHAPE)
    if row["job_id"] not in beside.planned:
        yield about.breaks("unplanned", "no plan contains the job")
    current = row["current_result_sha256"]
    if current is not None and (row["job_id"], current) not in beside.results:
        yield about.breaks("result_missing", "the job's current result is gone")
