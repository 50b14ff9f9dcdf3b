"""Evidence requests, and the judgement of what a provider answers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import (
    REVIEWER,
    SOURCE_TEXT,
    TRANSLATOR,
    Keyring,
    change_event,
    job_for,
    parsed,
    request_for,
    response_for,
    result_for,
)
from worker.domain.canonical import canonical_bytes, hash_of
from worker.domain.change import Provider
from worker.domain.errors import Blocked, Invalid
from worker.domain.evidence import (
    LONGEST_RECEIPT,
    Evidence,
    EvidenceRequest,
    check_unmutated,
    judge_response,
)

EVENT = change_event()
PLAIN = request_for(EVENT, "de")
LOW = request_for(EVENT, "de", confidence="low")
LEGAL = request_for(change_event(content_type="legal"), "de")
LEGAL_LOW = request_for(change_event(content_type="legal"), "de", confidence="low")
MISSING = object()


def review(**changes: Any) -> dict[str, Any]:
    """Return an independent review."""
    return {
        "schema": "locseal.independent-review.v1",
        "provider": dict(REVIEWER),
        "receipt": "independent receipt",
    } | changes


def answer(request: EvidenceRequest, **changes: Any) -> dict[str, Any]:
    """Return an answer with opaque receipts; no further review unless the changes bring one."""
    response = {
        "schema": "locseal.evidence-response.v1",
        "request_id": request.request_id,
        "result_sha256": request.key.result_sha256,
        "quality_receipt": "quality receipt",
        "human_review_receipt": None,
        "independent_model_review": None,
    } | changes
    return {name: value for name, value in response.items() if value is not MISSING}


def refusal_of(request: EvidenceRequest, response: object) -> str:
    """Return the code of the refusal of an answer; every refusal is terminal."""
    with pytest.raises(Blocked) as refused:
        judge_response(request, response)
    assert refused.value.retryable is False
    return refused.value.code


# --- the request ----------------------------------------------------------------------------------------------------


def test_a_request_holds_the_binding_and_both_texts() -> None:
    """One request is about exactly one locale, and has exactly the members of the contract."""
    change, job = parsed(EVENT), job_for(EVENT, "de")
    result = result_for(job)
    assert dict(PLAIN.document) == {
        "schema": "locseal.evidence-request.v1",
        "request_id": PLAIN.request_id,
        "evidence_revision": "r1",
        "event_id": "event-1",
        "plan_id": change.plan_id,
        "job_id": job.job_id,
        "result_sha256": hash_of(result),
        "source_sha256": job.source_sha256,
        "target_sha256": result["target_sha256"],
        "source_locale": "en",
        "target_locale": "de",
        "media_type": "text/plain",
        "content_type": "marketing",
        "glossary_version": "glossary-3",
        "policy_version": "policy-7",
        "provider": TRANSLATOR,
        "software_version": "pipeline-1.4.0",
        "review_confidence": {"target_native": "high", "source_fidelity": "high"},
        "quality_profile": result["quality_profile"],
        "commercial_profile": None,
        "commercial_review": None,
        "human_review_required": False,
        "independent_review_required": False,
        "source_text": SOURCE_TEXT,
        "target_text": result["candidate"],
    }
    assert PLAIN.body == canonical_bytes(dict(PLAIN.document))
    assert PLAIN.site_id == "site-1"


def test_the_request_id_is_derived_from_schema_and_binding() -> None:
    """The texts are bound by their hashes and are no part of the identity."""
    texts = {"request_id", "source_text", "target_text"}
    hashed = {name: value for name, value in PLAIN.document.items() if name not in texts}
    assert PLAIN.request_id == f"evidence-{hash_of(hashed)}"
    assert dict(PLAIN.binding) == {name: value for name, value in hashed.items() if name != "schema"}


def test_the_key_repeats_the_binding() -> None:
    """The row's five binding members are those of the document."""
    for name, value in vars(PLAIN.key).items():
        assert PLAIN.document[name] == value


@pytest.mark.parametrize(
    "other",
    [
        request_for(EVENT, "fr-CA"),
        request_for(EVENT, "de", revision="r2"),
        request_for(EVENT, "de", candidate="Hallo"),
        request_for(change_event(event_id="event-2"), "de"),
        request_for(change_event(target_locales=["de"]), "de"),
        request_for(EVENT, "de", quality_profile={"locale": "de", "version": "p", "sha256": "0" * 64}),
        LOW,
    ],
)
def test_any_other_question_has_another_id(other: EvidenceRequest) -> None:
    """Locale, revision, result, event and plan each make another request."""
    assert other.request_id != PLAIN.request_id


