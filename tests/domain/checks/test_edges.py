"""The rare ends: locales that nobody knows, messages that are only nearly messages, marks that close nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from worker.domain.checks.finding import finding
from worker.domain.checks.icu import MAX_DEPTH, IcuSyntaxError, parse_icu
from worker.domain.checks.plurals import plural_rules
from worker.domain.checks.policy import CheckPolicy, CheckRule

Codes = Callable[..., list[str]]
FILES = "{n, plural, one {# file} other {# files}}"


@pytest.mark.parametrize("locale", ["tlh", "und", "not a locale", "x-private"])
def test_a_locale_without_rules_is_checked_for_the_rest(codes: Codes, locale: str) -> None:
    """Where CLDR knows no plurals, only words that are no category at all are found."""
    assert plural_rules(locale) is None
    assert codes(FILES, FILES, locale) == []
    assert codes(FILES, "{n, plural, some {# file} other {# files}}", locale) == ["plural.category.unknown"]
    assert "placeholder.missing" in codes("Hello {name}", "Hello", locale)


def test_rules_of_a_locale_are_found_through_its_language() -> None:
    """Scripts and regions that CLDR does not list have the rules of the language; those it lists have their own."""
    assert plural_rules("de-DE") == plural_rules("de") == plural_rules("de-Latn-NA")
    portuguese = [plural_rules(locale) for locale in ("pt", "pt-PT")]
    assert [rules.numbers["one"] for rules in portuguese if rules] == [(0, 1), (1,)]
    ordinals = plural_rules("en", ordinal=True)
    assert ordinals is not None
    assert set(ordinals.categories) == {"one", "two", "few", "other"}


@pytest.mark.parametrize(
    "text",
    [
        "{d, date; x}",
        "{d, date, x",
        "{n, plural, one {x} one {y} other {z}}",
        "{n, plural, other {x}",
        "{n, plural, other x}",
        "{n, plural, other {}} }",
        "{n, select, other {" * (MAX_DEPTH + 2) + "}}" * (MAX_DEPTH + 2),
    ],
)
def test_what_is_nearly_a_message_is_none(text: str) -> None:
    """Unknown styles, repeated selectors, missing braces and bottomless nesting are refused."""
    with pytest.raises(IcuSyntaxError):
        parse_icu(text)


def test_a_quotation_may_run_to_the_end_and_hold_apostrophes() -> None:
    """ICU reads an open quotation to the end; two apostrophes inside it are one."""
    assert parse_icu("it''s '{o''clock}") == ("it's {o'clock}",)
    assert parse_icu("'{o''clock}' now") == ("{o'clock} now",)


def test_a_source_that_is_nearly_a_message_is_a_plain_text(codes: Codes) -> None:
    """Where the source itself is no message, nothing of a message is asked of the translation."""
    assert codes("{n, plural, one {x} end", "{n, plural, one {x} Ende") == []


def test_marks_that_close_nothing(codes: Codes) -> None:
    """A closing quotation mark or directional mark without its beginning is found."""
    assert codes("Say yes", "「はい」」と言う", "ja") == ["quote.unbalanced"]
    assert codes("Say yes", "Sag ja\u2069") == ["character.bidi"]


def test_legal_figures_block_on_top_of_the_default() -> None:
    """A default that was changed holds for legal content too, with the figures; a rule of its own replaces both."""
    told = (finding("number.missing"), finding("text.empty"), finding("length.growth"))
    policy = CheckPolicy(default=CheckRule(allow=frozenset({"text.empty"}), block=frozenset({"length.growth"})))
    assert policy.blocking("legal", told) == (told[0], told[2])
    assert policy.blocking("ui", told) == (told[2],)
    assert CheckPolicy(rules={"legal": CheckRule()}).blocking("legal", told) == (told[1],)
