"""Strict parsing and canonical bytes: the RFC's vectors, round trips, and input made to hurt."""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from worker.domain.canonical import (
    MAX_DEPTH,
    MAX_INTEGER,
    canonical_bytes,
    canonical_text,
    hash_of,
    parse_canonical,
    parse_strict,
    read_written,
    sha256_hex,
)
from worker.domain.errors import Invalid

# RFC 8785, section 3.2.2 and figure 4 of section 3.2.3
SAMPLE = rb"""{
  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
  "literals": [null, true, false]
}"""
SAMPLE_CANONICAL = (
    '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
    '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
)
# RFC 8785, section 3.2.3: the order of the values after sorting by UTF-16 code units
SORTING = rb"""{
  "\u20ac": "Euro Sign",
  "\r": "Carriage Return",
  "\ufb33": "Hebrew Letter Dalet With Dagesh",
  "1": "One",
  "\ud83d\ude00": "Emoji: Grinning Face",
  "\u0080": "Control",
  "\u00f6": "Latin Small Letter O With Diaeresis"
}"""
SORTED = [
    "Carriage Return",
    "One",
    "Control",
    "Latin Small Letter O With Diaeresis",
    "Euro Sign",
    "Emoji: Grinning Face",
    "Hebrew Letter Dalet With Dagesh",
]
# RFC 8785, appendix B
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
CASES = Path(__file__).parent / "cases"


def short(value: Any) -> str:
    """Name a parameter without writing out a million digits."""
    return value[:12] if isinstance(value, str) else type(value).__name__


def refused(data: Any, *, max_bytes: int = 10_000_000, code: str = "coordinator.json.invalid") -> Invalid:
    with pytest.raises(Invalid) as caught:
        parse_strict(data, max_bytes=max_bytes, code=code)
    return caught.value


# --- the RFC's own vectors ------------------------------------------------------------------------------------------


def test_sample_object_of_the_rfc() -> None:
    """The RFC's sample is parsed and written as the RFC writes it."""
    assert canonical_text(parse_strict(SAMPLE, max_bytes=1000)) == SAMPLE_CANONICAL


def test_keys_are_sorted_by_utf16_code_units() -> None:
    """The emoji sorts before U+FB33, since its first surrogate is the smaller code unit."""
    written = canonical_bytes(parse_strict(SORTING, max_bytes=1000))
    assert list(json.loads(written).values()) == SORTED


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_number_table_of_the_rfc(bits: str, text: str) -> None:
    """Every finite number of appendix B has exactly the RFC's text."""
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_text(number) == text


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_numbers_that_json_does_not_have(bits: str) -> None:
    """NaN and the infinities have no canonical form."""
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(Invalid) as caught:
        canonical_bytes({"a": [number]})
    assert caught.value.code == "coordinator.json.invalid"


# --- the fast writer against the reference --------------------------------------------------------------------------


class Word(str):
    """A text of a kind of its own."""

    __slots__ = ()


class Count(int):
    """A number of a kind of its own."""


class Level(StrEnum):
    """A text that is an enumeration."""

    HIGH = "high"


@dataclass(frozen=True)
class Record:
    """Something that a generous writer would write, though it is no JSON."""

    name: str


strange_texts = st.text(st.characters(codec=None, categories=None)) | st.text(
    alphabet='\x00\x1f\x7f\x80"\\\b\f/\u2028\ue000😀'
)
strange_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([MAX_INTEGER, MAX_INTEGER + 1, -MAX_INTEGER, -MAX_INTEGER - 1, 2**63, 2**64])
    | st.floats()
    | st.floats(min_value=1e-8, max_value=1e22)
    | st.floats(min_value=1.7e9, max_value=2e9)
    | strange_texts
    | strange_texts.map(Word)
    | st.integers().map(Count)
    | st.sampled_from([Level.HIGH, Record("a"), b"bytes", datetime(2026, 1, 1, tzinfo=UTC), UUID(int=1), {"a"}])
)
strange_names = strange_texts | strange_texts.map(Word) | st.sampled_from([Level.HIGH, 1, 1.5, True, None])
strange_values = st.recursive(
    strange_scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(strange_names, inner, max_size=5)
    ),
    max_leaves=15,
)


