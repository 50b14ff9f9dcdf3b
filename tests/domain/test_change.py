"""Change events, their jobs and their plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import SOURCE_TEXT, change_event
from worker.domain.canonical import canonical_text, hash_of, parse_strict, sha256_hex
from worker.domain.change import MAX_SEQUENCE, jobs_of, parse_change, plan_id_of
from worker.domain.errors import Blocked, Invalid

HASH_OF_TEXT = sha256_hex(SOURCE_TEXT)


def refusal_of(event: object) -> tuple[str, str]:
    """Return code and path of the refusal of an event."""
    with pytest.raises(Invalid) as refused:
        parse_change(event, path="event")
    return refused.value.code, refused.value.path


def without(name: str, *, inside: bool = False) -> dict[str, Any]:
    """Return an event that lacks one member."""
    event = change_event()
    del (event["localization"] if inside else event)[name]
    return event


def test_an_event_keeps_exactly_what_was_sent() -> None:
    """The stored event is the canonical form of the document that came, nothing added and nothing lost."""
    event = change_event(source_sequence=7)
    change = parse_change(event)
    assert change.document == event
    assert change.text == canonical_text(event)
    assert change.sha256 == hash_of(event)
    assert change.source_sha256 == HASH_OF_TEXT


@pytest.mark.parametrize(
    "name", ["schema", "event_id", "site_id", "website_version", "source_sequence", "localization"]
)
def test_every_member_of_an_event_is_required(name: str) -> None:
    """A missing member is refused and named."""
    assert refusal_of(without(name)) == ("submission.invalid", f"event.{name}")


@pytest.mark.parametrize("name", sorted(change_event()["localization"]))
def test_every_member_of_a_localization_is_required(name: str) -> None:
    """A missing member is refused and named; `commercial_profile` must be there even as null."""
    assert refusal_of(without(name, inside=True)) == ("submission.invalid", f"event.localization.{name}")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"schema": "locseal.change-event.v2"}, "event.schema"),
        ({"event_id": "event 1"}, "event.event_id"),
        ({"event_id": "event-1\n"}, "event.event_id"),
        ({"event_id": ""}, "event.event_id"),
        ({"site_id": "s" * 257}, "event.site_id"),
        ({"website_version": 2}, "event.website_version"),
        ({"source_sequence": 0}, "event.source_sequence"),
        ({"source_sequence": True}, "event.source_sequence"),
        ({"source_sequence": "1"}, "event.source_sequence"),
        ({"source_sequence": 1.5}, "event.source_sequence"),
        ({"source_sequence": MAX_SEQUENCE + 1}, "event.source_sequence"),
        ({"localization": None}, "event.localization"),
        ({"localization": []}, "event.localization"),
        ({"media_type": "text/xml"}, "event.localization.media_type"),
        ({"media_type": "TEXT/HTML"}, "event.localization.media_type"),
        ({"content_type": "news"}, "event.localization.content_type"),
        ({"content_type": None}, "event.localization.content_type"),
        ({"glossary_version": "ü"}, "event.localization.glossary_version"),
        ({"policy_version": None}, "event.localization.policy_version"),
        ({"software_version": ["1"]}, "event.localization.software_version"),
        ({"source_revision": "a/b"}, "event.localization.source_revision"),
        ({"source_text": 5}, "event.localization.source_text"),
        ({"source_text": b"bytes"}, "event.localization.source_text"),
        ({"provider": {"id": "a", "model_id": "b"}}, "event.localization.provider.model_version"),
        ({"provider": "a"}, "event.localization.provider"),
        ({"target_locales": []}, "event.localization.target_locales"),
        ({"target_locales": "de"}, "event.localization.target_locales"),
        ({"target_locales": {"de": 1}}, "event.localization.target_locales"),
        ({"target_locales": ["de", 5]}, "event.localization.target_locales.1"),
    ],
)
def test_wrong_values_are_refused_by_name(changes: dict[str, Any], path: str) -> None:
    """Exact types and enumerations; the refusal names the member and never shows the value."""
    assert refusal_of(change_event(**changes)) == ("submission.invalid", path)


@pytest.mark.parametrize("value", [None, [], "event", 5, True])
def test_what_is_no_object_is_no_event(value: object) -> None:
    """Anything but an object is refused at the event itself."""
    assert refusal_of(value) == ("submission.invalid", "event")


def test_unknown_members_are_refused_and_named_only_when_they_look_like_members() -> None:
    """An unknown member is named if its name can be no text; other names stay out of the refusal."""
    assert refusal_of(change_event() | {"priority": 1}) == ("submission.invalid", "event.priority")
    assert refusal_of(change_event() | {"Geheimer Text": 1}) == ("submission.invalid", "event")
    assert refusal_of(change_event(note="x")) == ("submission.invalid", "event.localization.note")


def test_a_refusal_never_shows_the_text() -> None:
    """Neither the error nor anything chained to it holds what was sent."""
    with pytest.raises(Invalid) as refused:
        parse_change(change_event(source_text="CANARY\x00", media_type="CANARY"))
    assert "CANARY" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None


@pytest.mark.parametrize(
    "text",
    ["", "a\x00b", "Cafe\u0301", "\u212b", "\ud800", "x" * 2_000_001, "ü" * 1_000_001],
    ids=["empty", "nul", "nfd", "angstrom", "surrogate", "long", "long-in-bytes"],
)
def test_a_source_text_keeps_the_rules_of_texts(text: str) -> None:
    """Not NFC, NUL, empty, unwritable or more than 2,000,000 UTF-8 bytes: refused, never rewritten."""
    assert refusal_of(change_event(source_text=text)) == ("submission.text.invalid", "event.localization.source_text")


@pytest.mark.parametrize("text", [" ", "x" * 2_000_000, "ü" * 1_000_000], ids=["blank", "long", "long-in-bytes"])
def test_texts_up_to_the_limit_are_taken_as_they_are(text: str) -> None:
    """Exactly 2,000,000 bytes are allowed, and blanks are text."""
    assert parse_change(change_event(source_text=text)).localization.source_text == text


def test_the_source_text_is_hashed_in_the_form_it_came(cases: Path) -> None:
    """An NFC text keeps its bytes; the NFD twin is refused instead of becoming it."""
    items = json.loads((cases / "unicode_forms.json").read_text(encoding="utf-8"))["items"]
    named = [item for item in items if "NFC" in item]
    assert [item["name"] for item in named] == ["latin", "vietnamese", "hangul"]
    for item in named:
        assert parse_change(change_event(source_text=item["NFC"]["text"])).source_sha256 == item["NFC"]["sha256_utf8"]
        with pytest.raises(Invalid, match=r"submission\.text\.invalid"):
            parse_change(change_event(source_text=item["NFD"]["text"]))


@pytest.mark.parametrize(
    ("targets", "code", "path"),
    [
        (["de", "iw", "he"], "submission.locale.invalid", "event.localization.target_locales.1"),
        (["zh_Hant_TW"], "submission.locale.invalid", "event.localization.target_locales.0"),
        (["de", "de"], "submission.locale.duplicate", "event.localization.target_locales.1"),
        (["fr", "de", "de-Latn"], "submission.locale.duplicate", "event.localization.target_locales.2"),
        (["de", "en"], "submission.locale.equals_source", "event.localization.target_locales.1"),
        (["en-Latn"], "submission.locale.equals_source", "event.localization.target_locales.0"),
    ],
)
def test_target_locales_are_canonical_distinct_and_not_the_source(targets: list[str], code: str, path: str) -> None:
    """Each target is one canonical locale, once, and never the source's own."""
    assert refusal_of(change_event(target_locales=targets)) == (code, path)