def test_a_commercial_request_carries_profile_and_review() -> None:
    """Both commercial members are bound."""
    request = request_for(change_event(content_type="commercial"), "de")
    assert request.binding["commercial_profile"] == "retail-eu"
    assert request.binding["commercial_review"] == {"claims": ["price"], "verdict": "ok"}


# --- the provider's copy --------------------------------------------------------------------------------------------


def change_text(document: Any) -> None:
    """Put another text into the document."""
    document["target_text"] = "other"


def change_deeply(document: Any) -> None:
    """Change a member of a member."""
    document["provider"]["id"] = "other"


def change_type(document: Any) -> None:
    """Put a value there that Python holds for equal."""
    document["human_review_required"] = 0


def add_member(document: Any) -> None:
    """Add a member."""
    document["note"] = None


def add_object(document: Any) -> None:
    """Add what is no JSON at all."""
    document["note"] = object()


@pytest.mark.parametrize("change", [change_text, change_deeply, change_type, add_member, add_object])
def test_a_mutated_request_is_noticed_and_the_original_is_not_touched(change: Any) -> None:
    """The provider works on its own copy; any change to it is a refusal, and visible in `repr` without content."""
    original = copy.deepcopy(dict(PLAIN.document))
    given = PLAIN.copy()
    check_unmutated(PLAIN, given)
    assert repr(given) == repr(PLAIN)
    change(given.document)
    with pytest.raises(Blocked) as refused:
        check_unmutated(PLAIN, given)
    assert (refused.value.code, refused.value.retryable) == ("evidence.request_mutated", False)
    assert repr(given) != repr(PLAIN)
    assert dict(PLAIN.document) == original


def test_another_request_is_a_mutated_one() -> None:
    """A copy that names another row is no copy."""
    other = EvidenceRequest(key=LOW.key, site_id=PLAIN.site_id, document=PLAIN.document)
    with pytest.raises(Blocked, match=r"evidence\.request_mutated"):
        check_unmutated(PLAIN, other)


def test_no_text_shows_in_repr() -> None:
    """Requests and evidence may be logged: neither text nor receipt is in there."""
    assert SOURCE_TEXT not in repr(PLAIN)
    assert "CANARY" not in repr(Evidence(quality_receipt="CANARY", human_receipt="CANARY"))


# --- shape and binding ----------------------------------------------------------------------------------------------


def test_a_plain_answer_is_its_quality_receipt() -> None:
    """Without flags the quality receipt is all there is."""
    assert judge_response(PLAIN, answer(PLAIN)) == Evidence(quality_receipt="quality receipt")


@pytest.mark.parametrize("response", [None, [], "text", 5, True, {}, {"schema": "locseal.evidence-response.v1"}])
def test_what_is_no_answer_is_invalid(response: object) -> None:
    """Not an object, or another set of members."""
    assert refusal_of(PLAIN, response) == "evidence.response.invalid"


@pytest.mark.parametrize("name", sorted(answer(PLAIN)))
def test_every_member_of_an_answer_must_be_there(name: str) -> None:
    """A missing member makes another key set, whatever else is right."""
    assert refusal_of(PLAIN, answer(PLAIN, **{name: MISSING})) == "evidence.response.invalid"


def test_no_other_member_may_be_there() -> None:
    """An additional member makes another key set."""
    assert refusal_of(PLAIN, answer(PLAIN) | {"note": None}) == "evidence.response.invalid"


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "locseal.evidence-response.v2"},
        {"schema": None},
        {"request_id": LOW.request_id},
        {"request_id": ["x"]},
        {"result_sha256": "0" * 64},
        {"result_sha256": None},
    ],
)
def test_an_answer_to_something_else_is_a_mismatch(changes: dict[str, Any]) -> None:
    """Another schema, request id or result hash; checked before the receipts."""
    assert refusal_of(PLAIN, answer(PLAIN, quality_receipt=None, **changes)) == "evidence.response.binding_mismatch"


