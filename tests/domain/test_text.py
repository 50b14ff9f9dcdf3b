"""The rules of texts."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.domain.canonical import sha256_hex
from worker.domain.errors import Invalid
from worker.domain.text import LONGEST_TEXT_BYTES, require_text, text_fault, text_sha256


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", None),
        ("plain", None),
        ("Café", None),
        ("\U0001f600", None),
        ("a\x00", "nul"),
        ("é\x00", "nul"),
        ("Cafe\u0301", "nfc"),
        ("\u212a", "nfc"),
        ("\ud83d", "unicode"),
        ("x" * LONGEST_TEXT_BYTES, None),
        ("x" * (LONGEST_TEXT_BYTES + 1), "length"),
        ("é" * (LONGEST_TEXT_BYTES // 2), None),
        ("é" * (LONGEST_TEXT_BYTES // 2) + "x", "length"),
        ("é" * (LONGEST_TEXT_BYTES + 1), "length"),
    ],
)
def test_each_rule_of_texts_is_exact(text: str, fault: str | None) -> None:
    """NFC, no NUL, writable as UTF-8, at most 2,000,000 bytes; an empty string breaks none of them."""
    assert text_fault(text) == fault


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_every_text_in_nfc_is_sound_and_no_other_is(text: str) -> None:
    """The rule is Unicode's own, for every text."""
    assert (text_fault(text) is None) == (unicodedata.normalize("NFC", text) == text)


@pytest.mark.parametrize("value", [None, 5, b"x", ["x"], "a\x00CANARY"])
def test_what_is_no_text_is_refused_with_code_and_path(value: object) -> None:
    """The caller's code and path; no content."""
    with pytest.raises(Invalid) as refused:
        require_text(value, "x.invalid", "a.b")
    assert (refused.value.code, refused.value.path) == ("x.invalid", "a.b")
    assert "CANARY" not in str(refused.value)


def test_a_sound_text_comes_back_as_it_is() -> None:
    """Nothing is rewritten; its hash is over its own UTF-8 bytes."""
    assert require_text(" Café ", "x.invalid") == " Café "
    assert text_sha256(" Café ") == sha256_hex(" Café ".encode())
