"""The worked examples in `docs/contracts/vectors.json`, and the one script that writes all generated files there.

`python -m tests.vectors` writes vectors, schemas, OpenAPI, AsyncAPI and the full examples again. The tests fail while
files and product differ, and recompute every id and hash with nothing but hashlib and a plain RFC 8785 writer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests import builders, examples
from worker.cli.schemas import published
from worker.domain.approval import build_approval
from worker.domain.canonical import canonical_text, hash_of, sha256_hex
from worker.domain.change import Job, Provider, parse_change
from worker.domain.delivery import ApprovedLocale, build_publication
from worker.domain.evidence import REQUEST_SCHEMA, EvidenceRequest, build_request, judge_response
from worker.domain.key import load_private, public_jwk
from worker.domain.policy import SitePolicy
from worker.domain.receipt import VerifiedReceipt, binding_for, receipt_sha256
from worker.domain.result import parse_result
from worker.domain.signature import SignedDocument, sign_detached

PATH: Final = Path(__file__).parent.parent / "docs" / "contracts" / "vectors.json"
GENERATED: Final = ("schemas", "examples")  # folders in which nothing else may stand

# The published example key of RFC 8037, appendix A.1: everybody knows it, so nothing may ever trust it.
EXAMPLE_KEY: Final = {
    "kty": "OKP",
    "crv": "Ed25519",
    "kid": "rfc8037-example",
    "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
}

TEXTS: Final = (
    "",
    "Welcome back",
    "Café résumé — à bientôt",
    "번역 완료",
    'A "quoted" line\nand \u2028 another \U0001f600',
)
LOCALES_ACCEPTED: Final = (
    *("de", "en-GB", "es-419", "fil", "fr-CA", "he", "pt-BR", "sr-Cyrl-RS", "sr-Latn", "yue"),
    *("zh-Hans", "zh-Hant-TW", "ca-valencia", "de-u-co-phonebk", "sl-rozaj-biske"),
)
LOCALES_REFUSED: Final = (
    *("", "-BR", "PT-br", "en-840", "en-GB-oed", "en-UK", "iw", "mo", "pt BR", "pt--BR", "pt-BR ", "pt-BR\n"),
    *(
        "pt_BR",
        "root",
        "sh",
        "x",
        "x-foo",
        "xx",
        "zh-Hant-",
        "zh-Hant-TW\u200b",
        "zh-cmn-Hans",
        "zh-hant-tw",
        "zh_Hant_TW",
    ),
    *("de-1901-1901", "en-a-bbb", "en-u-co-phonebk-t-ja"),
)


def make_vectors() -> dict[str, Any]:
    """Return the whole content of the file."""
    plain = builders.change_event(target_locales=["de", "fr-CA", "zh-Hant-TW"])
    commercial = builders.change_event(
        event_id="event-2", content_type="commercial", media_type="application/json", source_text='{"price":"€ 9"}'
    )
    legal = builders.change_event(event_id="event-3", content_type="legal", target_locales=["sr-Latn"])
    requests = [
        builders.request_for(plain, "de"),
        builders.request_for(plain, "fr-CA", confidence="low", candidate="Bon retour. Votre panier vous attend."),
        builders.request_for(commercial, "de", candidate='{"price":"9 €"}', revision="r2"),
        builders.request_for(legal, "sr-Latn"),
    ]
    jobs = [*parse_change(plain).jobs, *parse_change(commercial).jobs, *parse_change(legal).jobs]
    return {
        "note": "Worked examples for producers and reviewers in other languages; docs/contracts/README.md explains them.",
        "text_sha256": [{"text": text, "sha256": sha256_hex(text)} for text in TEXTS],
        "locales": {"accepted": list(LOCALES_ACCEPTED), "refused": list(LOCALES_REFUSED)},
        "job_id": [_example(_hashed_job(job), f"job-{hash_of(_hashed_job(job))}", job.job_id) for job in jobs],
        "plan_id": [_plan(event) for event in (plain, commercial, legal)],
        "result_sha256": [_result(plain), _result(commercial, replaces="0" * 64)],
        "request_id": [_request(request) for request in requests],
        "receipt_binding": [
            _binding(request, purpose) for request in requests for purpose in builders.reviews_for(request)
        ],
        "approval_id": [_approval(requests[0]), _approval(requests[1])],
        "delivery_id": [_publication(plain)],
        "signed_document": [
            _signed("submission", builders.submission(plain)),
            _signed("submission", builders.withdrawal(plain)),
        ],
    }


def _example(hashed: object, derived: str, told: str) -> dict[str, Any]:
    assert derived == told
    return {"hashed": hashed, "canonical": canonical_text(hashed), "id": told}


def _hashed_job(job: Job) -> dict[str, Any]:
    members = {name: value for name, value in vars(job).items() if name != "job_id"}
    return members | {"provider": job.provider.to_json()}


def _plan(event: dict[str, Any]) -> dict[str, Any]:
    change = parse_change(event)
    ids = [job.job_id for job in change.jobs]
    return _example(ids, f"plan-{hash_of(ids)}", change.plan_id)


def _result(event: dict[str, Any], **changes: Any) -> dict[str, Any]:
    document = builders.result_for(builders.job_for(event, "de"), **changes)
    result = parse_result(document)
    return {"document": document, "canonical": result.text, "sha256": result.sha256}


def _request(request: EvidenceRequest) -> dict[str, Any]:
    hashed = {"schema": REQUEST_SCHEMA, **request.binding}
    example = _example(hashed, f"evidence-{hash_of(hashed)}", request.request_id)
    return {**example, "request": dict(request.document)}


def _binding(request: EvidenceRequest, purpose: Any) -> dict[str, Any]:
    reviewer = Provider(**builders.REVIEWER) if purpose == "independent" else None
    binding = binding_for(request, purpose, reviewer)
    return {"document": dict(binding.document), "canonical": binding.payload().decode(), "sha256": binding.sha256}


def _approval(request: EvidenceRequest) -> dict[str, Any]:
    response: dict[str, Any] = {
        "schema": "locseal.evidence-response.v1",
        "request_id": request.request_id,
        "result_sha256": request.key.result_sha256,
        "quality_receipt": "quality receipt",
        "human_review_receipt": None,
        "independent_model_review": None,
    }
    if request.document["independent_review_required"]:
        response["human_review_receipt"] = "human receipt"
    evidence = judge_response(request, response)
    verified = [VerifiedReceipt(purpose="quality", receipt_sha256=receipt_sha256("quality receipt"), kid=None)]
    if evidence.human_receipt is not None:
        verified.append(VerifiedReceipt(purpose="human", receipt_sha256=receipt_sha256("human receipt"), kid=None))
    policy = SitePolicy()
    document = build_approval(
        request,
        evidence,
        verified,
        policy_sha256=policy.sha256,
        approved_at=builders.NOW,
        ttl_seconds=float(policy.approval_ttl_seconds),
    )
    return {"response": response, **_derived(document, "approval_id", "approval-")}


def _publication(event: dict[str, Any]) -> dict[str, Any]:
    change = parse_change(event)
    entries = []
    for locale in change.localization.target_locales:
        result = parse_result(builders.result_for(builders.job_for(change, locale)))
        approval = _approval(build_request(change, builders.job_for(change, locale), result, "r1"))["document"]
        entries.append(
            ApprovedLocale(
                locale=locale,
                target_text=result.candidate,
                target_sha256=result.target_sha256,
                approval_id=approval["approval_id"],
                approval_expires_at=approval["expires_at"],
            )
        )
    document = build_publication(change, entries)
    return {**_derived(document, "delivery_id", "delivery-"), "payload_sha256": hash_of(document)}


def _derived(document: Mapping[str, Any], member: str, prefix: str) -> dict[str, Any]:
    hashed = {name: value for name, value in document.items() if name != member}
    return {"document": dict(document), **_example(hashed, prefix + hash_of(hashed), document[member])}


def _signed(purpose: str, document: dict[str, Any]) -> dict[str, Any]:
    kid, key = load_private(EXAMPLE_KEY)
    payload = canonical_text(document)
    signature = sign_detached(purpose, kid, key, payload.encode())
    return {
        "purpose": purpose,
        "public_jwk": public_jwk(key, kid),
        "canonical": payload,
        "signed": SignedDocument(document, signature).to_json(),
    }


def write_text() -> str:
    """Return the exact text of the file."""
    return json.dumps(make_vectors(), ensure_ascii=False, indent=1) + "\n"


def texts() -> dict[Path, str]:
    """Return the exact text of every generated file, and of every page with its examples, by its path."""
    made = examples.texts()
    return {
        PATH: write_text(),
        **{PATH.parent / path: text for path, text in published().items()},
        **made,
        **{path: examples.page(path.read_text(encoding="utf-8"), made) for path in PATH.parent.glob("*.md")},
    }


def left_over() -> list[Path]:
    """Return files in the generated folders that nothing makes any more."""
    made = texts()
    return [path for folder in GENERATED for path in (PATH.parent / folder).iterdir() if path not in made]


def write() -> None:
    """Write everything that is generated, and remove what is made no more."""
    for path, text in texts().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in left_over():
        path.unlink()


if __name__ == "__main__":
    write()