# --- receipts -------------------------------------------------------------------------------------------------------

MALFORMED = [
    None,
    "",
    " ",
    " x",
    "x\n",
    "a\x00b",
    "Cafe\u0301",
    "\ud800",
    "x" * (LONGEST_RECEIPT + 1),
    5,
    True,
    ["x"],
    {"receipt": "x"},
    b"x",
]


@pytest.mark.parametrize("receipt", MALFORMED)
def test_a_malformed_quality_receipt_is_refused_first(receipt: object) -> None:
    """It comes before every rule about further reviews."""
    wrong = answer(PLAIN, quality_receipt=receipt, human_review_receipt="unasked")
    assert refusal_of(PLAIN, wrong) == "evidence.quality_receipt.invalid"


@pytest.mark.parametrize("receipt", MALFORMED)
def test_a_missing_or_malformed_human_receipt_is_the_same_refusal(receipt: object) -> None:
    """For legal content there is one code for both."""
    assert refusal_of(LEGAL, answer(LEGAL, human_review_receipt=receipt)) == "evidence.human_receipt.required"


@pytest.mark.parametrize("receipt", MALFORMED[1:])
def test_a_malformed_human_receipt_for_low_confidence_is_refused(receipt: object) -> None:
    """The same code where a human review stands for an independent one."""
    assert refusal_of(LOW, answer(LOW, human_review_receipt=receipt)) == "evidence.human_receipt.required"


@pytest.mark.parametrize("receipt", MALFORMED)
def test_a_malformed_independent_receipt_is_refused(receipt: object) -> None:
    """It has a code of its own."""
    wrong = answer(LOW, independent_model_review=review(receipt=receipt))
    assert refusal_of(LOW, wrong) == "evidence.independent_model_review.receipt.required"


@pytest.mark.parametrize("receipt", ["x", "x" * LONGEST_RECEIPT, "é" * LONGEST_RECEIPT, "a b", '{"any": "text"}'])
def test_a_well_formed_receipt_is_taken_as_it_is(receipt: str) -> None:
    """A receipt is opaque; the bound counts characters."""
    assert judge_response(PLAIN, answer(PLAIN, quality_receipt=receipt)).quality_receipt == receipt


# --- escalation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"human_review_receipt": "human receipt"},
        {"independent_model_review": review()},
        {"human_review_receipt": "human receipt", "independent_model_review": review()},
        {"human_review_receipt": ""},
        {"independent_model_review": {}},
        {"independent_model_review": False},
    ],
)
def test_a_review_that_nobody_asked_for_is_refused(changes: dict[str, Any]) -> None:
    """With neither flag set there is no further review, well-formed or not."""
    assert refusal_of(PLAIN, answer(PLAIN, **changes)) == "evidence.review_escalation.unexpected"


def test_a_legal_text_is_reviewed_by_a_human_alone() -> None:
    """The human receipt suffices, also with low confidence."""
    for request in (LEGAL, LEGAL_LOW):
        judged = judge_response(request, answer(request, human_review_receipt="human receipt"))
        assert judged == Evidence(quality_receipt="quality receipt", human_receipt="human receipt")


@pytest.mark.parametrize("human", [None, "human receipt", ""])
@pytest.mark.parametrize("independent", [review(), review(receipt=None), {}, "x"])
def test_a_model_never_reviews_a_legal_text(human: object, independent: object) -> None:
    """It is forbidden, whatever else is there."""
    wrong = answer(LEGAL_LOW, human_review_receipt=human, independent_model_review=independent)
    assert refusal_of(LEGAL_LOW, wrong) == "evidence.independent_model_review.legal_forbidden"


@pytest.mark.parametrize(
    "changes", [{}, {"human_review_receipt": "human receipt", "independent_model_review": review()}]
)
def test_low_confidence_needs_exactly_one_further_review(changes: dict[str, Any]) -> None:
    """Neither is too little, both are too much."""
    assert refusal_of(LOW, answer(LOW, **changes)) == "evidence.review_escalation.required"


def test_low_confidence_is_met_by_a_human_or_by_another_model() -> None:
    """Either one suffices."""
    human = judge_response(LOW, answer(LOW, human_review_receipt="human receipt"))
    assert human == Evidence(quality_receipt="quality receipt", human_receipt="human receipt")
    model = judge_response(LOW, answer(LOW, independent_model_review=review()))
    assert model == Evidence(
        quality_receipt="quality receipt", independent_receipt="independent receipt", reviewer=Provider(**REVIEWER)
    )


