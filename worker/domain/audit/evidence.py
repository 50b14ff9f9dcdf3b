"""Evidence rows, their history and their setbacks: bounded, bound to what their ids say, and answered by approvals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.domain.attempt import is_sound
from worker.domain.audit.finding import Finding, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.audit.plain import Shape, is_count, lease_findings, setback_findings, shape_findings
from worker.domain.canonical import parse_strict
from worker.domain.change import ChangeEvent, Job
from worker.domain.evidence import build_request
from worker.domain.result import Result

AREA = "evidence"
LONGEST_ROW_BYTES = 1024 * 1024
SHAPE = Shape(
    tokens=("request_id", "event_id", "plan_id", "job_id", "evidence_revision"),
    hashes=("result_sha256",),
    times=("next_attempt_at", "created_at", "updated_at"),
    optional_times=("awaited_since_at", "renewed_at", "last_woken_at"),
)
SETBACK_SHAPE = Shape(tokens=("subject_id",), times=("ended_at",), codes=("code",), counts=("attempt",))
SUBJECTS = frozenset({"evidence", "delivery", "run_command"})
OUTCOMES = frozenset({"retry_wait", "failed", "released"})


@dataclass(frozen=True, kw_only=True)
class BesideEvidence:
    """What the database holds about some evidence rows."""

    events: frozenset[str]
    approved: frozenset[tuple[str, str]]  # (job id, result hash) with an approval, whatever became of it
    ended: Mapping[str, tuple[int, int]]  # request id -> attempts that ended without success, and the last one's number


def evidence_findings(row: Mapping[str, Any], beside: BesideEvidence, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with an evidence row by itself. Rows that only the store's surface made need no event."""
    about = row_of(AREA, row["request_id"])
    unsound = list(lease_findings(about, row, SHAPE))
    yield from unsound
    if not unsound:
        yield from setback_findings(about, row, *beside.ended.get(row["request_id"], (0, 0)))
    if row["site_id"] is None:
        return
    if row["event_id"] not in beside.events:
        yield about.breaks("event_missing", "the event that the row asks for is gone")
    if row["status"] == "succeeded" and (row["job_id"], row["result_sha256"]) not in beside.approved:
        yield about.breaks("approval_missing", "the row succeeded, but no approval of its result is kept")


def request_findings(
    row: Mapping[str, Any], change: ChangeEvent, jobs: Mapping[str, Job], result: Result | None
) -> Iterator[Finding]:
    """Yield that a row's id is not derived from its event, job, result and revision.

    `result` is None where the row's result is there, but damaged; that is a finding of its own.
    """
    about = row_of(AREA, row["request_id"])
    job = jobs.get(row["job_id"])
    if job is None or row["plan_id"] != change.plan_id:
        yield about.breaks("plan_mismatch", "the row asks for a job or a plan that is not its event's")
    elif result is not None:
        asked = build_request(change, job, result, row["evidence_revision"])
        if asked.request_id != row["request_id"]:
            yield about.breaks("request_mismatch", "the request's id is not derived from what it asks")


@dataclass(frozen=True, kw_only=True)
class BesideHistory:
    """Nothing: the history of an evidence row stands for itself."""


def history_findings(row: Mapping[str, Any], _beside: BesideHistory, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with the kept row of a replaced result."""
    about = row_of("evidence_history", row["history_id"])
    yield from shape_findings(about, row, Shape(tokens=("request_id", "job_id"), times=("moved_at",)))
    was = parse_strict(row["row_json"], max_bytes=LONGEST_ROW_BYTES)
    if (was["request_id"], was["job_id"]) != (row["request_id"], row["job_id"]):
        yield about.breaks("row_mismatch", "the kept row is not the one that its columns name")
    elif not is_sound(was, tokens=SHAPE.tokens, hashes=SHAPE.hashes):
        yield about.breaks("row_invalid", "the kept row is none that its state machine can have written")


@dataclass(frozen=True, kw_only=True)
class BesideSetbacks:
    """The rows that setbacks may speak of."""

    subjects: frozenset[tuple[str, str]]  # (subject, id) of evidence and deliveries, their histories included


def setback_row_findings(row: Mapping[str, Any], beside: BesideSetbacks, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with the record of one attempt's end."""
    about = row_of("setback", row["setback_id"])
    wait = row["retry_after_seconds"]
    is_plain = row["subject"] in SUBJECTS and row["outcome"] in OUTCOMES
    if not is_plain or not SETBACK_SHAPE.fits(row) or not (wait is None or is_count(int(wait))):
        yield about.breaks("row_invalid", "the record of an attempt's end holds what it must not")
    elif row["subject"] != "run_command" and (row["subject"], row["subject_id"]) not in beside.subjects:
        yield about.breaks("subject_missing", "the row whose attempt ended is gone")
