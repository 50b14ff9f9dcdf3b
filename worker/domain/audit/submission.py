"""Accepted documents and withdrawals: unchanged, signed, and nothing of them lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.domain.audit.finding import Finding, Row, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.audit.plain import Shape, shape_findings
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Blocked
from worker.domain.evidence import RESPONSE_SCHEMA
from worker.domain.signature import SignedDocument, parse_signed
from worker.domain.submission import LONGEST_SUBMISSION_BYTES, Submission, parse_submission, parse_withdrawal

AREA = "submission"
WITHDRAWAL_AREA = "withdrawal"
PURPOSE_OF = {"release": "submission", "withdrawal": "submission", "evidence": "evidence"}
SHAPE = Shape(tokens=("site_id", "event_id", "kid"), hashes=("document_sha256",), times=("accepted_at",))
WITHDRAWAL_SHAPE = Shape(
    tokens=("event_id", "site_id"),
    hashes=("document_sha256",),
    times=("received_at",),
    optional_times=("applied_at",),
)


@dataclass(frozen=True, kw_only=True)
class BesideSubmissions:
    """What the database holds of what some submissions say."""

    event_hashes: Mapping[str, str]  # event id -> hash of the event
    results: frozenset[tuple[str, str]] = field(repr=False)  # (job id, result hash) of those events' plans
    withdrawals: frozenset[tuple[str, str]] = frozenset()  # (event id, site id)
    responses: Mapping[str, str] = field(default_factory=dict)  # document hash -> request id of the inbox


def submission_findings(row: Mapping[str, Any], beside: BesideSubmissions, kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with an accepted document; the first damage of its bytes hides what follows from it."""
    about = row_of(AREA, row["document_sha256"])
    if sha256_hex(row["body"]) != row["document_sha256"]:
        yield about.breaks("hash_mismatch", "the accepted document is not the one that was hashed")
        return
    yield from shape_findings(about, row, SHAPE)
    purpose = PURPOSE_OF.get(row["kind"])
    if purpose is None:
        yield about.breaks("kind_unknown", "no such kind of document is accepted")
        return
    try:
        signed = parse_signed(row["body"], max_bytes=LONGEST_SUBMISSION_BYTES, code="submission.invalid")
    except Blocked:
        yield about.breaks("document_invalid", "the accepted document is no signed document")
        return
    yield from kept.signature_findings(about, purpose, signed.payload(), signed.signature, row["kid"])
    if purpose == "submission":
        yield from kept.site_findings(about, purpose, signed.signature, row["site_id"])
    yield from _content(about, row, signed, beside)


def _content(
    about: Row, row: Mapping[str, Any], signed: SignedDocument, beside: BesideSubmissions
) -> Iterator[Finding]:
    try:
        if row["kind"] == "release":
            submission = parse_submission(signed.document)
            says = (submission.site_id, submission.event.event_id)
            lost = list(_lost(about, submission, beside))
        elif row["kind"] == "withdrawal":
            withdrawal = parse_withdrawal(signed.document)
            says = (withdrawal.site_id, withdrawal.event_id)
            lost = [] if (says[1], says[0]) in beside.withdrawals else [about.breaks("lost", "the withdrawal is gone")]
        else:
            says, lost = (row["site_id"], row["event_id"]), list(_response(about, row, signed, beside))
    except Blocked:
        yield about.breaks("document_invalid", "the accepted document breaks a rule of its kind")
        return
    if says != (row["site_id"], row["event_id"]):
        yield about.breaks("row_mismatch", "the row names another site or event than its document")
        return
    yield from lost


def _lost(about: Row, submission: Submission, beside: BesideSubmissions) -> Iterator[Finding]:
    event = submission.event
    stored = beside.event_hashes.get(event.event_id)
    if stored is None:
        yield about.breaks("event_missing", "the event of an accepted document is gone")
        return
    if stored != event.sha256:
        yield about.breaks("event_mismatch", "the stored event is not the one that was accepted")
    if any((pair.job.job_id, pair.result.sha256) not in beside.results for pair in submission.results):
        yield about.breaks("result_missing", "a result of an accepted document is gone")


def _response(
    about: Row, row: Mapping[str, Any], signed: SignedDocument, beside: BesideSubmissions
) -> Iterator[Finding]:
    if signed.document.get("schema") != RESPONSE_SCHEMA:
        yield about.breaks("document_invalid", "the accepted document is no response of a review provider")
    elif beside.responses.get(row["document_sha256"]) != signed.document.get("request_id"):
        yield about.breaks("response_missing", "a response that was handed in is gone from the inbox")


@dataclass(frozen=True, kw_only=True)
class BesideWithdrawals:
    """The events that some withdrawals name, and which of the documents behind them are kept."""

    events: Mapping[str, tuple[str, str]]  # event id -> (site id, state)
    documents: frozenset[str]


def withdrawal_findings(row: Mapping[str, Any], beside: BesideWithdrawals, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a withdrawal."""
    about = row_of(WITHDRAWAL_AREA, row["event_id"], row["site_id"])
    yield from shape_findings(about, row, WITHDRAWAL_SHAPE)
    if row["document_sha256"] not in beside.documents:
        yield about.breaks("submission_missing", "the signed document of the withdrawal is not kept")
    site_id, state = beside.events.get(row["event_id"], (None, None))
    if site_id != row["site_id"]:
        if row["applied_at"] is not None:
            yield about.breaks("event_missing", "the withdrawal was applied to an event that is not there")
    elif (state == "withdrawn") != (row["applied_at"] is not None):
        yield about.breaks("not_applied", "the event and its withdrawal disagree about whether it was withdrawn")
