"""The text as a whole, its characters and script, its figures and pairs: found where a reviewer would, and only there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.domain.checks.finding import CODES
from worker.domain.checks.gate import run_checks

Codes = Callable[..., list[str]]
PAGE = "Our new shop opens on Monday and everybody is welcome to come and look around. " * 20


def test_untranslated_and_names(codes: Codes) -> None:
    """A page that stayed in its source language is found; a brand name, a sibling locale and a short word are not."""
    assert codes(PAGE, PAGE) == ["text.untranslated"]
    assert codes("Django", "Django", "ja") == []
    assert codes("Acme Cloud Storage Pro", "Acme Cloud Storage Pro") == []
    assert codes("%(class_name)s %(instance)s", "%(class_name)s %(instance)s") == []
    assert codes(PAGE, PAGE, "en-GB") == []
    line = "Every order is packed by hand and leaves on the same day."
    assert codes(f"Welcome.\n{line}", f"Willkommen.\n{line}") == ["text.partly_untranslated"]


@pytest.mark.parametrize("nothing", [" ", "\n\t", "\u200b", "\u2800", "\u00a0\u3000", "\u3164", "\u2060\ufeff"])
def test_empty(codes: Codes, nothing: str) -> None:
    """What shows nothing is empty, whatever it is made of."""
    assert codes("Welcome", nothing)[0] == "text.empty"
    assert set(codes("Welcome", nothing)) <= {"text.empty", "character.invisible"}
    assert codes("", "Willkommen") == ["text.unexpected"]
    assert codes("%s were changed today", "%s ")[:1] == ["text.incomplete"]


@pytest.mark.parametrize(
    ("target", "locale", "found"),
    [
        ("Hallo\x07", "de", ["character.control"]),
        ("Hallo \u202egnp", "de", ["character.bidi"]),
        ("שלום \u2067world\u2069", "he", []),
        ("שלום \u2067world", "he", ["character.bidi"]),
        ("مرحبا\u200f!", "ar", []),
        ("می\u200cخواهم", "fa", []),
        ("Hal\u200blo", "de", ["character.invisible"]),
        ("สวัสดี\u200bครับ", "th", []),
        ("Hallo \U000e0041\U000e0042", "de", ["character.invisible"]),
        ("Hallo \U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f", "de", []),
        ("Hall\ufffd", "de", ["character.replacement"]),
        ("SchÃ¶n hier", "de", ["character.replacement"]),
        ("Hallo \ue000", "de", ["character.private_use"]),
    ],
)
def test_characters(codes: Codes, target: str, locale: str, found: list[str]) -> None:
    """Characters that nobody sees, or that turn the text around, are found; those of a script's spelling are not."""
    assert codes("Hello", target, locale) == found
    assert codes(target, target, locale) == []  # what the author wrote may stay


@pytest.mark.parametrize(
    ("target", "locale", "found"),
    [
        ("Добро пожаловать", "ru", []),
        ("Dobro pozhalovat", "ru", ["script.wrong"]),
        ("Dobrodošli nazad", "sr-Latn", []),
        ("Добродошли назад", "sr-Latn", ["script.wrong"]),
        ("Добродошли назад", "sr", []),
        ("欢迎回来，请继续购物", "zh-Hans", []),
        ("歡迎回來，請繼續購物", "zh-Hans", ["script.wrong"]),
        ("歡迎回來，請繼續購物", "zh-Hant-TW", []),
        ("欢迎回来，请继续购物", "zh-TW", ["script.wrong"]),
        ("おかえりなさい", "ja", []),
        ("Another greeting", "ja", ["script.wrong"]),
        ("다시 오신 것을 환영합니다", "ko", []),
        ("Willkommen zurück", "de", []),
        ("Wіllkommen zurück", "de", ["script.mixed"]),  # a Cyrillic і
        ("Shop対応です", "ja", []),  # a word of the source
    ],
)
def test_scripts(codes: Codes, target: str, locale: str, found: list[str]) -> None:
    """A text is in the script of its locale; names of the source may stay; look-alike letters within a word may not."""
    assert codes("Welcome back to the shop", target, locale) == found