@given(strange_values)
@example({"a": [1.0, -0.0, 1e-4, 9.99e-5, 0.1, 1e15, 1e16, 1e21, 5e-324, 1764536125.25]})
@example({"b": 1, "a": {"\ue000": 1, "\U00010000": 2}, "ab": "\x7f"})
@example({Word("b"): Word("a"), "a": Count(3), "c": Level.HIGH})
@example(["\ud800"])
@example({1: "a"})
def test_every_value_is_written_like_the_reference_or_refused_like_it(value: Any) -> None:
    """Whatever the value, the bytes are those of the reference library; where that refuses, so is it here."""
    try:
        expected = rfc8785.dumps(value)
    except (ValueError, TypeError):
        with pytest.raises(Invalid) as caught:
            canonical_bytes(value)
        assert caught.value.code == "coordinator.json.invalid"
    else:
        assert canonical_bytes(value) == expected


@given(st.floats(min_value=1e-5, max_value=2.0**54) | st.floats(min_value=-1e17, max_value=-1e-5))
def test_every_fraction_is_written_like_the_reference(number: float) -> None:
    """Floats around the bounds of what the fast writer may write have the reference's digits."""
    assert canonical_bytes([number]) == rfc8785.dumps([number])


def test_a_value_that_holds_itself_is_refused() -> None:
    """A list inside itself has no canonical form, and asking for it ends."""
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(Invalid):
        canonical_bytes(ring)


# --- round trips ----------------------------------------------------------------------------------------------------

scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-MAX_INTEGER, max_value=MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda f: not 9e15 < abs(f) < 1e21)
    | st.text()
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5), max_leaves=25
)


@given(values | strange_texts, st.sampled_from([None, 1]), st.booleans())
@example(b'{"a":1,"a":1}', None, False)
@example(b"[1.0]", None, False)
@example(b"[9007199254740992]", None, False)
@example(b'["\\u0061"]', None, False)
@example(b'["\\ud800"]', None, False)
@example(b'{"b":1,"a":2}', None, False)
@example(b"[NaN]", None, False)
@example(b'["\xff"]', None, False)
@example(b"[" * 65 + b"]" * 65, None, False)
def test_canonical_texts_are_read_like_all_others(value: Any, indent: Any, ascii_only: bool) -> None:
    """A text that is canonical already gives the value, of the same types, that its parse by hand gives; or is refused."""
    try:
        text = value if isinstance(value, bytes) else json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        text = json.dumps(value).encode()

    def read(raw: bytes) -> str:
        try:
            return repr(parse_strict(raw, max_bytes=1_000_000))
        except Invalid as refusal:
            return refusal.code

    spaced = text.replace(b"\n", b"") + b" "  # never canonical, so never read the short way
    assert read(text) == read(spaced)
    if read(text) != "coordinator.json.invalid":
        written = canonical_bytes(parse_strict(text, max_bytes=1_000_000))
        assert read(written) == read(written + b" ")


@given(values)
def test_what_was_written_is_read_back(value: Any) -> None:
    """Parsing canonical bytes gives the value, and writing that gives the bytes again."""
    written = canonical_bytes(value)
    read = parse_strict(written, max_bytes=len(written))
    assert read == value
    assert canonical_bytes(read) == written


@given(values)
def test_what_this_process_wrote_may_be_read_unchecked(value: Any) -> None:
    """Bytes of our own give the same value, of the same types, as the strict parser's."""
    written = canonical_bytes(value)
    assert repr(read_written(written)) == repr(parse_strict(written, max_bytes=len(written)))


@given(values, st.sampled_from([None, 1]), st.booleans())
@example(None, None, False)
@example(["é"], None, True)
def test_only_canonical_spelling_is_parsed_as_canonical(value: Any, indent: Any, ascii_only: bool) -> None:
    """A text is read where it is what would be written of its value, and refused in every other spelling."""
    written = canonical_text(value)
    assert repr(parse_canonical(written, max_bytes=1_000_000)) == repr(parse_strict(written, max_bytes=1_000_000))
    spelled = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    if spelled != written:
        with pytest.raises(Invalid):
            parse_canonical(spelled, max_bytes=1_000_000)


