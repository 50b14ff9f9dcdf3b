"""The full examples of the published contracts, held to nothing but their schemas, keys and each other."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from jsonschema import Draft202012Validator

from tests.examples import EXAMPLES
from worker.domain.contract import MODELS, json_schema
from worker.domain.errors import Invalid
from worker.domain.evidence import EvidenceKey, EvidenceRequest, judge_response
from worker.domain.key import PURPOSES, from_base64url
from worker.domain.receipt import ReceiptBinding, binding_for
from worker.domain.signature import TYP, check_disjoint, load_trust, verify_detached
from worker.domain.submission import parse_submission, parse_withdrawal

FOUND: dict[str, Any] = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in EXAMPLES.glob("*.json")}
KEYS = FOUND.pop("keys.json")
SIGNED = {
    "submission.json": "submission",
    "withdrawal.json": "submission",
    "evidence-response-pushed.json": "evidence",
    "approval.json": "approval",
    "publication.json": "publication",
    "acknowledgement.json": "acknowledgement",
    "lookup-answer.json": "acknowledgement",
}


def inner(file: str) -> dict[str, Any]:
    """Return the document of an example, without the signature around it."""
    document: dict[str, Any] = FOUND[file]["document"] if file in SIGNED else FOUND[file]
    return document


def digest(value: Any) -> str:
    """Return what any language returns for a value."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def verifies(purpose: str, document: dict[str, Any], signature: str) -> bool:
    """Verify a detached signature as another language would: by the RFCs and the published key alone."""
    header, proof = signature.split("..")
    read = json.loads(from_base64url(header) or b"")
    (jwk,) = KEYS["trust"][purpose]["keys"]
    assert read == {"alg": "Ed25519", "kid": jwk["kid"], "typ": TYP[purpose]}
    payload = json.dumps(document)  # whatever the members' order and spaces, RFC 8785 makes the same bytes
    trust = load_trust(purpose, KEYS["trust"][purpose])
    canonical = rfc8785.dumps(json.loads(payload))
    assert verify_detached(trust, canonical, signature, code="signature.invalid").kid == jwk["kid"]
    with pytest.raises(Invalid):
        verify_detached(trust, canonical + b" ", signature, code="signature.invalid")
    Ed25519PublicKey.from_public_bytes(from_base64url(jwk["x"]) or b"").verify(
        from_base64url(proof) or b"", header.encode() + b"." + _base64url(canonical)
    )
    return True


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def test_every_document_of_the_wire_has_an_example() -> None:
    """Each schema is shown by a file; an event and a result stand in the submission, a review in the response."""
    shown = {inner(file)["schema"] for file in FOUND}
    submitted = inner("submission.json")
    shown |= {submitted["event"]["schema"], *(result["schema"] for result in submitted["results"])}
    shown.add(inner("evidence-response.json")["independent_model_review"]["schema"])
    assert shown == set(MODELS) - {"locseal.signed-document"}


@pytest.mark.parametrize("file", sorted(FOUND))
def test_an_example_keeps_its_published_schema(file: str) -> None:
    """Every example is valid, and so is the envelope of a signed one."""
    document = inner(file)
    Draft202012Validator(json_schema(document["schema"])).validate(document)
    if file in SIGNED:
        Draft202012Validator(json_schema("locseal.signed-document")).validate(FOUND[file])


@pytest.mark.parametrize(("file", "purpose"), sorted(SIGNED.items()))
def test_a_signed_example_verifies_with_the_published_key(file: str, purpose: str) -> None:
    """The signature is made by the purpose's key over the canonical bytes of the document."""
    assert verifies(purpose, inner(file), FOUND[file]["signature"])


def test_the_keys_are_one_for_each_purpose() -> None:
    """No key serves two purposes, so the whole file could be a trust directory."""
    assert set(KEYS["trust"]) == set(KEYS["private"]) == set(PURPOSES)
    check_disjoint(load_trust(purpose, jwks) for purpose, jwks in KEYS["trust"].items())


