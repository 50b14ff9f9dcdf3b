"""Which tags name a locale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.domain.errors import Invalid
from worker.domain.locale import LONGEST_TAG, canonical_locale, locale_fault, locale_identity


@pytest.fixture(scope="session")
def tags(cases: Path) -> dict[str, object]:
    """Return the field cases about tags."""
    read: dict[str, object] = json.loads((cases / "locale_tags.json").read_text(encoding="utf-8"))
    return read


def test_only_the_canonical_form_of_a_tag_is_taken(tags: dict[str, dict[str, str]]) -> None:
    """A tag in another case is refused, never mapped; its canonical form is taken."""
    for given_tag, canonical in tags["canonical"].items():
        assert locale_fault(canonical) is None
        assert locale_fault(given_tag) == (None if given_tag == canonical else "not_canonical")


def test_two_spellings_are_never_two_rows(tags: dict[str, list[list[str]]]) -> None:
    """Of two spellings of one locale at most the canonical one gets in."""
    for spellings in tags["same_row"]:
        assert [tag for tag in spellings if locale_fault(tag) is None] == [spellings[0]]


def test_distinct_locales_stay_distinct(tags: dict[str, list[list[str]]]) -> None:
    """No locale is the same as its sibling, its parent or its child."""
    for first, second in tags["distinct"]:
        assert (locale_fault(first), locale_fault(second)) == (None, None)
        assert locale_identity(first) != locale_identity(second)


def test_broken_tags_and_underscores_are_refused(tags: dict[str, list[str]]) -> None:
    """There is no fall back to a default language, and no underscore is mapped."""
    for tag in [*tags["refuse"], *tags["underscore"]]:
        assert locale_fault(tag) == "malformed"


@pytest.mark.parametrize(
    ("tag", "fault"),
    [
        ("iw", "not_canonical"),  # he
        ("sh", "not_canonical"),  # sr-Latn
        ("zh-cmn-Hans", "not_canonical"),  # an extended language always has a shorter form
        ("en-GB-oed", "not_canonical"),
        ("en-UK", "not_canonical"),
        ("en-840", "not_canonical"),
        ("root", "not_canonical"),
        ("de-DE-u-co-PHONEBK", "not_canonical"),
        ("en-u-co-standard-t-ja", "not_canonical"),  # extensions come in order
        ("de-AT-1996-u-co-phonebk", None),
        ("en-x-TEST", "not_canonical"),
        ("en-x-us", None),  # nothing is written large behind a singleton
        ("xx", "unregistered"),
        ("de-foobar", "unregistered"),
        ("de-1901-1901", "unregistered"),
        ("en-a-bbb", "unregistered"),  # a singleton that nobody registered
        ("Latn", "unregistered"),
        ("x-klingon", "malformed"),  # private through and through
        ("de-x", "malformed"),
        ("english", "malformed"),
        ("pt-br-latn", "malformed"),
        ("d\u0435", "malformed"),  # a Cyrillic letter
        ("en-x-" + "a" * 8 + "-a" * 60, "malformed"),  # longer than any locale
    ],
)
def test_a_locale_is_well_formed_registered_and_canonical(tag: str, fault: str | None) -> None:
    """Each rule refuses what breaks it, and says which it was."""
    assert locale_fault(tag) == fault


def test_the_longest_tag_is_taken() -> None:
    """The bound on the length is exact."""
    tag = "en-x" + "-abcdefg" * 15 + "-abc"
    assert len(tag) == LONGEST_TAG
    assert locale_fault(tag) is None
    assert locale_fault(tag + "d") == "malformed"


def test_a_refusal_carries_code_and_path_and_no_tag() -> None:
    """The caller's code and path, and never the tag itself."""
    assert canonical_locale("fr-CA", "x.invalid", "a.b") == "fr-CA"
    for tag in ("CANARY", "fr-ca", "qq", 5, None):
        with pytest.raises(Invalid) as refused:
            canonical_locale(tag, "x.invalid", "a.b")
        assert (refused.value.code, refused.value.path) == ("x.invalid", "a.b")
        assert "CANARY" not in str(refused.value)


def test_the_same_locale_under_two_canonical_tags_has_one_identity() -> None:
    """The usual script of a language, and the order of variants, make no other locale."""
    assert locale_identity("de-Latn") == locale_identity("de") == "de"
    assert locale_identity("sl-rozaj-biske") == locale_identity("sl-biske-rozaj")


@given(tag=st.text(alphabet="aAbBdDeEuUxX019-_ \n\u00e9", max_size=20))
def test_any_text_is_judged_without_an_error(tag: str) -> None:
    """Whatever the text, it is a canonical locale or it is refused."""
    if locale_fault(tag) is None:
        assert canonical_locale(tag, "x.invalid") == tag
        assert tag == tag.strip()
        assert "_" not in tag
