"""What is asked about one result, who may ask it now, and what became of the asking. No storage, no clock, no calls.

A *key* names one question for ever (its five binding fields are unique together); a *claim* is the right of one worker
to ask it once; a *status* is what anybody may see of it: ids, counts, times and codes, never content.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from worker.domain.canonical import canonical_bytes, exact_bytes, hash_of, read_written, sha256_hex
from worker.domain.change import Provider
from worker.domain.errors import Blocked, Invalid
from worker.domain.identifier import is_token

if TYPE_CHECKING:
    from worker.domain.change import ChangeEvent, Job
    from worker.domain.result import Result

REQUEST_SCHEMA: Final = "locseal.evidence-request.v1"
RESPONSE_SCHEMA: Final = "locseal.evidence-response.v1"
REVIEW_SCHEMA: Final = "locseal.independent-review.v1"
LONGEST_RECEIPT: Final = 16_384  # characters
LONGEST_RESPONSE_BYTES: Final = 1024 * 1024
RESPONSE_MEMBERS: Final = frozenset(
    {
        "schema",
        "request_id",
        "result_sha256",
        "quality_receipt",
        "human_review_receipt",
        "independent_model_review",
    }
)


@dataclass(frozen=True, kw_only=True)
class EvidenceKey:
    """The identity of one evidence row: its request id, and the binding that this id stands for."""

    request_id: str
    event_id: str
    plan_id: str
    job_id: str
    result_sha256: str
    evidence_revision: str


@dataclass(frozen=True, kw_only=True)
class EvidenceClaim:
    """A lease on one evidence row, as its holder got it. The row judges it; the holder cannot lengthen it.

    `lease_token` proves the lease, so it stays out of `repr` and thereby out of logs.
    """

    request_id: str
    lease_owner: str
    lease_token: str = field(repr=False)
    lease_expires_at: float
    attempt: int
    max_attempts: int


@dataclass(frozen=True, kw_only=True)
class EvidenceStatus:
    """One evidence row as anybody may see it. Times are seconds since the epoch by the database's clock."""

    request_id: str
    event_id: str
    plan_id: str
    job_id: str
    result_sha256: str
    evidence_revision: str
    status: str
    attempts: int
    max_attempts: int
    next_attempt_at: float
    lease_expires_at: float | None
    last_error_code: str | None
    schema: str = "locseal.evidence-status.v1"


@dataclass(frozen=True, kw_only=True)
class EvidenceRequest:
    """One question about one locale's result: its key, its site, and the whole document that the provider gets."""

    key: EvidenceKey
    site_id: str
    document: Mapping[str, Any]

    @property
    def request_id(self) -> str:
        """Return the id, which names everything that is bound."""
        return self.key.request_id

    @cached_property
    def binding(self) -> Mapping[str, Any]:
        """Return the bound members: the document without its schema, its id and the two texts."""
        unbound = {"schema", "request_id", "source_text", "target_text"}
        return {name: value for name, value in self.document.items() if name not in unbound}

    @cached_property
    def body(self) -> bytes:
        """Return the canonical bytes of the document: the body of the provider's call."""
        return canonical_bytes(self.document)

    def copy(self) -> EvidenceRequest:
        """Return an equal request that shares nothing changeable with this one: the provider's own."""
        return EvidenceRequest(key=self.key, site_id=self.site_id, document=read_written(self.body))

    def __repr__(self) -> str:
        """Return the id and a digest of the document as it now is: no content, and another text once it was changed."""
        return f"EvidenceRequest(request_id={self.request_id!r}, digest={_exact_digest(self.document)!r})"


@dataclass(frozen=True, kw_only=True)
class NotYet:
    """The provider accepted the work and has no answer yet; `retry_after_seconds` is the wait it asked for."""

    retry_after_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A judged answer: well-formed receipts in exactly the combination that the request calls for; not yet verified."""

    quality_receipt: str = field(repr=False)
    human_receipt: str | None = field(default=None, repr=False)
    independent_receipt: str | None = field(default=None, repr=False)
    reviewer: Provider | None = None


def build_request(event: ChangeEvent, job: Job, result: Result, revision: str) -> EvidenceRequest:
    """Return the request for the evidence of one result, in one revision.

    The caller has checked that the job belongs to the event's plan and the result to the job.
    """
    declared = result.document
    binding: dict[str, Any] = {
        "evidence_revision": revision,
        "event_id": event.event_id,
        "plan_id": event.plan_id,
        "job_id": job.job_id,
        "result_sha256": result.sha256,
        "source_sha256": job.source_sha256,
        "target_sha256": declared["target_sha256"],
        "source_locale": job.source_locale,
        "target_locale": job.target_locale,
        "media_type": job.media_type,
        "content_type": job.content_type,
        "glossary_version": job.glossary_version,
        "policy_version": job.policy_version,
        "provider": declared["provider"],
        "software_version": job.software_version,
        "review_confidence": declared["review_confidence"],
        "quality_profile": declared["quality_profile"],
        "commercial_profile": job.commercial_profile,
        "commercial_review": declared["commercial_review"],
        "human_review_required": declared["human_review_required"],
        "independent_review_required": declared["independent_review_required"],
    }
    request_id = request_id_of(binding)
    key = EvidenceKey(
        request_id=request_id,
        event_id=event.event_id,
        plan_id=event.plan_id,
        job_id=job.job_id,
        result_sha256=result.sha256,
        evidence_revision=revision,
    )
    document = {
        "schema": REQUEST_SCHEMA,
        "request_id": request_id,
        **binding,
        "source_text": event.localization.source_text,
        "target_text": declared["candidate"],
    }
    return EvidenceRequest(key=key, site_id=event.site_id, document=document)


def request_id_of(binding: Mapping[str, Any]) -> str:
    """Return the id of a request: `evidence-` and the hash of its schema and binding."""
    return "evidence-" + hash_of({"schema": REQUEST_SCHEMA, **binding})


def check_unmutated(request: EvidenceRequest, given: EvidenceRequest) -> None:
    """Raise `Blocked("evidence.request_mutated")` when the provider's copy is no longer what it was given."""
    is_same = given.key == request.key and given.document == request.document
    written = exact_bytes(given.document)  # `True` is not `1` there, nor `1` `1.0`
    if not is_same or written is None or written != exact_bytes(request.document):
        raise Blocked("evidence.request_mutated", "the provider changed its request; repair the provider's adapter")


