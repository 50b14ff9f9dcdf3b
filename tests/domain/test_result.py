"""Results, and how they are held against their jobs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import change_event, job_for, parsed, result_for, submission, withdrawal
from worker.domain.canonical import canonical_text, hash_of, sha256_hex
from worker.domain.errors import Blocked, Invalid
from worker.domain.result import LONGEST_COMMERCIAL_REVIEW_BYTES, check_result, parse_result, result_sha256
from worker.domain.submission import parse_submission, parse_withdrawal

EVENT = parsed(change_event())
JOB = job_for(EVENT, "de")
COMMERCIAL = job_for(change_event(content_type="commercial"), "de")


def refusal_of(value: object) -> tuple[str, str]:
    """Return code and path of the refusal of a result."""
    with pytest.raises(Invalid) as refused:
        parse_result(value, path="results.0")
    return refused.value.code, refused.value.path


def mismatch_of(**changes: Any) -> tuple[str, str]:
    """Return code and path with which a well-formed result is held against its job."""
    with pytest.raises(Invalid) as refused:
        check_result(JOB, EVENT, parse_result(result_for(JOB, **changes)), path="results.0")
    return refused.value.code, refused.value.path


def test_a_result_is_kept_as_it_was_sent_without_what_it_replaces() -> None:
    """The hash is over the canonical document; `replaces` is an instruction and no part of it."""
    document = result_for(JOB)
    plain, replacing = parse_result(document), parse_result(document | {"replaces": "0" * 64})
    assert plain.document == document == replacing.document
    assert plain.text == canonical_text(document)
    assert plain.sha256 == hash_of(document) == replacing.sha256 == result_sha256(replacing)
    assert (plain.replaces, replacing.replaces) == (None, "0" * 64)
    check_result(JOB, EVENT, replacing)


@pytest.mark.parametrize("name", sorted(result_for(JOB)))
def test_every_member_but_replaces_is_required(name: str) -> None:
    """A missing member is refused and named."""
    document = result_for(JOB)
    del document[name]
    assert refusal_of(document) == ("submission.invalid", f"results.0.{name}")


@pytest.mark.parametrize(
    ("changes", "code", "path"),
    [
        ({"schema": "locseal.result.v0"}, "invalid", "schema"),
        ({"note": ""}, "invalid", "note"),
        ({"source_sha256": "A" * 64}, "invalid", "source_sha256"),
        ({"target_sha256": "a" * 64 + "\n"}, "invalid", "target_sha256"),
        ({"source_locale": "EN"}, "locale.invalid", "source_locale"),
        ({"target_locale": "iw"}, "locale.invalid", "target_locale"),
        ({"candidate": "a\x00"}, "text.invalid", "candidate"),
        ({"candidate": ""}, "text.invalid", "candidate"),
        ({"candidate": None}, "invalid", "candidate"),
        ({"review_confidence": {"target_native": "high"}}, "invalid", "review_confidence.source_fidelity"),
        (
            {"review_confidence": {"target_native": "medium", "source_fidelity": "low"}},
            "invalid",
            "review_confidence.target_native",
        ),
        (
            {"quality_profile": {"locale": "de_DE", "version": "1", "sha256": "0" * 64}},
            "locale.invalid",
            "quality_profile.locale",
        ),
        ({"quality_profile": {"locale": "de", "version": "1", "sha256": "0"}}, "invalid", "quality_profile.sha256"),
        ({"quality_profile": None}, "invalid", "quality_profile"),
        ({"human_review_required": 0}, "invalid", "human_review_required"),
        ({"independent_review_required": "false"}, "invalid", "independent_review_required"),
        ({"commercial_review": {}}, "commercial.invalid", "commercial_review"),
        ({"replaces": "first"}, "invalid", "replaces"),
    ],
)
def test_wrong_members_are_refused_by_name(changes: dict[str, Any], code: str, path: str) -> None:
    """Exact types, enumerations, texts and locales."""
    assert refusal_of(result_for(JOB) | changes) == (f"submission.{code}", f"results.0.{path}")


@pytest.mark.parametrize(
    ("review", "code"),
    [
        (None, "submission.commercial.invalid"),
        ("ok", "submission.invalid"),
        ([], "submission.invalid"),
        ({"note": ["Cafe\u0301"]}, "submission.text.invalid"),
        ({"a\x00": 1}, "submission.text.invalid"),
        ({"note": "x" * LONGEST_COMMERCIAL_REVIEW_BYTES}, "submission.commercial.invalid"),
    ],
)
def test_a_commercial_result_has_a_review_of_sound_texts(review: object, code: str) -> None:
    """It is an object, bounded, and every text in it keeps the rules of texts."""
    assert refusal_of(result_for(COMMERCIAL, commercial_review=review)) == (code, "results.0.commercial_review")


def test_a_commercial_review_is_any_object_and_is_hashed_as_it_came() -> None:
    """Its members are the reviewers' affair; none is lost, up to the bound."""
    review = {"claims": [{"price": 9.5, "ok": True, "note": None}], "deep": {"ü": [[1]]}, "fill": ""}
    review["fill"] = "x" * (LONGEST_COMMERCIAL_REVIEW_BYTES - len(canonical_text(review).encode()))
    document = result_for(COMMERCIAL, commercial_review=review)
    assert parse_result(document).sha256 == hash_of(document)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("job_id", "job-" + "0" * 64),
        ("source_locale", "en-GB"),
        ("target_locale", "fr-CA"),
        ("content_type", "ui"),
        ("glossary_version", "glossary-4"),
        ("policy_version", "policy-8"),
        ("software_version", "pipeline-2"),
        ("provider", {"id": "translator", "model_id": "tr-large", "model_version": "2026-02"}),
    ],
)
def test_a_result_matches_its_job_in_every_bound_member(name: str, value: object) -> None:
    """Any difference is refused and named."""
    assert mismatch_of(**{name: value}) == ("submission.result.mismatch", f"results.0.{name}")


