"""What upstream enqueues: a change event with zero or more results, or the withdrawal of an event. Checked whole.

Signatures are verified before these documents are read; which keys may speak for a site is judged by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from worker.domain.change import ChangeEvent, Job, parse_change
from worker.domain.document import Document, Token, parse_document
from worker.domain.errors import Invalid
from worker.domain.result import Result, check_result, parse_result

SUBMISSION_SCHEMA: Final = "locseal.submission.v1"
WITHDRAWAL_SCHEMA: Final = "locseal.withdrawal.v1"
LONGEST_SUBMISSION_BYTES: Final = 32 * 1024 * 1024
LONGEST_WITHDRAWAL_BYTES: Final = 65_536  # three tokens and a signature
INVALID: Final = "submission.invalid"


class SubmissionDocument(Document):
    """A submission as it travels; parsed part by part, so that a refusal names the exact member."""

    schema_: Annotated[Literal["locseal.submission.v1"], Field(alias="schema")]
    event: ChangeEvent
    results: list[Result]


class Withdrawal(Document):
    """Cancels an unpublished event, on the word of any submission key of its site."""

    schema_: Annotated[Literal["locseal.withdrawal.v1"], Field(alias="schema")]
    event_id: Token
    site_id: Token


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """A checked result beside the job it finishes."""

    job: Job
    result: Result


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A checked submission: every result belongs to a job of the event's plan, no job has two."""

    event: ChangeEvent
    results: tuple[JobResult, ...]

    @property
    def site_id(self) -> str:
        """Return the site it speaks for."""
        return self.event.site_id

    @property
    def plan_id(self) -> str:
        """Return the plan of its event."""
        return self.event.plan_id

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs of the plan, sorted by job id."""
        return self.event.jobs


def parse_submission(value: object) -> Submission:
    """Return a submission with every result checked against its job.

    An exact repeat of a result within the submission counts once. Raises `Invalid` with a `submission.*` code and the
    path of the offending member: beside those of events and results, `submission.result.job_unknown` for a result of
    no job of the plan, and `submission.result.conflict` for two different results of one job.
    """
    members = _members(value)
    event = parse_change(members["event"], path="event")
    if not isinstance(members["results"], list):
        raise Invalid(INVALID, "the results are an array", path="results")
    jobs = {job.job_id: job for job in event.jobs}
    found: dict[str, JobResult] = {}
    for position, item in enumerate(members["results"]):
        path = f"results.{position}"
        result = parse_result(item, path=path)
        job = jobs.get(result.job_id)
        if job is None:
            raise Invalid("submission.result.job_unknown", "the event's plan has no such job", path=f"{path}.job_id")
        check_result(job, event, result, path=path)
        known = found.setdefault(job.job_id, JobResult(job=job, result=result))
        if known.result.sha256 != result.sha256:
            raise Invalid("submission.result.conflict", "the submission holds two results for one job", path=path)
    return Submission(event=event, results=tuple(found[job_id] for job_id in sorted(found)))


def _members(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Invalid(INVALID, "a submission is a JSON object")
    if value.get("schema") != SUBMISSION_SCHEMA:
        raise Invalid(INVALID, f"the schema must be {SUBMISSION_SCHEMA}", path="schema")
    missing = [name for name in ("event", "results") if name not in value]
    if missing:
        raise Invalid(INVALID, "the member is missing", path=missing[0])
    if len(value) != 3:
        raise Invalid(INVALID, "a submission has exactly schema, event and results")
    return value


def parse_withdrawal(value: object) -> Withdrawal:
    """Return the withdrawal in a parsed JSON value; raise `Invalid("withdrawal.invalid")` with the member's path."""
    return parse_document(Withdrawal, value, area="withdrawal")
