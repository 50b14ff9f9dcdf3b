"""The published JSON Schemas."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests import builders
from tests.builders import (
    REVIEWER,
    Keyring,
    acknowledgement_for,
    approval_document,
    change_event,
    lookup_answer_for,
    publication_for,
    request_for,
    response_for,
    results_for,
    submission,
    withdrawal,
)
from tests.vectors import SCHEMAS, schema_texts
from worker.domain.change import Provider
from worker.domain.contract import MODELS, binding_model, json_schema
from worker.domain.delivery import Lookup
from worker.domain.document import parse_document
from worker.domain.errors import Invalid
from worker.domain.receipt import PURPOSES, binding_for

KEYS = Keyring()
LOW = request_for(change_event(), "de", confidence="low")
LEGAL = request_for(change_event(content_type="legal"), "de")
COMMERCIAL = request_for(change_event(content_type="commercial"), "de")
LOOKUP = Lookup(delivery_id="delivery-1", payload_sha256="0" * 64, nonce="n-1")


def documents() -> list[dict[str, Any]]:
    """Return valid documents of every kind, as JSON."""
    event = change_event(content_type="commercial")
    publication = dict(publication_for(KEYS, event).document)
    independent = response_for(KEYS, LOW)
    made = [
        event,
        *results_for(event),
        submission(event, results_for(event)),
        withdrawal(event),
        *(dict(request.document) for request in (LOW, LEGAL, COMMERCIAL)),
        independent,
        independent["independent_model_review"],
        response_for(KEYS, LEGAL),
        dict(binding_for(COMMERCIAL, "quality").document),
        dict(binding_for(LEGAL, "human").document),
        dict(binding_for(LOW, "independent", Provider(**REVIEWER)).document),
        *(approval_document(KEYS, request) for request in (LOW, LEGAL, COMMERCIAL)),
        publication,
        acknowledgement_for(publication),
        LOOKUP.document(),
        lookup_answer_for(LOOKUP),
        lookup_answer_for(LOOKUP, status="absent"),
    ]
    return [json.loads(json.dumps(document)) for document in made]


def test_the_published_schemas_are_the_products() -> None:
    """Every file is generated, none is left over."""
    assert {path: path.read_text(encoding="utf-8") for path in SCHEMAS.glob("*")} == schema_texts()


def test_every_document_on_the_wire_has_a_schema_and_an_example() -> None:
    """Nothing travels that has no schema; nothing has a schema that these tests do not try."""
    assert {document["schema"] for document in documents()} == set(MODELS) - {"locseal.signed-document"}


@pytest.mark.parametrize("document", documents(), ids=lambda document: document["schema"])
def test_a_valid_document_keeps_its_schema_and_another_member_breaks_it(document: dict[str, Any]) -> None:
    """Schemas take what the product takes, member for member."""
    schema = json_schema(document["schema"])
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert validator.is_valid(document)
    assert not validator.is_valid(document | {"note": 1})
    for name in document.keys() - {"replaces"}:
        lacking = copy.deepcopy(document)
        del lacking[name]
        assert not validator.is_valid(lacking)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_schema_is_a_schema(name: str) -> None:
    """Draft 2020-12, titled by the document's name."""
    schema = json_schema(name)
    Draft202012Validator.check_schema(schema)
    assert schema["title"] == name


def test_the_envelope_is_document_and_signature() -> None:
    """A signed document has exactly two members, and its signature is detached."""
    validator = Draft202012Validator(json_schema("locseal.signed-document"))
    signed = KEYS.sign("submission", withdrawal(change_event()))
    assert validator.is_valid(json.loads(signed.to_text()))
    assert not validator.is_valid({"document": {}, "signature": "a.b.c"})
    assert not validator.is_valid({"document": "{}", "signature": signed.signature})


def test_documents_that_are_judged_by_hand_agree_with_their_models() -> None:
    """Requests and bindings as they are made are exactly what their models say."""
    for request in (LOW, LEGAL, COMMERCIAL):
        model = MODELS["locseal.evidence-request.v1"][0]
        assert parse_document(model, dict(request.document), area="x").to_json() == dict(request.document)
    for purpose in PURPOSES:
        reviewer = Provider(**REVIEWER) if purpose == "independent" else None
        binding = dict(binding_for(LOW, purpose, reviewer).document)
        assert parse_document(binding_model(purpose), binding, area="x").to_json() == binding


def test_an_independent_binding_without_its_reviewer_is_none() -> None:
    """The reviewer is there exactly for the independent purpose."""
    binding = dict(binding_for(LOW, "quality").document)
    schema = Draft202012Validator(json_schema("locseal.receipt-binding.v1"))
    for wrong in (binding | {"purpose": "independent"}, binding | {"reviewer": dict(builders.REVIEWER)}):
        assert not schema.is_valid(wrong)
        with pytest.raises(Invalid):
            parse_document(binding_model(wrong["purpose"]), wrong, area="x")