@given(values, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_spelling_changes_neither_value_nor_hash(value: Any, indent: Any, ascii_only: bool) -> None:
    """Whitespace, escapes and the order of members are no part of what is hashed."""
    spelled = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert hash_of(parse_strict(spelled, max_bytes=10_000_000)) == hash_of(value)


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_input_is_parsed_or_invalid(data: bytes | str) -> None:
    """Whatever the bytes are, the parser returns a value that can be written, or raises Invalid and nothing else."""
    try:
        value = parse_strict(data, max_bytes=1000)
    except Invalid:
        return
    assert parse_strict(canonical_bytes(value), max_bytes=2000) == value


@given(st.text(alphabet='[]{}",:\\ 01eE.+-aut\n', max_size=60))
def test_input_near_json_is_parsed_or_invalid(data: str) -> None:
    """The same for input made of JSON's own marks."""
    try:
        value = parse_strict(data, max_bytes=1000)
    except Invalid:
        return
    assert parse_strict(canonical_bytes(value), max_bytes=2000) == value


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("-0.0", 0),
        ("1.0", 1),
        ("1e3", 1000),
        ("9007199254740991", 2**53 - 1),
        ("-9007199254740991", -(2**53) + 1),
        ("0.5", 0.5),
    ],
)
def test_numbers_have_the_value_of_their_canonical_form(literal: str, value: float) -> None:
    """A number without a fraction is an int however it is written; minus zero is zero."""
    read = parse_strict(literal, max_bytes=100)
    assert read == value
    assert type(read) is type(value)
    assert canonical_text(read) == str(value)


@pytest.mark.parametrize(
    "literal",
    [
        "9007199254740992",
        "-9007199254740992",
        "9007199254740992.0",
        "1e20",
        "1e400",
        "-1e400",
        "9" * 5_000,
        "9" * 1_000_000,
        "-" + "9" * 5_000,
        "0." + "1" * 1_000_000,
        "1e" + "9" * 5_000,
        "NaN",
        "Infinity",
        "-Infinity",
        "01",
        "+1",
        "1.",
        ".5",
        "0x10",
    ],
    ids=short,
)
def test_numbers_that_are_refused(literal: str) -> None:
    """Numbers that another reader could see differently, and digit strings made to hurt, are refused."""
    refused(literal)
    refused(f'{{"a":[{literal}]}}')


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf{}",
        "\ufeff{}",
        '{"a":1}'.encode("utf-16"),
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b'"\xff"',
        '"\\ud800"',
        '"\\uDFFF\\ud800"',
        '{"\\ud83d":1}',
        '["a",{"b":["\\udc00"]}]',
        '"\ud800"',
        '"\t"',
        '"\x00"',
        "",
        " ",
        "{} {}",
        "{}x",
        "[1,]",
        '{"a":1,}',
        "{'a':1}",
        "// a\n1",
        '"abc',
        '"abc\\',
        "]",
        "[[]",
        None,
        7,
        bytearray(b"{}"),
    ],
)
def test_what_is_no_strict_json(data: Any) -> None:
    """Other encodings, byte order marks, lone surrogates, raw control characters and sloppy JSON are refused."""
    assert refused(data).code == "coordinator.json.invalid"


def test_a_surrogate_pair_is_one_character() -> None:
    """An escaped pair is good, also beside text that merely looks like a lone escape."""
    assert parse_strict(r'["\ud83d\ude00","\\ud800"]', max_bytes=100) == ["\U0001f600", "\\ud800"]


def test_the_callers_code_is_used() -> None:
    """A caller's own code replaces the default."""
    assert refused("{", code="submission.invalid").code == "submission.invalid"


def test_no_refusal_quotes_its_input() -> None:
    """The sentence never repeats what was sent, nor is the foreign exception kept as a cause."""
    refusal = refused('{"secret-canary": secret-canary}')
    assert "canary" not in str(refusal)
    assert refusal.__cause__ is None
    assert refusal.__suppress_context__


