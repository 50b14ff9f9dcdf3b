"""The statement that one result may be published until a time: what it says, and how a stored one is held to it.

An approval carries everything that its receipts were bound to and the hashes of the receipts, never a receipt. Who
signs it and where it is kept is decided elsewhere; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field

from worker.domain.canonical import hash_of, parse_canonical
from worker.domain.change import ContentType, Provider
from worker.domain.document import Document, Hash, JsonObject, Locale, Seconds, Token, parse_document
from worker.domain.errors import Blocked, Invalid
from worker.domain.policy import LONGEST_APPROVAL_SECONDS
from worker.domain.receipt import BOUND_FIELDS, VerifiedReceipt, receipt_sha256
from worker.domain.result import QualityProfile, ReviewConfidence
from worker.domain.signature import TrustSet, verify_detached

if TYPE_CHECKING:
    from worker.domain.evidence import Evidence, EvidenceRequest

APPROVAL_SCHEMA: Final = "locseal.approval.v1"
TAMPERED: Final = "release.approval.tampered"
LONGEST_APPROVAL_BYTES: Final = 1024 * 1024


class Approval(Document):
    """A signed statement that one result may be published until `expires_at`.

    `human_receipt_sha256`, `independent_receipt_sha256` and `reviewer` are null where no such review was called for.
    """

    schema_: Annotated[Literal["locseal.approval.v1"], Field(alias="schema")]
    approval_id: Token
    site_id: Token
    request_id: Token
    evidence_revision: Token
    job_id: Token
    result_sha256: Hash
    source_sha256: Hash
    target_sha256: Hash
    source_locale: Locale
    target_locale: Locale
    content_type: ContentType
    glossary_version: Token
    policy_version: Token
    software_version: Token
    provider: Provider
    review_confidence: ReviewConfidence
    quality_profile: QualityProfile
    commercial_profile: Token | None
    commercial_review: JsonObject | None
    human_review_required: bool
    independent_review_required: bool
    quality_receipt_sha256: Hash
    human_receipt_sha256: Hash | None
    independent_receipt_sha256: Hash | None
    reviewer: Provider | None
    policy_sha256: Hash
    approved_at: Seconds
    expires_at: Seconds

    def is_current(self, now: float, accepted: frozenset[str]) -> bool:
        """Tell whether it has not expired at a time and was given under an accepted policy; revocation is a row's."""
        return now < self.expires_at and self.policy_sha256 in accepted


def build_approval(
    request: EvidenceRequest,
    evidence: Evidence,
    verified: Iterable[VerifiedReceipt],
    *,
    policy_sha256: str,
    approved_at: float,
    ttl_seconds: float,
) -> dict[str, Any]:
    """Return the approval of a request's result, with the `approval_id` that is derived from all the rest.

    `approved_at` is in seconds since the epoch, read after the provider's answer. Every receipt of the evidence must
    have been verified, and nothing else: `Blocked("release.approval.receipts")` otherwise.
    """
    if not 0 < ttl_seconds <= LONGEST_APPROVAL_SECONDS:
        raise Blocked("release.approval.ttl", "an approval lasts more than 0 and at most 31,536,000 seconds")
    hashes = {
        purpose: receipt_sha256(receipt)
        for purpose, receipt in (
            ("quality", evidence.quality_receipt),
            ("human", evidence.human_receipt),
            ("independent", evidence.independent_receipt),
        )
        if receipt is not None
    }
    proven = [(one.purpose, one.receipt_sha256) for one in verified]
    if sorted(proven) != sorted(hashes.items()):
        raise Blocked("release.approval.receipts", "the verified receipts are not exactly those of the evidence")
    document: dict[str, Any] = {
        "schema": APPROVAL_SCHEMA,
        "site_id": request.site_id,
        **{name: request.document[name] for name in BOUND_FIELDS},
        "quality_receipt_sha256": hashes["quality"],
        "human_receipt_sha256": hashes.get("human"),
        "independent_receipt_sha256": hashes.get("independent"),
        "reviewer": None if evidence.reviewer is None else evidence.reviewer.to_json(),
        "policy_sha256": policy_sha256,
        "approved_at": approved_at,
        "expires_at": approved_at + ttl_seconds,
    }
    return {**document, "approval_id": approval_id_of(document)}


def approval_id_of(document: Mapping[str, Any]) -> str:
    """Return the id of an approval: `approval-` and the hash of every member but the id itself."""
    return "approval-" + hash_of({name: value for name, value in document.items() if name != "approval_id"})


def check_approval(text: str, signature: str, trust: TrustSet, *, repeated: Mapping[str, Any]) -> Approval:
    """Return a stored approval after checking everything that was stored with it; expiry is not judged here.

    `repeated` holds what the row, the job or the result say too, by the approval's own member names (`approval_id`,
    `job_id`, `result_sha256`, `approved_at`, ...). Raises `Blocked("release.approval.tampered")` when bytes, id, shape,
    signature or any repeated member do not agree.
    """
    try:
        document = parse_canonical(text, max_bytes=LONGEST_APPROVAL_BYTES)
    except Invalid:
        raise _tampered("its bytes are no canonical JSON") from None
    try:
        approval = parse_document(Approval, document, area="release.approval")
    except Invalid as refused:
        raise _tampered(f"it is no approval at {refused.path}") from None
    if approval_id_of(document) != approval.approval_id:
        raise _tampered("its id is not derived from its content")
    for name, value in repeated.items():
        if document.get(name) != value:
            raise _tampered(f"it disagrees with what is stored beside it at {name}")
    verify_detached(trust, text.encode(), signature, code=TAMPERED, signed_at=approval.approved_at)
    return approval


def _tampered(what: str) -> Blocked:
    return Blocked(TAMPERED, f"the stored approval was changed: {what}; audit the job")
