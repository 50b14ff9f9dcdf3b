"""Valid documents of every kind, made the way their senders make them, signed with fresh keys. Plain values, no database.

Every builder returns a plain JSON object (or its signed form) that the product accepts as it is; a test changes the one
member it is about: `change_event(source_sequence=0)`, `result_for(job, candidate="…")`. Members of a localization are
reached by name too: `change_event(content_type="legal")`.

    keys = Keyring()                                    # satisfies `flow.services.Keys`
    event = change_event(target_locales=["de", "fr-CA"])
    text = signed_submission(keys, event, results_for(event))
    request = request_for(event, "de")
    response = response_for(keys, request)
    approval = approval_for(keys, request)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.keyring import SITE, Keyring
from worker.domain.approval import build_approval
from worker.domain.canonical import canonical_text, hash_of, sha256_hex
from worker.domain.change import ChangeEvent, Job, Provider, parse_change
from worker.domain.delivery import ApprovedLocale, Lookup, build_publication
from worker.domain.evidence import EvidenceRequest, build_request, judge_response
from worker.domain.policy import SitePolicy
from worker.domain.receipt import Purpose, ReceiptBinding, VerifiedReceipt, binding_for, receipt_sha256
from worker.domain.result import Result, parse_result
from worker.domain.signature import (
    SignedDocument,
    sign_detached,
)

NOW = 1_800_000_000.0
SOURCE_TEXT = "Welcome back. Your cart is waiting."
TRANSLATOR = {"id": "translator", "model_id": "tr-large", "model_version": "2026-01"}
REVIEWER = {"id": "reviewer", "model_id": "rv-large", "model_version": "2026-02"}

_EVENT_MEMBERS = {"schema", "event_id", "site_id", "website_version", "source_sequence", "localization"}


# --- what upstream sends --------------------------------------------------------------------------------------------


def change_event(**changes: Any) -> dict[str, Any]:
    """Return a change event; members of the localization are named directly."""
    localization: dict[str, Any] = {
        "source_id": "home.hero",
        "source_revision": "rev-1",
        "source_text": SOURCE_TEXT,
        "source_locale": "en",
        "media_type": "text/plain",
        "content_type": "marketing",
        "glossary_version": "glossary-3",
        "policy_version": "policy-7",
        "provider": dict(TRANSLATOR),
        "software_version": "pipeline-1.4.0",
        "commercial_profile": None,
        "target_locales": ["de", "fr-CA"],
    }
    event: dict[str, Any] = {
        "schema": "locseal.change-event.v1",
        "event_id": "event-1",
        "site_id": SITE,
        "website_version": "2026.02",
        "source_sequence": 1,
        "localization": localization,
    }
    for name, value in changes.items():
        (event if name in _EVENT_MEMBERS else localization)[name] = value
    if localization["content_type"] == "commercial" and "commercial_profile" not in changes:
        localization["commercial_profile"] = "retail-eu"
    return event


def parsed(event: Mapping[str, Any] | ChangeEvent) -> ChangeEvent:
    """Return the change event as the product reads it."""
    return event if isinstance(event, ChangeEvent) else parse_change(dict(event))


def job_for(event: Mapping[str, Any] | ChangeEvent, locale: str) -> Job:
    """Return the job of one locale."""
    return next(job for job in parsed(event).jobs if job.target_locale == locale)


def result_for(job: Job, **changes: Any) -> dict[str, Any]:
    """Return a valid result of a job; hashes and flags follow the changes unless they are changed themselves.

    `confidence="low"` makes the result one that needs an independent (or human) review.
    """
    low = changes.pop("confidence", "high") == "low"
    candidate = changes.get("candidate", f"[{job.target_locale}] {SOURCE_TEXT}")
    result: dict[str, Any] = {
        "schema": "locseal.result.v1",
        "job_id": job.job_id,
        "source_sha256": job.source_sha256,
        "target_sha256": sha256_hex(candidate),
        "source_locale": job.source_locale,
        "target_locale": job.target_locale,
        "content_type": job.content_type,
        "glossary_version": job.glossary_version,
        "policy_version": job.policy_version,
        "provider": job.provider.to_json(),
        "software_version": job.software_version,
        "candidate": candidate,
        "review_confidence": {"target_native": "low" if low else "high", "source_fidelity": "high"},
        "quality_profile": {"locale": job.target_locale, "version": "profile-2", "sha256": sha256_hex("profile-2")},
        "commercial_review": {"claims": ["price"], "verdict": "ok"} if job.content_type == "commercial" else None,
        "human_review_required": job.content_type == "legal",
        "independent_review_required": low and job.content_type != "legal",
    }
    return result | changes


def results_for(
    event: Mapping[str, Any] | ChangeEvent, *, locales: Iterable[str] | None = None, **changes: Any
) -> list[dict[str, Any]]:
    """Return a result for each job of an event, or for the named locales."""
    wanted = None if locales is None else set(locales)
    return [result_for(job, **changes) for job in parsed(event).jobs if wanted is None or job.target_locale in wanted]


def submission(event: Mapping[str, Any], results: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return a submission document."""
    return {"schema": "locseal.submission.v1", "event": dict(event), "results": [dict(result) for result in results]}


