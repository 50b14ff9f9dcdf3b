"""The gate as a whole: any text is judged, quickly, the same way each time; policies say what blocks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.domain.checks.finding import CODES, finding
from worker.domain.checks.gate import run_checks
from worker.domain.checks.policy import CheckPolicy, parse_check_policy
from worker.domain.errors import Invalid

MEDIA_TYPES = ["text/plain", "text/html", "text/markdown", "application/json"]
LOCALES = st.sampled_from(
    ["de", "ar", "ja", "zh-Hant-TW", "sr-Latn", "pl", "he", "und", "tlh", "x-private", "qaa-Zzzz"]
)
# Pieces that mean something to one check or another, glued together in any order.
PIECES = st.sampled_from(
    [
        *"{}<>%()[]\"'`#&;:/\\ \n„“”«»",
        "%(a)s",
        "%1$s",
        "{n, plural, ",
        "one {",
        "other {#}}",
        "=1 {",
        "{x, select, ",
        "''",
        '<a href="',
        "</a>",
        "<!--",
        "-->",
        "<script>",
        "](",
        "```",
        "https://a.test/",
        "a@b.test",
        "1.234,5",
        "5 PM",
        "слово",
        "漢字",
        "word",
        "\u2067",
        "\u202e",
        "\u200b",
        "\ufffc",
        "\ufffd",
        "\ud800",
        "\x00",
        "²",
        "٣",
        "\U000e0041",
        "[a]: ",
        "# ",
        "{{",
        "}}",
        "${",
    ]
)
TEXTS = st.one_of(st.text(max_size=200), st.lists(PIECES, max_size=40).map("".join))


@settings(max_examples=600, deadline=None)
@given(source=TEXTS, target=TEXTS, locale=LOCALES, media_type=st.sampled_from(MEDIA_TYPES))
def test_any_two_texts_are_judged(source: str, target: str, locale: str, media_type: str) -> None:
    """No text raises, and asking again finds the same; every code is one of the catalogue."""
    asked = {"source_locale": "en", "target_locale": locale, "media_type": media_type}
    found = run_checks(source_text=source, target_text=target, **asked)
    assert run_checks(source_text=source, target_text=target, **asked) == found
    assert {one.code for one in found} <= CODES.keys()


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, media_type=st.sampled_from(MEDIA_TYPES[:3]))
def test_a_text_is_a_faithful_copy_of_itself(text: str, media_type: str) -> None:
    """Between sibling locales of the same text nothing is missing, unknown or changed."""
    found = run_checks(
        source_text=text, target_text=text, source_locale="en", target_locale="en-GB", media_type=media_type
    )
    assert {one.code for one in found} <= {"script.wrong", "plural.category.missing", "plural.category.unknown"}


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXTS.filter(lambda text: "\ud800" not in text)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "one", "other", "f_one", "f_other", "f_few", "x y", "é", ""]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(source=JSON, target=JSON)
def test_any_two_json_documents_are_judged(source: Any, target: Any) -> None:
    """No document raises, whatever its keys are called; a place never shows a key that could be content."""
    found = run_checks(
        source_text=json.dumps(source),
        target_text=json.dumps(target),
        source_locale="en",
        target_locale="pl",
        media_type="application/json",
    )
    assert all("x y" not in one.path and "é" not in one.path for one in found)


SIZE = 140_000
HOSTILE = {
    "angles": "<",
    "open tags": "<a ",
    "open attributes": '<a x="',
    "comments": "<!--",
    "scripts": "<script",
    "braces": "{",
    "half names": "{a",
    "doubles": "{{ a ",
    "percents": "%(",
    "flags": "%-",
    "ticks": "` ",
    "links": "](",
    "angle links": "](<",
    "round links": "](a(",
    "definitions": "[a\n",
    "new lines": "\n",
    "digits": "1",
    "groups": "12 ",
    "commas": "1,",
    "quotes": "„",
    "brackets": "(",
    "markers": "a)",
    "urls": "http://",
    "url ends": "http://a)))))",
    "addresses": "a@",
    "dots": "a.",
    "messages": "{n, plural, other {",
    "choices": "{n, plural, other {x}} ",
    "bidi": "\u202a",
    "mixed words": "aя ",
    "entities": "&#",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("media_type", MEDIA_TYPES[:3])
def test_hostile_texts_take_linear_time(piece: str, media_type: str) -> None:
    """Seven times the text takes about seven times as long: quadratic would be fifty."""

    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        begun = time.process_time()
        run_checks(
            source_text="Hello {0}",
            target_text=text,
            source_locale="en",
            target_locale="ru",
            media_type=media_type,
        )
        return time.process_time() - begun

    assert seconds(SIZE) < 25 * max(seconds(SIZE // 7), 0.02)


def test_errors_block_and_figures_too_where_they_count() -> None:
    """By default errors block everywhere; missing figures also block legal and commercial texts."""
    told = (finding("space.leading"), finding("number.missing"), finding("placeholder.missing", "$.a"))
    policy = CheckPolicy()
    assert policy.blocking("ui", told) == told[2:]
    assert policy.blocking("legal", told) == told[1:]
    assert policy.blocking("commercial", told) == told[1:]


def test_a_policy_says_what_blocks_by_content_type() -> None:
    """A rule adds codes, leaves codes out, or takes other severities; other content keeps the default."""
    policy = parse_check_policy(
        {
            "default": {"allow": ["placeholder.missing"]},
            "rules": {
                "cta": {"severities": ["error", "warning"]},
                "seo": {"severities": [], "block": ["length.growth"]},
            },
        }
    )
    told = (finding("length.growth"), finding("placeholder.missing"), finding("text.empty"))
    assert policy.blocking("ui", told) == (told[2],)
    assert policy.blocking("cta", told) == told
    assert policy.blocking("seo", told) == (told[0],)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"default": {"block": ["no.such.code"]}}, "default.block"),
        ({"default": {"severities": ["fatal"]}}, "default.severities"),
        ({"rules": {"poems": {}}}, "rules.poems"),
        ({"defaults": {}}, "defaults"),
    ],
)
def test_a_policy_with_an_unknown_word_is_refused(value: Any, path: str) -> None:
    """A misspelt code, severity, content type or member is refused with its place, never ignored."""
    with pytest.raises(Invalid) as caught:
        parse_check_policy(value)
    assert caught.value.code == "checks.policy.invalid"
    assert caught.value.path.startswith(path)
