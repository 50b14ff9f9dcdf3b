"""Release runs, their commands and what else keeps the fleet going: valid records and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.domain.audit.finding import Finding, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.audit.plain import Shape, lease_findings, shape_findings
from worker.domain.errors import RunCorrupt
from worker.domain.run_record import decode_record

COMMAND_SHAPE = Shape(
    tokens=("attempt_id", "run_id", "step_id", "site_id"),
    times=("next_attempt_at", "created_at", "updated_at"),
    optional_times=("last_woken_at",),
)
REJECTION_SHAPE = Shape(
    hashes=("document_sha256",), times=("first_at", "last_at"), codes=("code",), counts=("size_bytes", "times")
)
RESPONSE_SHAPE = Shape(tokens=("request_id",), hashes=("document_sha256",), times=("received_at",))
PERMIT_SHAPE = Shape(tokens=("delivery_id", "run_id"), times=("granted_at",))
REQUEST_SHAPE = Shape(hashes=("arguments_sha256",), times=("requested_at",))
SOURCE_SHAPE = Shape(tokens=("site_id", "source_id"), times=("created_at",))
PLAN_SHAPE = Shape(tokens=("plan_id", "job_id"))


@dataclass(frozen=True, kw_only=True)
class Known:
    """The ids, of whatever rows are asked for, that exist."""

    ids: frozenset[str] = frozenset()


def run_findings(row: Mapping[str, Any], _beside: Known, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield that a release run's record is damaged, or that its columns do not repeat it."""
    about = row_of("run", _text(row["run_id"]))
    try:
        record = decode_record(row["document"], run_id=_text(row["run_id"]))
    except RunCorrupt:
        yield about.breaks("record_invalid", "the release run's record is damaged")
        return
    if (_text(row["record_digest"]), _text(row["status"])) != (record["record_digest"], record["state"]["status"]):
        yield about.breaks("row_mismatch", "the row does not repeat its record")


def command_findings(row: Mapping[str, Any], beside: Known, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a command of a release run."""
    about = row_of("run_command", row["attempt_id"])
    yield from lease_findings(about, row, COMMAND_SHAPE)
    if row["run_id"] not in beside.ids:
        yield about.breaks("run_missing", "the release run of the command is gone")


def rejection_findings(row: Mapping[str, Any], _beside: Known, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a rejection."""
    yield from shape_findings(row_of("rejection", row["rejection_id"]), row, REJECTION_SHAPE)


def response_findings(row: Mapping[str, Any], beside: Known, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a response in the inbox."""
    about = row_of("response", row["document_sha256"])
    yield from shape_findings(about, row, RESPONSE_SHAPE)
    if row["document_sha256"] not in beside.ids:
        yield about.breaks("submission_missing", "the signed document of the response is not kept")


def permit_findings(row: Mapping[str, Any], beside: Known, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a permit to send a guided delivery."""
    about = row_of("permit", row["delivery_id"])
    yield from shape_findings(about, row, PERMIT_SHAPE)
    if row["run_id"] not in beside.ids:
        yield about.breaks("run_missing", "the release run that gave the permit is gone")


def request_row_findings(row: Mapping[str, Any], _beside: Known, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with the record of an operator's command."""
    yield from shape_findings(row_of("operator_request", row["request_id"]), row, REQUEST_SHAPE)


def source_findings(row: Mapping[str, Any], _beside: Known, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with the row that stands for a source."""
    yield from shape_findings(row_of("source", row["site_id"], row["source_id"]), row, SOURCE_SHAPE)


def plan_findings(row: Mapping[str, Any], beside: Known, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with one job of a plan; the plan as a whole is judged with its event."""
    about = row_of("plan", row["plan_id"], row["job_id"])
    yield from shape_findings(about, row, PLAN_SHAPE)
    if row["plan_id"] not in beside.ids:
        yield about.breaks("event_missing", "no event has this plan")


def _text(value: object) -> str:
    """Return a column's text, which damage may have made bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