@pytest.mark.parametrize("name", ["source_sha256", "target_sha256"])
def test_both_text_hashes_are_derived_again(name: str) -> None:
    """A declared hash is held against the text itself."""
    assert mismatch_of(**{name: sha256_hex("other")}) == ("submission.result.hash_mismatch", f"results.0.{name}")


@pytest.mark.parametrize("content_type", ["legal", "marketing"])
@pytest.mark.parametrize("native", ["high", "low"])
@pytest.mark.parametrize("fidelity", ["high", "low"])
def test_the_flags_follow_from_content_and_confidence(content_type: str, native: str, fidelity: str) -> None:
    """Human exactly for legal, independent exactly for low confidence of anything else; every other pair is refused."""
    event = parsed(change_event(content_type=content_type))
    job = job_for(event, "de")
    human = content_type == "legal"
    independent = not human and "low" in (native, fidelity)
    for flags in ((False, False), (False, True), (True, False), (True, True)):
        result = parse_result(
            result_for(
                job,
                review_confidence={"target_native": native, "source_fidelity": fidelity},
                human_review_required=flags[0],
                independent_review_required=flags[1],
            )
        )
        if flags == (human, independent):
            check_result(job, event, result)
            continue
        with pytest.raises(Invalid) as refused:
            check_result(job, event, result)
        wrong = "human_review_required" if flags[0] != human else "independent_review_required"
        assert (refused.value.code, refused.value.path) == ("submission.result.flags_mismatch", wrong)


# --- submissions and withdrawals ------------------------------------------------------------------------------------


def refused_submission(document: object) -> tuple[str, str]:
    """Return code and path of the refusal of a submission."""
    with pytest.raises(Invalid) as refused:
        parse_submission(document)
    return refused.value.code, refused.value.path


def test_a_submission_holds_an_event_and_results_by_job() -> None:
    """Results come back beside their jobs, in the order of job ids."""
    event = change_event(target_locales=["de", "fr-CA", "it"])
    results = [result_for(job_for(event, locale)) for locale in ("it", "de")]
    found = parse_submission(submission(event, results))
    assert found.plan_id == parsed(event).plan_id
    assert (found.site_id, found.jobs) == ("site-1", parsed(event).jobs)
    assert [one.job.job_id for one in found.results] == sorted(result["job_id"] for result in results)
    assert {one.result.sha256 for one in found.results} == {hash_of(result) for result in results}


