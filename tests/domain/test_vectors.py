"""The worked examples that producers in other languages build against."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import rfc8785

from tests.vectors import PATH, write_text
from worker.domain.errors import Invalid
from worker.domain.key import load_trust
from worker.domain.locale import locale_fault
from worker.domain.result import parse_result
from worker.domain.signature import parse_signed, verify_detached
from worker.domain.submission import parse_submission, parse_withdrawal

VECTORS: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
PREFIXES = {
    "job_id": "job-",
    "plan_id": "plan-",
    "request_id": "evidence-",
    "approval_id": "approval-",
    "delivery_id": "delivery-",
}
DERIVED = [(kind, example) for kind in PREFIXES for example in VECTORS[kind]]


def sha256(text: str) -> str:
    """Return what any language returns."""
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_file_is_what_the_product_makes() -> None:
    """The published examples are the product's own: any change of a contract changes the file in the same commit."""
    assert PATH.read_text(encoding="utf-8") == write_text()


@pytest.mark.parametrize(("kind", "example"), DERIVED)
def test_every_id_follows_from_its_hashed_value_alone(kind: str, example: dict[str, Any]) -> None:
    """An id is its prefix and the SHA-256 of the RFC 8785 bytes, as any other library computes them."""
    assert rfc8785.dumps(example["hashed"]).decode() == example["canonical"]
    assert PREFIXES[kind] + sha256(example["canonical"]) == example["id"]


def test_a_result_is_hashed_without_what_it_replaces() -> None:
    """`replaces` is no part of the result's hash, everything else is."""
    assert "replaces" in VECTORS["result_sha256"][1]["document"]
    for example in VECTORS["result_sha256"]:
        hashed = {name: value for name, value in example["document"].items() if name != "replaces"}
        assert rfc8785.dumps(hashed).decode() == example["canonical"]
        assert sha256(example["canonical"]) == example["sha256"] == parse_result(example["document"]).sha256


def test_a_receipt_is_made_over_the_bindings_canonical_bytes() -> None:
    """A reviewer can rebuild the bytes and their hash from the document."""
    assert [example["document"]["purpose"] for example in VECTORS["receipt_binding"]] == [
        "quality",
        "quality",
        "independent",
        "quality",
        "quality",
        "human",
    ]
    for example in VECTORS["receipt_binding"]:
        assert rfc8785.dumps(example["document"]).decode() == example["canonical"]
        assert sha256(example["canonical"]) == example["sha256"]


def test_texts_are_hashed_over_their_own_bytes() -> None:
    """A text's hash is over its UTF-8 bytes, not over a JSON string."""
    for example in VECTORS["text_sha256"]:
        assert sha256(example["text"]) == example["sha256"]


def test_the_listed_locales_are_taken_and_refused() -> None:
    """The lists of good and bad tags are exact."""
    assert [tag for tag in VECTORS["locales"]["accepted"] if locale_fault(tag)] == []
    assert [tag for tag in VECTORS["locales"]["refused"] if not locale_fault(tag)] == []


@pytest.mark.parametrize("example", VECTORS["signed_document"])
def test_a_signed_document_verifies_over_the_detached_canonical_bytes(example: dict[str, Any]) -> None:
    """The worked signatures verify for the example key and for nothing else."""
    signed = parse_signed(json.dumps(example["signed"]), max_bytes=1_000_000, code="signature.invalid")
    trust = load_trust(example["purpose"], {"keys": [example["public_jwk"] | {"sites": ["site-1"]}]})
    payload = example["canonical"].encode()
    assert signed.payload() == payload
    assert verify_detached(trust, payload, signed.signature, code="signature.invalid").kid == "rfc8037-example"
    with pytest.raises(Invalid, match=r"signature\.invalid"):
        verify_detached(trust, payload + b" ", signed.signature, code="signature.invalid")


def test_the_signed_examples_are_documents_of_the_wire() -> None:
    """The signed examples are a submission and a withdrawal that intake accepts."""
    submitted, withdrawn = (example["signed"]["document"] for example in VECTORS["signed_document"])
    assert parse_submission(submitted).plan_id == VECTORS["plan_id"][0]["id"]
    assert parse_withdrawal(withdrawn).event_id == "event-1"
