"""The published JSON Schemas."""

from __future__ import annotations

import copy
import json
import re
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
from worker.domain.change import Provider
from worker.domain.contract import MODELS, binding_model, definitions, json_schema
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
    binding = binding_for(LOW, "independent", Provider(**REVIEWER))
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
        dict(binding.document),
        {
            "schema": "locseal.verification.v1",
            "purpose": "independent",
            "receipt": "r",
            "binding": dict(binding.document),
        },
        {
            "schema": "locseal.verification-answer.v1",
            "purpose": "independent",
            "binding_sha256": binding.sha256,
            "receipt_sha256": "0" * 64,
            "verdict": "rejected",
            "kid": "unknown",
        },
        *(approval_document(KEYS, request) for request in (LOW, LEGAL, COMMERCIAL)),
        publication,
        acknowledgement_for(publication),
        LOOKUP.document(),
        lookup_answer_for(LOOKUP),
        lookup_answer_for(LOOKUP, status="absent"),
    ]
    return [json.loads(json.dumps(document)) for document in made]


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


@pytest.mark.parametrize("name", sorted(MODELS))
def test_bounds_are_those_of_the_type_they_stand_on(name: str) -> None:
    """A bound of another type, or one that is no keyword, would bind nobody: `ge`, or `maxLength` of an array."""
    fitting = {
        "string": {"minLength", "maxLength", "pattern"},
        "array": {"minItems", "maxItems"},
        "integer": {"minimum", "maximum"},
        "number": {"minimum", "maximum"},
    }
    pending: list[Any] = [json_schema(name)]
    while pending:
        part = pending.pop()
        pending.extend(part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())
        if isinstance(part, dict) and isinstance(part.get("type"), str):
            bounds = part.keys() & set().union(*fitting.values(), {"ge", "gt", "le", "lt", "min_length", "max_length"})
            assert bounds <= fitting.get(part["type"], set())


@pytest.mark.parametrize(
    ("name", "member", "value"),
    [
        ("locseal.approval.v1", "approved_at", -1),
        ("locseal.publication.v1", "localizations", []),
        ("locseal.publication.v1", "source_sequence", 2**53),
        ("locseal.change-event.v1", "source_sequence", 0),
    ],
)
def test_numbers_and_counts_are_bounded_in_the_schema_too(name: str, member: str, value: object) -> None:
    """What the product refuses for its size, the schema refuses."""
    document = next(one for one in documents() if one["schema"] == name)
    assert not Draft202012Validator(json_schema(name)).is_valid(document | {member: value})


def test_an_event_has_one_to_250_locales_in_the_schema_too() -> None:
    """The schema counts them."""
    validator = Draft202012Validator(json_schema("locseal.change-event.v1"))
    for count in (0, 251):
        event = copy.deepcopy(change_event())
        event["localization"]["target_locales"] = ["de"] * count
        assert not validator.is_valid(event)


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


def test_definitions_refer_to_each_other_where_they_will_stand() -> None:
    """Every reference in the definitions is one of them, under the template that was asked for."""
    found = definitions("#/x/{model}")
    text = json.dumps(found)
    referred = set(re.findall(r'"\$ref": "([^"]*)"', text))
    assert referred
    assert referred <= {f"#/x/{name}" for name in found}
    assert {model.__name__ for models in MODELS.values() for model in models} <= found.keys()


def test_an_independent_binding_without_its_reviewer_is_none() -> None:
    """The reviewer is there exactly for the independent purpose."""
    binding = dict(binding_for(LOW, "quality").document)
    schema = Draft202012Validator(json_schema("locseal.receipt-binding.v1"))
    for wrong in (binding | {"purpose": "independent"}, binding | {"reviewer": dict(builders.REVIEWER)}):
        assert not schema.is_valid(wrong)
        with pytest.raises(Invalid):
            parse_document(binding_model(wrong["purpose"]), wrong, area="x")