def test_a_submission_without_results_is_whole() -> None:
    """Results may come later."""
    assert parse_submission(submission(change_event())).results == ()


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"schema": "locseal.submission.v2"}, "schema"),
        ({"schema": None}, "schema"),
        ({"results": None}, "results"),
        ({"results": {}}, "results"),
        ({"results": ["x"]}, "results.0"),
        ({"event": "x"}, "event"),
        ({"note": 1}, ""),
    ],
)
def test_a_submission_has_exactly_three_members(changes: dict[str, Any], path: str) -> None:
    """The outer object is as strict as the inner ones."""
    assert refused_submission(submission(change_event()) | changes) == ("submission.invalid", path)


@pytest.mark.parametrize(("name", "path"), [("schema", "schema"), ("event", "event"), ("results", "results")])
def test_no_member_of_a_submission_may_be_missing(name: str, path: str) -> None:
    """A missing member is named."""
    document = submission(change_event())
    del document[name]
    assert refused_submission(document) == ("submission.invalid", path)


@pytest.mark.parametrize("value", [None, [], "text", 1])
def test_what_is_no_object_is_no_submission(value: object) -> None:
    """Anything but an object is refused."""
    assert refused_submission(value) == ("submission.invalid", "")


def test_a_refusal_inside_names_the_whole_way() -> None:
    """Paths lead from the document to the member."""
    event = change_event(target_locales=["de", "DE"])
    assert refused_submission(submission(event)) == (
        "submission.locale.invalid",
        "event.localization.target_locales.1",
    )
    results = [result_for(JOB), result_for(job_for(EVENT, "fr-CA"), target_sha256="0" * 64)]
    assert refused_submission(submission(change_event(), results)) == (
        "submission.result.hash_mismatch",
        "results.1.target_sha256",
    )


def test_a_result_of_another_plan_is_refused() -> None:
    """A result belongs to a job of this event's plan."""
    stale = result_for(job_for(change_event(source_revision="rev-0"), "de"))
    assert refused_submission(submission(change_event(), [stale])) == (
        "submission.result.job_unknown",
        "results.0.job_id",
    )


def test_within_a_submission_a_repeat_counts_once_and_a_second_result_is_refused() -> None:
    """One job has one result."""
    first, second = result_for(JOB), result_for(JOB, candidate="Hallo")
    assert len(parse_submission(submission(change_event(), [first, first])).results) == 1
    assert refused_submission(submission(change_event(), [first, second])) == (
        "submission.result.conflict",
        "results.1",
    )


def test_a_withdrawal_names_event_and_site() -> None:
    """Exactly three members, both ids tokens."""
    found = parse_withdrawal(withdrawal(change_event()))
    assert (found.event_id, found.site_id) == ("event-1", "site-1")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"schema": "locseal.submission.v1"}, "schema"),
        ({"event_id": ""}, "event_id"),
        ({"site_id": None}, "site_id"),
        ({"reason": "x"}, "reason"),
    ],
)
def test_a_wrong_withdrawal_is_refused_by_name(changes: dict[str, Any], path: str) -> None:
    """A withdrawal has a code of its own."""
    with pytest.raises(Invalid) as refused:
        parse_withdrawal(withdrawal(change_event()) | changes)
    assert (refused.value.code, refused.value.path) == ("withdrawal.invalid", path)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON_VALUES, name=st.sampled_from(sorted(result_for(JOB))))
def test_arbitrary_json_in_a_result_is_refused_with_a_code_or_taken(value: Any, name: str) -> None:
    """Whatever stands in a member, the answer is a submission or one stable refusal."""
    code = None
    try:
        parse_submission(submission(change_event(), [result_for(JOB) | {name: value}]))
    except Blocked as refused:
        code = refused.code
    assert code is None or code.startswith("submission.")