# --- the independent review -----------------------------------------------------------------------------------------

BAD_PROVIDER: dict[str, Any] = {"id": "no token"}


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        5,
        [],
        {},
        review() | {"note": 1},
        {name: value for name, value in review().items() if name != "receipt"},
        review(schema="locseal.independent-review.v2"),
        review(schema=None, provider=BAD_PROVIDER, receipt=None),
    ],
)
def test_an_independent_review_has_exactly_its_members_and_schema(wrong: object) -> None:
    """Other keys or another schema; this comes before its provider and receipt."""
    assert refusal_of(LOW, answer(LOW, independent_model_review=wrong)) == "evidence.independent_model_review.invalid"


@pytest.mark.parametrize(
    "provider",
    [
        None,
        "reviewer",
        [],
        {},
        {"id": "reviewer", "model_id": "m"},
        REVIEWER | {"note": "x"},
        REVIEWER | {"id": ""},
        REVIEWER | {"model_id": 5},
        REVIEWER | {"model_version": "v 1"},
        REVIEWER | {"id": TRANSLATOR["id"], "model_version": "v\n"},
    ],
)
def test_a_reviewer_is_exactly_three_tokens(provider: object) -> None:
    """Checked before independence and receipt."""
    wrong = answer(LOW, independent_model_review=review(provider=provider, receipt=None))
    assert refusal_of(LOW, wrong) == "evidence.independent_model_review.provider.invalid"


def test_a_reviewer_is_not_the_translation_provider() -> None:
    """Another model of the same provider is not independent; this comes before the receipt."""
    same = {"id": TRANSLATOR["id"], "model_id": "other", "model_version": "other"}
    wrong = answer(LOW, independent_model_review=review(provider=same, receipt=None))
    assert refusal_of(LOW, wrong) == "evidence.independent_model_review.not_independent"


# --- whatever comes -------------------------------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["x", "reviewer"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ANSWERS = JSON_VALUES | st.fixed_dictionaries(
    {
        "schema": st.just("locseal.evidence-response.v1") | JSON_VALUES,
        "request_id": st.sampled_from([PLAIN.request_id, LOW.request_id, LEGAL.request_id]) | JSON_VALUES,
        "result_sha256": st.sampled_from([one.key.result_sha256 for one in (PLAIN, LOW, LEGAL)]) | JSON_VALUES,
        "quality_receipt": st.just("q") | JSON_VALUES,
        "human_review_receipt": st.none() | JSON_VALUES,
        "independent_model_review": st.none()
        | JSON_VALUES
        | st.fixed_dictionaries(
            {
                "schema": st.just("locseal.independent-review.v1") | JSON_VALUES,
                "provider": st.just(REVIEWER) | JSON_VALUES,
                "receipt": st.just("i") | JSON_VALUES,
            }
        ),
    }
)


@given(request=st.sampled_from([PLAIN, LOW, LEGAL]), response=ANSWERS)
def test_any_json_is_judged_or_refused_with_a_code_of_evidence(request: EvidenceRequest, response: Any) -> None:
    """Nothing but a stable refusal ever comes out, and what passes has exactly the reviews that are called for."""
    try:
        judged = judge_response(request, response)
    except Blocked as refused:
        code, judged = refused.code, None
    else:
        code = "evidence."
    assert code.startswith("evidence.")
    if judged is not None:
        further = (judged.human_receipt is not None) + (judged.independent_receipt is not None)
        assert further == (request is not PLAIN)
        assert (judged.reviewer is None) == (judged.independent_receipt is None)
        assert request is not LEGAL or judged.human_receipt is not None


@pytest.mark.parametrize("request_", [PLAIN, LOW, LEGAL])
def test_the_builders_answers_pass(request_: EvidenceRequest) -> None:
    """What the builders make is what a good provider sends."""
    judged = judge_response(request_, response_for(Keyring(), request_))
    assert isinstance(judged, Evidence)


def test_refusals_are_invalid_input() -> None:
    """Wrong content is a refusal of input, so nobody may take it for a fault that passes."""
    with pytest.raises(Invalid):
        judge_response(PLAIN, None)
