"""Approvals and the receipts behind them: signed, bound to one result, and proven by receipts that still verify."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.domain.approval import LONGEST_APPROVAL_BYTES, Approval, approval_id_of
from worker.domain.audit.finding import Finding, Row, row_of
from worker.domain.audit.kept_key import KeptKeys, kid_of
from worker.domain.audit.plain import Shape, shape_findings
from worker.domain.canonical import canonical_text, parse_strict
from worker.domain.document import parse_document
from worker.domain.errors import Blocked
from worker.domain.identifier import is_time
from worker.domain.policy import LONGEST_APPROVAL_SECONDS
from worker.domain.receipt import BINDING_SCHEMA, BOUND_FIELDS, PURPOSES, receipt_sha256

AREA = "approval"
REPEATED = ("approval_id", "job_id", "site_id", "result_sha256", "target_sha256", "request_id", "policy_sha256")
TIMES = ("approved_at", "expires_at")
GRAIN_SECONDS = 0.001  # a time may lose its last bits on its way into a column
SHAPE = Shape(
    tokens=("approval_id", "job_id", "site_id", "request_id", "kid"),
    hashes=("result_sha256", "target_sha256", "policy_sha256"),
    times=TIMES,
    optional_times=("revoked_at",),
)
RECEIPT_SHAPE = Shape(tokens=("request_id",), hashes=("receipt_sha256",), times=("verified_at",))


def derived_approval(text: object) -> Mapping[str, Any] | None:
    """Return a stored approval's document if its id is derived from exactly these bytes, else None."""
    if not isinstance(text, str):
        return None
    try:
        document = parse_strict(text, max_bytes=LONGEST_APPROVAL_BYTES)
        is_exact = canonical_text(document) == text and approval_id_of(document) == document["approval_id"]
        parse_document(Approval, document, area="release.approval")
    except (Blocked, KeyError, TypeError, AttributeError):
        return None
    return document if is_exact else None


@dataclass(frozen=True, kw_only=True)
class BesideApprovals:
    """What the database holds about some approvals."""

    receipts: Mapping[tuple[str, str], frozenset[str]]  # (request id, purpose) -> the hash kept and the hash derived
    targets: Mapping[tuple[str, str], str]  # (job id, result hash) -> target hash
    evidence: Mapping[str, str]  # request id -> status, `history` where it was moved there
    conflicting: frozenset[str]  # approvals given while another stood for another text of the same job