def test_the_size_is_judged_in_bytes_and_before_parsing() -> None:
    """Exactly the limit is good, one byte more is not, and characters count as their UTF-8 bytes."""
    assert parse_strict(b'"aaaa"', max_bytes=6) == "aaaa"
    assert refused(b'"aaaaa"', max_bytes=6).message == "the input is larger than 6 bytes"
    assert refused("x" * 7, max_bytes=6).message == "the input is larger than 6 bytes"
    assert parse_strict('"€"', max_bytes=5) == "€"
    assert refused('"€"', max_bytes=4).message == "the input is larger than 4 bytes"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded(opening: str, closing: str) -> None:
    """64 levels are good, 65 are refused, and millions cannot exhaust the stack."""
    deepest = opening * MAX_DEPTH + ("1" if opening != "[" else "") + closing * MAX_DEPTH
    assert canonical_text(parse_strict(deepest, max_bytes=1000)) == deepest
    refused(opening * 5_000_000)
    for levels in (MAX_DEPTH + 1, 1000, 100_000):
        assert "64 levels" in refused(opening * levels + "1" + closing * levels).message
        assert "64 levels" in refused(opening * levels).message


def test_brackets_inside_texts_are_no_nesting() -> None:
    """A text full of brackets and quotes is a text."""
    text = '[{"\\' * 5000
    assert parse_strict(json.dumps({"a": text}), max_bytes=100_000) == {"a": text}


@pytest.mark.parametrize("filler", ["[],", "{},", "1,"])
def test_the_number_of_values_is_bounded(filler: str) -> None:
    """A few megabytes of tiny values are refused before any of them exists."""
    assert refused("[" + filler * 1_100_000 + "1]").message == "the JSON has too many values"


def test_an_unclosed_string_costs_one_pass() -> None:
    """Megabytes of escaped quotes after an unclosed one are refused at once."""
    refused("[" * 70 + '"' + '\\"' * 3_000_000)


# --- duplicate keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", ['{"a":1,"a":2}', '{"a":1,"a":1}', '{"a":1,"\\u0061":1}', '[{"x":{"y":[{"a":1,"b":2,"a":3}]}}]']
)
def test_a_repeated_key_is_refused(data: str) -> None:
    """Equal values, escaped spellings and depth make no difference."""
    assert refused(data).message == "an object repeats a key"


def test_field_case_87_duplicate_keys() -> None:
    """Field case 87: a signed body with a repeated key is refused during parsing; the control is accepted."""
    seen = []
    for item in json.loads((CASES / "duplicate_keys.json").read_text())["items"]:
        body = base64.b64decode(item["body_b64"])
        if item["expect"] == "reject":
            assert refused(body).message == "an object repeats a key", item["name"]
        else:
            assert parse_strict(body, max_bytes=10_000)["checks"] == {"tags": "ok", "plural": "ok"}
        seen.append(item["expect"])
    assert sorted(set(seen)) == ["accept", "reject"]


# --- writing --------------------------------------------------------------------------------------------------------


class Odd:
    """Something that is no JSON."""


@pytest.mark.parametrize(
    "value",
    [
        2**53,
        -(2**53),
        10**5000,
        "\ud800",
        {"\udc00": 1},
        {1: "a"},
        {"a": Odd()},
        {"a": b"bytes"},
        {"a": {1, 2}},
    ],
    ids=short,
)
def test_values_without_canonical_form(value: Any) -> None:
    """What cannot be canonicalised is Invalid, without a word of its content."""
    with pytest.raises(Invalid) as caught:
        canonical_bytes(value)
    assert caught.value.code == "coordinator.json.invalid"
    assert caught.value.message == "the value has no canonical JSON form"
    assert caught.value.__suppress_context__


def test_a_value_that_contains_itself_is_refused() -> None:
    """A loop ends in Invalid, not in a RecursionError."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Invalid):
        canonical_bytes(loop)


def test_hashes() -> None:
    """Hashes are lowercase hex of SHA-256, over the UTF-8 of texts and the canonical bytes of values."""
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert sha256_hex(b"") == sha256_hex("") == empty
    assert sha256_hex("€") == sha256_hex("€".encode())
    assert hash_of({"b": 1, "a": [1.0, None]}) == sha256_hex('{"a":[1,null],"b":1}')
    with pytest.raises(Invalid):
        sha256_hex("\ud800")