def test_the_submission_is_one_that_intake_takes() -> None:
    """Both documents of the pipeline are read as they are, and name the same event."""
    taken = parse_submission(inner("submission.json"))
    assert {one.job.target_locale for one in taken.results} == {"de", "fr-CA"}
    assert parse_withdrawal(inner("withdrawal.json")).event_id == taken.event.event_id


def test_the_request_asks_about_the_submitted_result_and_the_response_answers_it() -> None:
    """Ids and hashes follow from the documents before; the answer passes every rule of a response."""
    asked, answer = inner("evidence-request.json"), inner("evidence-response.json")
    submitted = inner("submission.json")
    result = next(one for one in submitted["results"] if one["job_id"] == asked["job_id"])
    assert asked["result_sha256"] == digest(result)
    bound = {name: value for name, value in asked.items() if name not in {"request_id", "source_text", "target_text"}}
    assert asked["request_id"] == "evidence-" + digest(bound)
    names = ("request_id", "event_id", "plan_id", "job_id", "result_sha256", "evidence_revision")
    key = EvidenceKey(**{name: asked[name] for name in names})
    request = EvidenceRequest(key=key, site_id=submitted["event"]["site_id"], document=asked)
    evidence = judge_response(request, answer)
    assert evidence.independent_receipt is not None
    assert dict(binding_for(request, "independent", evidence.reviewer).document) == inner("receipt-binding.json")
    assert verifies("receipt:quality", dict(binding_for(request, "quality").document), answer["quality_receipt"])
    assert inner("evidence-response-pushed.json") == answer


def test_the_verification_is_about_the_receipt_of_the_response() -> None:
    """Question and answer name the binding and the receipt by their hashes, and the receipt proves the binding."""
    asked, answer = inner("verification.json"), inner("verification-answer.json")
    receipt = inner("evidence-response.json")["independent_model_review"]["receipt"]
    assert (asked["receipt"], asked["binding"]) == (receipt, inner("receipt-binding.json"))
    assert answer["binding_sha256"] == ReceiptBinding(purpose="independent", document=asked["binding"]).sha256
    assert answer["receipt_sha256"] == hashlib.sha256(receipt.encode()).hexdigest()
    assert verifies("receipt:independent", asked["binding"], receipt)


def test_the_approval_and_the_publication_follow() -> None:
    """The approval holds the receipts' hashes; the publication names the approval; both ids are derived."""
    approval, publication = inner("approval.json"), inner("publication.json")
    answer = inner("evidence-response.json")
    assert approval["quality_receipt_sha256"] == hashlib.sha256(answer["quality_receipt"].encode()).hexdigest()
    assert approval["independent_receipt_sha256"] == inner("verification-answer.json")["receipt_sha256"]
    for document, member, prefix in ((approval, "approval_id", "approval-"), (publication, "delivery_id", "delivery-")):
        rest = {name: value for name, value in document.items() if name != member}
        assert document[member] == prefix + digest(rest)
    entries = {entry["locale"]: entry for entry in publication["localizations"]}
    assert entries["fr-CA"]["approval_id"] == approval["approval_id"]
    assert entries["fr-CA"]["target_text"] == inner("evidence-request.json")["target_text"]


def test_acknowledgement_and_look_up_name_the_publication() -> None:
    """All three name its id and the hash of its canonical bytes; the answer repeats the nonce."""
    publication = inner("publication.json")
    named = (publication["delivery_id"], digest(publication))
    for file in ("acknowledgement.json", "lookup.json", "lookup-answer.json"):
        assert (inner(file)["delivery_id"], inner(file)["payload_sha256"]) == named
    assert inner("lookup-answer.json")["nonce"] == inner("lookup.json")["nonce"]


@pytest.mark.parametrize("path", sorted((EXAMPLES.parents[1] / "examples").glob("*.json")), ids=lambda path: path.name)
def test_what_the_readme_submits_is_taken(path: Path) -> None:
    """By the rules of intake, every locale translated."""
    submission = parse_submission(json.loads(path.read_text(encoding="utf-8")))
    assert len(submission.results) == len(submission.jobs)