def approval_findings(row: Mapping[str, Any], beside: BesideApprovals, kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with an approval; expiry is no fault, history is read without it."""
    about = row_of(AREA, row["approval_id"])
    document = derived_approval(row["document"])
    if document is None:
        yield about.breaks("document_invalid", "the stored approval is not the document that its id is derived from")
        return
    yield from shape_findings(about, row, SHAPE)
    yield from kept.signature_findings(about, AREA, row["document"].encode(), row["signature"], row["kid"])
    is_same = all(row[name] == document[name] for name in REPEATED)
    if not is_same or any(abs(row[name] - document[name]) > GRAIN_SECONDS for name in TIMES):
        yield about.breaks("row_mismatch", "the row does not repeat its signed document")
    if not 0 < document["expires_at"] - document["approved_at"] <= LONGEST_APPROVAL_SECONDS + GRAIN_SECONDS:
        yield about.breaks("term_invalid", "the approval lasts longer than any may, or no time at all")
    yield from _reviews(about, document, beside)
    target = beside.targets.get((document["job_id"], document["result_sha256"]))
    if target is None:
        yield about.breaks("result_missing", "the approved result is gone")
    elif target != document["target_sha256"]:
        yield about.breaks("target_mismatch", "the approval names another text than its result")
    status = beside.evidence.get(document["request_id"])
    if status is None:
        yield about.breaks("evidence_missing", "the evidence row that led to the approval is gone")
    elif status not in {"succeeded", "history"}:
        yield about.breaks("evidence_open", "the evidence row that led to the approval did not succeed")
    if row["approval_id"] in beside.conflicting:
        yield about.breaks("target_conflict", "it was given while an approval of the job for another text stood")


def _reviews(about: Row, document: Mapping[str, Any], beside: BesideApprovals) -> Iterator[Finding]:
    human, independent = document["human_receipt_sha256"], document["independent_receipt_sha256"]
    given = (human is not None, independent is not None)
    if document["human_review_required"]:
        is_reviewed = given == (True, False)
    elif document["independent_review_required"]:
        is_reviewed = given in {(True, False), (False, True)}
    else:
        is_reviewed = given == (False, False)
    if not is_reviewed or (independent is None) != (document["reviewer"] is None):
        yield about.breaks("review_missing", "the approval does not rest on exactly the reviews that its result needs")
    for purpose in PURPOSES:
        named = document[f"{purpose}_receipt_sha256"]
        found = beside.receipts.get((document["request_id"], purpose))
        if named is not None and found is None:
            yield about.breaks("receipt_missing", f"the {purpose} receipt that the approval names is gone")
        elif named is None and found is not None:
            yield about.breaks("receipt_unexpected", f"a {purpose} receipt is kept that the approval does not name")
        elif found is not None and named not in found:
            yield about.breaks("receipt_mismatch", f"the kept {purpose} receipt is not the one that the approval names")


@dataclass(frozen=True, kw_only=True)
class BesideReceipts:
    """The approvals that some receipts led to: by request id their derived documents, None where one is damaged."""

    approvals: Mapping[str, Mapping[str, Any] | None] = field(repr=False)


def receipt_findings(row: Mapping[str, Any], beside: BesideReceipts, kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a receipt; one that is a JWS is verified again with its kept key."""
    about = row_of("receipt", row["request_id"], row["purpose"])
    if row["purpose"] not in PURPOSES or not RECEIPT_SHAPE.fits(row):
        yield about.breaks("row_invalid", "a column holds what it must not")
        return
    if receipt_sha256(row["receipt"]) != row["receipt_sha256"]:
        yield about.breaks("hash_mismatch", "the kept receipt is not the one that was hashed")
        return
    if row["request_id"] not in beside.approvals:
        yield about.breaks("approval_missing", "the approval that the receipt led to is gone")
    approval = beside.approvals.get(row["request_id"])
    if approval is not None and row["binding"] != _binding_text(row["purpose"], approval):
        yield about.breaks("binding_mismatch", "the receipt was verified for something else than its approval says")
        return
    yield from _signature(about, row, kept)


def _binding_text(purpose: str, approval: Mapping[str, Any]) -> str:
    document = {"schema": BINDING_SCHEMA, "purpose": purpose, **{name: approval[name] for name in BOUND_FIELDS}}
    return canonical_text({**document, "reviewer": approval["reviewer"]} if purpose == "independent" else document)


def _signature(about: Row, row: Mapping[str, Any], kept: KeptKeys) -> Iterator[Finding]:
    kid, purpose = kid_of(row["receipt"]), f"receipt:{row['purpose']}"
    if kid is None:
        if row["kid"] is not None and kept.holds(purpose, row["kid"]):
            yield about.breaks("signature_invalid", "the receipt is no signature, though its row names one of our keys")
        else:
            yield about.notes("opaque", "the receipt is no JWS: only its verifier can say again what it proves")
        return
    if not kept.holds(purpose, kid):
        yield about.notes("key_not_kept", "the receipt's key was its verifier's: it cannot be verified again offline")
        return
    yield from kept.signature_findings(about, purpose, row["binding"].encode(), row["receipt"], row["kid"])
    reviewer = parse_strict(row["binding"], max_bytes=LONGEST_APPROVAL_BYTES).get("reviewer")
    if reviewer is not None:
        yield from kept.reviewer_findings(about, row["receipt"], reviewer["id"])


def stood_at(row: Mapping[str, Any], document: Mapping[str, Any], moment: float) -> str | None:
    """Return why an approval did not stand at a time (`later`, `expired`, `revoked`), or None where it did."""
    if document["approved_at"] > moment + GRAIN_SECONDS:
        return "later"
    if document["expires_at"] <= moment:
        return "expired"
    revoked_at = row["revoked_at"]
    return "revoked" if revoked_at is not None and (not is_time(revoked_at) or revoked_at < moment) else None