def test_siblings_are_different_locales() -> None:
    """A script or a region makes another locale: none of them is merged or refused."""
    targets = [
        "zh",
        "zh-Hans",
        "zh-Hant",
        "zh-Hant-HK",
        "zh-Hant-TW",
        "sr",
        "sr-Latn",
        "sr-Cyrl",
        "pt",
        "pt-BR",
        "en-GB",
    ]
    assert len({job.job_id for job in parse_change(change_event(target_locales=targets)).jobs}) == len(targets)


def test_the_source_locale_is_canonical_too() -> None:
    """The source's own tag is held to the same rule."""
    assert refusal_of(change_event(source_locale="EN")) == (
        "submission.locale.invalid",
        "event.localization.source_locale",
    )


def test_an_event_has_at_most_250_locales() -> None:
    """250 are a plan, 251 are refused."""
    locales = [f"de-x-{number}" for number in range(251)]
    assert len(parse_change(change_event(target_locales=locales[:250])).jobs) == 250
    assert refusal_of(change_event(target_locales=locales)) == (
        "submission.invalid",
        "event.localization.target_locales",
    )


@pytest.mark.parametrize(
    ("changes", "is_taken"),
    [
        ({"content_type": "commercial", "commercial_profile": "retail-eu"}, True),
        ({"content_type": "commercial", "commercial_profile": None}, False),
        ({"content_type": "legal", "commercial_profile": "retail-eu"}, False),
        ({"content_type": "legal", "commercial_profile": None}, True),
    ],
)
def test_a_commercial_profile_comes_exactly_with_commercial_content(changes: dict[str, Any], is_taken: bool) -> None:
    """Commercial content names its profile; no other content has one."""
    event = change_event(**changes)
    if is_taken:
        assert parse_change(event).localization.commercial_profile == changes["commercial_profile"]
    else:
        assert refusal_of(event) == ("submission.commercial.invalid", "event.localization.commercial_profile")


