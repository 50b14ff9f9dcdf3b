"""Accepted documents and withdrawals: unchanged, signed, and nothing of them lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.domain.audit.finding import Finding, Row, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.audit.plain import Shape, shape_findings
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Blocked, Invalid
from worker.domain.evidence import RESPONSE_SCHEMA
from worker.domain.signature import SignedDocument, parse_signed
from worker.domain.submission import LONGEST_SUBMISSION_BYTES, parse_submission, parse_withdrawal

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
class Said:
    """What a sound document says that must still be there, by the ids and hashes of it."""

    about: Row
    kind: str
    site_id: str
    event_id: str
    event_sha256: str | None = None
    results: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # (job id, result hash)
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class BesideSubmissions:
    """What the database holds of what some documents say."""

    event_hashes: Mapping[str, str]  # event id -> hash of the event
    results: frozenset[tuple[str, str]] = field(repr=False)
    withdrawals: frozenset[tuple[str, str]]  # (event id, site id)
    responses: Mapping[str, str]  # document hash -> request id of the inbox


def submission_findings(row: Mapping[str, Any], kept: KeptKeys, said: Callable[[Said], object]) -> Iterator[Finding]:
    """Yield what is wrong with an accepted document; the first damage of its bytes hides what follows from it.

    What a sound document says is handed to `said`.
    """
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
        says = _read(about, row, signed)
    except Blocked:
        yield about.breaks("document_invalid", "the accepted document breaks a rule of its kind")
        return
    yield from kept.signature_findings(about, purpose, signed.payload(), signed.signature, row["kid"])
    if purpose == "submission":
        yield from kept.site_findings(about, purpose, signed.signature, says.site_id)
    if (says.site_id, says.event_id) != (row["site_id"], row["event_id"]):
        yield about.breaks("row_mismatch", "the row names another site or event than its document")
        return
    said(says)


def _read(about: Row, row: Mapping[str, Any], signed: SignedDocument) -> Said:
    kind = row["kind"]
    if kind == "release":
        submission = parse_submission(signed.document)
        event = submission.event
        results = tuple((pair.job.job_id, pair.result.sha256) for pair in submission.results)
        return Said(
            about=about,
            kind=kind,
            site_id=event.site_id,
            event_id=event.event_id,
            event_sha256=event.sha256,
            results=results,
        )
    if kind == "withdrawal":
        withdrawal = parse_withdrawal(signed.document)
        return Said(about=about, kind=kind, site_id=withdrawal.site_id, event_id=withdrawal.event_id)
    if signed.document.get("schema") != RESPONSE_SCHEMA:
        raise Invalid("submission.invalid", "no response of a review provider")
    request_id = signed.document.get("request_id")
    return Said(about=about, kind=kind, site_id=row["site_id"], event_id=row["event_id"], request_id=str(request_id))


def lost_findings(said: Said, beside: BesideSubmissions) -> Iterator[Finding]:
    """Yield what of an accepted document is not there any more."""
    about = said.about
    if said.kind == "withdrawal":
        if (said.event_id, said.site_id) not in beside.withdrawals:
            yield about.breaks("withdrawal_missing", "the withdrawal of an accepted document is gone")
    elif said.kind == "evidence":
        if beside.responses.get(about.row_id) != said.request_id:
            yield about.breaks("response_missing", "a response that was handed in is gone from the inbox")
    else:
        stored = beside.event_hashes.get(said.event_id)
        if stored is None:
            yield about.breaks("event_missing", "the event of an accepted document is gone")
        elif stored != said.event_sha256:
            yield about.breaks("event_mismatch", "the stored event is not the one that was accepted")
        if any(pair not in beside.results for pair in said.results):
            yield about.breaks("result_missing", "a result of an accepted document is gone")


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
