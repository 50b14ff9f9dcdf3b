"""Placeholders and ICU messages: what a program would stumble over is found, what a language needs is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from worker.domain.checks.icu import Argument, Choice, IcuSyntaxError, parse_icu

Codes = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("Pay %(amount)s to %s", "Zahlen Sie %s den Betrag %(amount)s"),
        ("%s of %s", "%2$s, davon %1$s"),
        ("%d files", "%s Dateien"),
        ("{} and {}", "{} und {}"),
        ("Hi {name}, bye {name}", "Hallo und tschüss {name}"),
        ("{price:.2f} for {item!r}", "{item} für {price}"),
        ("Hello {{ user.name }}", "Hallo {{user.name}}"),
        ("${total} left, %{count} gone", "%{count} weg, ${total} übrig"),
        ("100% sure", "100%ig sicher"),
        ("50% of all", "50%-a mindennek"),
        ("5% discount", "5 % de remise"),
        ("Read https://example.test/a%20b", "Lies https://example.test/a%20b"),
        ("100%% of %s", "100%% von %s"),
        ("Press {see below}", "Drücken {siehe unten}"),
    ],
)
def test_what_puts_in_the_same_values_is_fine(codes: Codes, source: str, target: str) -> None:
    """Other order by number or name, other spacing, repeats left out, and percentages are no faults."""
    assert codes(source, target) == []


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        ("Hello {name}", "Hallo", ["placeholder.missing"]),
        ("Hello", "Hallo {name}", ["placeholder.unknown"]),
        ("Hello {name}", "Hallo {név}", ["placeholder.missing", "placeholder.unknown"]),
        ("%s has %d", "%d von %s", ["placeholder.order"]),
        ("%s here", "%d da", ["placeholder.type"]),
        ("%(count)s files", "%(count)d Dateien", ["placeholder.type"]),
        ("Delete %(name)s now", "%(name) jetzt löschen", ["placeholder.missing", "placeholder.broken"]),
        ("Up to %s", "Bis % s", ["placeholder.missing", "placeholder.broken"]),
        ("Saved %s", "100% von %s gespart", ["placeholder.broken", "number.unknown"]),
        ("{} and {}", "{}", ["placeholder.missing"]),
        ("Hi ${name}", "Hallo $name", ["placeholder.missing"]),
        ("Hi {{name}}", "Hallo {name}", ["placeholder.missing", "placeholder.unknown"]),
        ("See <a href='{url}'>this</a>", "Siehe <a href=''>dies</a>", ["placeholder.missing", "link.target.changed"]),
    ],
)
def test_what_a_program_would_stumble_over_is_found(codes: Codes, source: str, target: str, found: list[str]) -> None:
    """Each fault has exactly its codes."""
    assert codes(source, target) == found


def test_field_cases(codes: Codes, cases: Path) -> None:
    """The pairs that users reported are judged as they expect."""
    expected = [
        ["placeholder.missing", "placeholder.unknown"],
        ["placeholder.missing", "placeholder.broken"],
        ["markup.tag.unknown", "markup.tag.unbalanced"],
        [],
        ["link.target.changed", "link.unsafe"],
        ["icu.apostrophe"],
        [],
        [],
        ["plural.category.missing"],
        [],
    ]
    first, *others = json.loads((cases / "markup.json").read_text(encoding="utf-8"))["items"]
    torn = codes(first["source"], first["translation"], "pt")
    assert torn == ["markup.broken", "markup.tag.missing", "markup.tag.unbalanced", "markup.attribute.changed"]
    for case, found in zip(others, expected, strict=True):
        assert codes(case["source"], case["translation"], case.get("locale", "pt")) == found, case


@pytest.mark.parametrize(
    ("locale", "target", "found"),
    [
        ("de", "{n, plural, one {# Datei} other {# Dateien}}", []),
        ("de", "{n, plural, =1 {eine Datei} other {# Dateien}}", []),
        ("de", "{n, plural, other {# Dateien}}", ["plural.category.missing"]),
        ("ja", "{n, plural, other {ファイル#個}}", []),
        ("ja", "ファイル{n}個", []),
        ("fr", "{n, plural, one {# fichier} other {# fichiers}}", []),
        ("fr", "{n, plural, one {Un fichier} other {# fichiers}}", ["placeholder.missing"]),
        ("cs", "{n, plural, one {# soubor} few {# soubory} other {# souborů}}", []),
        ("pl", "{n, plural, one {# plik} other {# plików}}", ["plural.category.missing"]),
        ("ar", "{n, plural, zero {لا ملفات} one {ملف} two {ملفان} few {# ملفات} many {# ملفا} other {# ملف}}", []),
        ("de", "{n, plural, one {# Datei} few {# Dateien} other {# Dateien}}", ["plural.category.unknown"]),
        ("de", "{x, plural, one {# Datei} other {# Dateien}}", ["placeholder.missing", "placeholder.unknown"]),
        ("de", "{n, plural, one {# Datei} other {# Dateien}", ["icu.syntax"]),
        ("de", "{n} Dateien", ["plural.category.missing"]),
        ("de", "{n, plural, one {# Datei} other {Dateien}}", ["placeholder.missing"]),
    ],
)
def test_plurals_have_the_forms_of_their_language(codes: Codes, locale: str, target: str, found: list[str]) -> None:
    """What everyday numbers of the language reach must be there; a form for one number may say it in words."""
    assert codes("{n, plural, one {# file} other {# files}}", target, locale) == found


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("{who, select, male {Er} female {Sie} other {Sie alle}} am {d, date, short}", []),
        ("{who, select, other {Sie alle}} am {d, date, short}", []),
        ("{who, select, mann {Er} other {Sie alle}} am {d, date, short}", ["icu.select.changed"]),
        ("{who, select, male {Er} female {Sie}} am {d, date, short}", ["plural.category.missing"]),
        ("{who, select, male {Er} other {Sie alle}} am {d}", ["placeholder.type"]),
        ("{who, select, male {Er} other {Sie alle}} am '{d, date, short}'", ["placeholder.missing"]),
    ],
)
def test_selects_keep_their_keys_and_arguments_their_types(codes: Codes, target: str, found: list[str]) -> None:
    """Keys are the program's words: fewer fall to `other`, new ones are never chosen; quoted arguments are none."""
    source = "{who, select, male {He} female {She} other {They}} on {d, date, short}"
    assert [code for code in codes(source, target) if not code.startswith("bracket")] == found