def test_jobs_and_plan_follow_from_content() -> None:
    """The jobs come sorted by id, and the plan is the hash of the sorted ids."""
    change = parse_change(change_event(target_locales=["fr-CA", "de", "pt-BR"]))
    ids = [job.job_id for job in change.jobs]
    assert ids == sorted(ids)
    assert {job.target_locale for job in change.jobs} == {"de", "fr-CA", "pt-BR"}
    assert change.plan_id == f"plan-{hash_of(ids)}" == plan_id_of(reversed(change.jobs))


def test_a_repeat_is_no_new_work_and_a_changed_input_is() -> None:
    """Neither event id, website version, sequence nor other locales are part of a job; every bound member is."""
    job = next(job for job in parse_change(change_event()).jobs if job.target_locale == "de")
    other = change_event(event_id="e-2", website_version="v2", source_sequence=9, target_locales=["de", "it"])
    assert job in parse_change(other).jobs


BOUND_CHANGES: dict[str, Any] = {
    "site_id": "site-2",
    "source_id": "home.other",
    "source_revision": "rev-2",
    "source_text": SOURCE_TEXT + " ",
    "source_locale": "en-GB",
    "media_type": "text/html",
    "content_type": "ui",
    "glossary_version": "glossary-4",
    "policy_version": "policy-8",
    "software_version": "pipeline-1.4.1",
    "provider": {"id": "translator", "model_id": "tr-large", "model_version": "2026-02"},
}


@given(names=st.sets(st.sampled_from(sorted(BOUND_CHANGES)), min_size=1))
def test_any_change_of_any_bound_member_is_other_work(names: set[str]) -> None:
    """Whatever bound members change, no job id stays the same, so no evidence is borrowed."""
    before = {job.job_id for job in parse_change(change_event()).jobs}
    after = {job.job_id for job in parse_change(change_event(**{name: BOUND_CHANGES[name] for name in names})).jobs}
    assert before.isdisjoint(after)


@pytest.mark.parametrize("name", ["id", "model_id", "model_version"])
def test_each_part_of_the_provider_is_bound(name: str) -> None:
    """Another provider, model or model version is other work."""
    event = change_event()
    event["localization"]["provider"] = event["localization"]["provider"] | {name: "other"}
    assert parse_change(event).plan_id != parse_change(change_event()).plan_id


def test_the_commercial_profile_is_bound() -> None:
    """Another profile of the same commercial text is other work."""
    first, second = (
        parse_change(change_event(content_type="commercial", commercial_profile=profile)) for profile in ("a", "b")
    )
    assert {job.job_id for job in first.jobs}.isdisjoint(job.job_id for job in second.jobs)


def shuffled(value: Any, order: Any) -> Any:
    """Return an equal JSON value whose members come in another order."""
    if isinstance(value, dict):
        names = order.draw(st.permutations(sorted(value)))
        return {name: shuffled(value[name], order) for name in names}
    return value


@given(order=st.data())
def test_ids_do_not_depend_on_the_order_of_members(order: st.DataObject) -> None:
    """A producer may write its members in any order, with any white space."""
    event = shuffled(change_event(), order)
    change = parse_change(parse_strict(json.dumps(event, indent=2), max_bytes=1_000_000))
    plain = parse_change(change_event())
    assert (change.sha256, change.plan_id, jobs_of(change)) == (plain.sha256, plain.plan_id, plain.jobs)


@given(targets=st.permutations(["de", "fr-CA", "it", "pt-BR"]))
def test_the_plan_does_not_depend_on_the_order_of_locales(targets: list[str]) -> None:
    """A plan is a set; the event's own hash tells the order apart."""
    plain = parse_change(change_event(target_locales=["de", "fr-CA", "it", "pt-BR"]))
    assert parse_change(change_event(target_locales=targets)).plan_id == plain.plan_id


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(value=JSON_VALUES, name=st.sampled_from(sorted(change_event()["localization"])))
def test_arbitrary_json_is_refused_with_a_code_or_taken(value: Any, name: str) -> None:
    """Whatever stands in a member, the answer is an event or one stable refusal."""
    for event in (value, change_event(**{name: value})):
        code = None
        try:
            parse_change(event)
        except Blocked as refused:
            code = refused.code
        assert code is None or code.startswith("submission.")