def signed_submission(keys: Keyring, event: Mapping[str, Any], results: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return the exact text that a producer puts into `release.submit`."""
    return keys.sign("submission", submission(event, results)).to_text()


def withdrawal(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the withdrawal of an event."""
    return {"schema": "locseal.withdrawal.v1", "event_id": event["event_id"], "site_id": event["site_id"]}


def signed_withdrawal(keys: Keyring, event: Mapping[str, Any]) -> str:
    """Return the exact text that a producer puts into `release.withdraw`."""
    return keys.sign("submission", withdrawal(event)).to_text()


# --- evidence and approval ------------------------------------------------------------------------------------------


def request_for(
    event: Mapping[str, Any] | ChangeEvent,
    locale: str = "de",
    *,
    result: Mapping[str, Any] | Result | None = None,
    revision: str = "r1",
    **changes: Any,
) -> EvidenceRequest:
    """Return the evidence request for one locale of an event (for a fresh `result_for(job, **changes)` by default)."""
    change, job = parsed(event), job_for(event, locale)
    if not isinstance(result, Result):
        result = parse_result(dict(result) if result is not None else result_for(job, **changes))
    return build_request(change, job, result, revision)


def receipt_for(keys: Keyring, binding: ReceiptBinding) -> str:
    """Return a receipt as a reviewer of ours makes it: a detached JWS over the binding's canonical bytes."""
    purpose = f"receipt:{binding.purpose}"
    return sign_detached(purpose, keys.kids[purpose], keys.private[purpose], binding.payload())


def reviews_for(request: EvidenceRequest) -> tuple[Purpose, ...]:
    """Return the purposes that the flags of a request call for; low confidence gets an independent review."""
    if request.document["human_review_required"]:
        return ("quality", "human")
    return ("quality", "independent") if request.document["independent_review_required"] else ("quality",)


def response_for(
    keys: Keyring, request: EvidenceRequest, *, reviews: Sequence[str] | None = None, **changes: Any
) -> dict[str, Any]:
    """Return a provider's answer with a valid receipt for each review that the request calls for."""
    reviews = reviews_for(request) if reviews is None else reviews
    reviewer = Provider(**REVIEWER)
    response: dict[str, Any] = {
        "schema": "locseal.evidence-response.v1",
        "request_id": request.request_id,
        "result_sha256": request.key.result_sha256,
        "quality_receipt": receipt_for(keys, binding_for(request, "quality")),
        "human_review_receipt": None,
        "independent_model_review": None,
    }
    if "human" in reviews:
        response["human_review_receipt"] = receipt_for(keys, binding_for(request, "human"))
    if "independent" in reviews:
        response["independent_model_review"] = {
            "schema": "locseal.independent-review.v1",
            "provider": dict(REVIEWER),
            "receipt": receipt_for(keys, binding_for(request, "independent", reviewer)),
        }
    return response | changes


def signed_response(keys: Keyring, request: EvidenceRequest, **changes: Any) -> str:
    """Return the exact text that a provider puts into `evidence.submit`."""
    return keys.sign("evidence", response_for(keys, request, **changes)).to_text()


def approval_document(
    keys: Keyring,
    request: EvidenceRequest,
    *,
    policy: SitePolicy | None = None,
    approved_at: float = NOW,
    ttl_seconds: float | None = None,
    response: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the approval that a verified answer to a request leads to."""
    policy = policy or SitePolicy()
    evidence = judge_response(request, dict(response or response_for(keys, request)))
    receipts: dict[Purpose, str | None] = {
        "quality": evidence.quality_receipt,
        "human": evidence.human_receipt,
        "independent": evidence.independent_receipt,
    }
    verified = [
        VerifiedReceipt(purpose=purpose, receipt_sha256=receipt_sha256(text), kid=keys.kids[f"receipt:{purpose}"])
        for purpose, text in receipts.items()
        if text is not None
    ]
    ttl_seconds = float(policy.approval_ttl_seconds) if ttl_seconds is None else ttl_seconds
    return build_approval(
        request, evidence, verified, policy_sha256=policy.sha256, approved_at=approved_at, ttl_seconds=ttl_seconds
    )


def approval_for(keys: Keyring, request: EvidenceRequest, **options: Any) -> SignedDocument:
    """Return the signed approval of a request's result; options as for `approval_document`."""
    return keys.sign("approval", approval_document(keys, request, **options))


# --- delivery -------------------------------------------------------------------------------------------------------


def publication_for(
    keys: Keyring, event: Mapping[str, Any] | ChangeEvent, *, results: Sequence[Mapping[str, Any]] | None = None
) -> SignedDocument:
    """Return the signed publication of an event, every locale approved at `NOW`."""
    change = parsed(event)
    entries = []
    for result in results if results is not None else results_for(change):
        request = request_for(change, result["target_locale"], result=result)
        approval = approval_document(keys, request)
        entries.append(
            ApprovedLocale(
                locale=result["target_locale"],
                target_text=result["candidate"],
                target_sha256=result["target_sha256"],
                approval_id=approval["approval_id"],
                approval_expires_at=approval["expires_at"],
            )
        )
    return keys.sign("publication", build_publication(change, entries))


def acknowledgement_for(publication: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the acknowledgement of a publication document."""
    acknowledgement = {
        "schema": "locseal.acknowledgement.v1",
        "site_id": publication["site_id"],
        "delivery_id": publication["delivery_id"],
        "payload_sha256": hash_of(publication),
        "status": "accepted",
    }
    return acknowledgement | changes


def lookup_answer_for(
    lookup: Lookup, *, status: str = "accepted", site_id: str = SITE, **changes: Any
) -> dict[str, Any]:
    """Return the answer of a CMS to a look-up."""
    answer = {
        "schema": "locseal.lookup-answer.v1",
        "site_id": site_id,
        "delivery_id": lookup.delivery_id,
        "payload_sha256": lookup.payload_sha256,
        "nonce": lookup.nonce,
        "status": status,
    }
    return answer | changes


def text_of(document: Mapping[str, Any]) -> str:
    """Return the canonical text of a document, which is how rows hold it."""
    return canonical_text(document)