@pytest.mark.parametrize(
    ("source", "target", "locale", "found"),
    [
        ("It costs 1,234.50 in all", "Insgesamt 1.234,50", "de", []),
        ("It costs 1,234.50 in all", "En tout 1\u202f234,50", "fr", []),
        ("1,000,000 users", "10,00,000 उपयोगकर्ता", "hi", []),
        ("500 users", "٥٠٠ مستخدم", "ar", []),
        ("Past 7 days", "Afgelopen zeven dagen", "nl", []),
        ("Two hours", "2 Stunden", "de", []),
        ("Open until 5:30 PM", "Geöffnet bis 17:30 Uhr", "de", []),
        ("On 12/31/2026", "Am 31.12.2026", "de", []),
        ("Error 500 here", "Fehler hier", "de", ["number.missing"]),
        ("Error here", "Fehler 500 hier", "de", ["number.unknown"]),
        ("Only 49 left", "Nur noch 94 da", "de", ["number.changed"]),
        ("Rated 3 of 5", "Bewertet mit 4 von 5", "de", ["number.changed"]),
    ],
)
def test_numbers(codes: Codes, source: str, target: str, locale: str, found: list[str]) -> None:
    """Figures survive in the digits, separators and clocks of any locale."""
    assert codes(source, target, locale) == found


@pytest.mark.parametrize(
    ("target", "locale", "found"),
    [
        ("Sag „ja“ (jetzt)", "de", []),
        ("Dites « oui » (maintenant)", "fr", []),
        ("Sano ”kyllä” (nyt)", "fi", []),
        ("Sig »ja« (nu)", "da", []),
        ("「はい」と言う（今）", "ja", []),
        ("قل ”نعم“ (الآن)", "ar", []),
        ('Sag „ja" (jetzt)', "de", ["quote.unbalanced"]),
        ("Sag „ja (jetzt)", "de", ["quote.unbalanced"]),
        ("Sag „ja“ (jetzt", "de", ["bracket.unbalanced"]),
        ("a) Sag „ja“ :-)", "de", []),
    ],
)
def test_pairs(codes: Codes, target: str, locale: str, found: list[str]) -> None:
    """Quotes and brackets close, each language in its own style."""
    assert codes("Say “yes” (now)", target, locale) == found


@pytest.mark.parametrize(
    ("source", "target", "locale", "found"),
    [
        (" By date ", " Nach Datum ", "de", []),
        (" By date ", "Nach Datum", "de", ["space.leading", "space.trailing"]),
        (" By date ", "日期", "zh-Hans", []),
        ("By date", "Nach Datum\n", "de", ["space.trailing"]),
        ("By date\n", "Nach Datum\n", "de", []),
    ],
)
def test_spaces_at_the_ends(codes: Codes, source: str, target: str, locale: str, found: list[str]) -> None:
    """Parts of sentences keep the spaces that join them, where the language has any."""
    assert codes(source, target, locale) == found


def test_length(codes: Codes) -> None:
    """Far too long or too short is found, the growth of an ordinary language is not; wide characters count twice."""
    assert codes("Buy", "Jetzt kaufen", content_type="cta") == []
    assert codes("Buy", "Kaufen Sie jetzt gleich hier bei uns ein", content_type="cta") == ["length.growth"]
    assert codes("Buy", "Kaufen Sie jetzt gleich hier bei uns ein", content_type="marketing") == []
    assert codes("Please enter your old password, for the sake of security, and the new one", "Weiter") == [
        "length.shrink"
    ]
    assert codes("Please enter your old password and your new one", "请输入您的旧密码和新密码", "zh-Hans") == []


def test_findings_never_hold_text() -> None:
    """A finding is a code, a severity and a place: the fields have no room for content."""
    found = run_checks(
        source_text=json.dumps({"secret phrase": "x {y}"}),
        target_text=json.dumps({"secret phrase": "z"}),
        source_locale="en",
        target_locale="de",
        media_type="application/json",
    )
    assert [(one.code, one.severity, one.path) for one in found] == [("placeholder.missing", "error", "$.*0")]


def test_every_code_has_its_page() -> None:
    """docs/checks.md explains each code with its severity, and no other code."""
    page = (Path(__file__).parents[3] / "docs" / "checks.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `([a-z_.]+)` \| (error|warning) \|", page, re.MULTILINE)) == CODES