def test_placeholders_within_forms_are_compared_too(codes: Codes) -> None:
    """A form without a placeholder that is not the number is found, also where another form has it."""
    source = "{n, plural, one {%(count)s %(name)s was changed.} other {%(count)s %(name)s were changed.}}"
    good = "{n, plural, one {Ein %(name)s geändert.} other {%(count)s %(name)s geändert.}}"
    bad = "{n, plural, one {%(count)s geändert.} other {%(count)s %(name)s geändert.}}"
    assert codes(source, good) == []
    assert codes(source, bad) == ["placeholder.missing"]


def test_icu_quoting() -> None:
    """Apostrophes quote as ICU says: doubled they are one, before syntax they begin a literal."""
    assert parse_icu("d''a '{x}' l'an {y}") == ("d'a {x} l'an ", Argument(name="y"))
    [choice] = parse_icu("{n,plural,offset:1 =0{none}other{#}}")
    assert choice == Choice(name="n", type="plural", branches={"=0": ("none",), "other": (Argument(name="#"),)})


@pytest.mark.parametrize(
    "text", ["{", "}", "{}", "{a b}", "{n, plural}", "{n, plural, }", "{n, odd, x {y}}", "{a" * 40]
)
def test_what_is_no_message_is_refused(text: str) -> None:
    """Broken syntax has one error, which carries no text."""
    with pytest.raises(IcuSyntaxError) as caught:
        parse_icu(text)
    assert str(caught.value) == ""