def _exact_digest(document: object) -> str:
    """Return a digest that only the same values of the same types share (`True` is not `1`, nor `1` `1.0`)."""
    written = exact_bytes(document)
    return "unwritable" if written is None else sha256_hex(written)


def judge_response(request: EvidenceRequest, response: object) -> Evidence:
    """Return the evidence in a provider's parsed answer, or raise `Invalid` with the first rule it breaks.

    Every refusal is terminal. The order is the contract: shape, binding, quality receipt, escalation, and of an
    independent review its shape, its provider, its independence, its receipt.
    """
    if not isinstance(response, dict) or response.keys() != RESPONSE_MEMBERS:
        raise Invalid(
            "evidence.response.invalid", "the answer must be an object with exactly the members of a response"
        )
    expected = (RESPONSE_SCHEMA, request.request_id, request.key.result_sha256)
    if (response["schema"], response["request_id"], response["result_sha256"]) != expected:
        raise Invalid("evidence.response.binding_mismatch", "the answer belongs to another request, result or schema")
    quality = _receipt(response["quality_receipt"], "evidence.quality_receipt.invalid")
    human, review = response["human_review_receipt"], response["independent_model_review"]
    _check_escalation(request, human=human is not None, review=review is not None)
    if human is not None:
        return Evidence(quality_receipt=quality, human_receipt=_receipt(human, "evidence.human_receipt.required"))
    if review is not None:
        reviewer, receipt = _judge_review(request, review)
        return Evidence(quality_receipt=quality, independent_receipt=receipt, reviewer=reviewer)
    return Evidence(quality_receipt=quality)


def _check_escalation(request: EvidenceRequest, *, human: bool, review: bool) -> None:
    """Check that exactly the reviews are present that the request's flags call for."""
    if request.document["human_review_required"]:
        if review:
            raise Invalid(
                "evidence.independent_model_review.legal_forbidden",
                "a legal text is reviewed by a human, never a model",
            )
        if not human:
            raise Invalid("evidence.human_receipt.required", "a legal text needs the receipt of a human review")
    elif request.document["independent_review_required"]:
        if human == review:
            raise Invalid(
                "evidence.review_escalation.required", "low confidence needs exactly one human or independent review"
            )
    elif human or review:
        raise Invalid("evidence.review_escalation.unexpected", "no further review was asked for")


def _judge_review(request: EvidenceRequest, review: object) -> tuple[Provider, str]:
    """Return the reviewer and the receipt of an independent review."""
    if not isinstance(review, dict) or review.keys() != {"schema", "provider", "receipt"}:
        raise Invalid("evidence.independent_model_review.invalid", "the review must have exactly its three members")
    if review["schema"] != REVIEW_SCHEMA:
        raise Invalid("evidence.independent_model_review.invalid", "the review has another schema")
    named = review["provider"]
    if (
        not isinstance(named, dict)
        or named.keys() != {"id", "model_id", "model_version"}
        or not all(map(is_token, named.values()))
    ):
        raise Invalid("evidence.independent_model_review.provider.invalid", "a reviewer is exactly three tokens")
    if named["id"] == request.document["provider"]["id"]:
        raise Invalid(
            "evidence.independent_model_review.not_independent", "the reviewer must not be the translation provider"
        )
    return Provider(**named), _receipt(review["receipt"], "evidence.independent_model_review.receipt.required")


def _receipt(value: object, code: str) -> str:
    """Return a receipt that may be shown to a verifier: non-empty, stripped, NFC, bounded, without NUL."""
    if (
        not isinstance(value, str)
        or not value
        or len(value) > LONGEST_RECEIPT
        or value != value.strip()
        or "\x00" in value
        or not unicodedata.is_normalized("NFC", value)
        or not _encodes(value)
    ):
        raise Invalid(code, "a receipt is a non-empty, stripped NFC string of at most 16,384 characters without NUL")
    return value


def _encodes(value: str) -> bool:
    """Tell whether a string has a UTF-8 form (a lone surrogate has none)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
