"""Tags, attributes, links, code, Markdown and JSON: the structure that a reader's page depends on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from worker.domain.checks.finding import Finding
from worker.domain.checks.gate import MOST_PER_CODE, run_checks

Codes = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        ("<b>Now</b> open", "Jetzt <b>offen</b>", []),
        ("Choose<br>a plan", "Tarif<br/>wählen", []),
        ('<img src="a.png" alt="A cat">', '<img src="a.png" alt="Eine Katze">', []),
        ('<a href="/en/help">Help</a>', '<a href="/de/help">Hilfe</a>', []),
        ('<a href="/en/help">Help</a>', '<a href="/de/hilfe">Hilfe</a>', ["link.target.changed"]),
        ("Add <your name> here", "Hier <dein Name> eintragen", []),
        ("3 < 5 and 7 > 6", "3 < 5 und 7 > 6", []),
        ("<b>Bold</b> text", "<b>Fetter Text", ["markup.tag.missing", "markup.tag.unbalanced"]),
        ("<b>Bold</b> text", "<strong>Fetter</strong> Text", ["markup.tag.missing", "markup.tag.unknown"]),
        ("<i><b>Both</b></i> now", "<i><b>Beide</i></b> jetzt", ["markup.tag.unbalanced"]),
        ('<p class="x">Text</p>', '<p class="y">Text hier</p>', ["markup.attribute.changed"]),
        ('<p title="x">Text</p>', "<p>Text hier</p>", ["markup.attribute.changed"]),
        ("<b>Read</b> it", '<b onclick="x()">Lies</b> es', ["markup.attribute.changed", "link.unsafe"]),
        ("<b>Read</b> it", "<b Lies es", ["markup.broken", "markup.tag.missing"]),
    ],
)
def test_tags_and_attributes(codes: Codes, source: str, target: str, found: list[str]) -> None:
    """Tags may move; texts of attributes may be translated; nothing else of the markup may change."""
    assert codes(source, target) == found


def test_a_space_lost_at_a_tag(codes: Codes) -> None:
    """Words that stick to an inline tag are found, except where the language joins words so."""
    source = "This will <b>enable</b> logins"
    assert codes(source, "Isto vai <b>ativar</b>as entradas", "pt-PT") == ["markup.space.lost"]
    assert codes(source, "Ovo će<b>omogućiti</b> prijave", "sr-Latn") == ["markup.space.lost"]
    assert codes(source, "Tämä <b>ottaa</b>kin käyttöön kirjautumisen", "fi") == []
    assert codes(source, "これでログインを<b>有効</b>にします", "ja") == []


def test_hidden_parts_of_html_are_code_and_comments_are_free(codes: Codes) -> None:
    """Scripts and styles stay byte for byte; a comment may go; only what is shown counts as text."""
    source = "<style>p{color:red}</style><p>Good morning</p><!-- a note -->"
    assert codes(source, "<style>p{color:red}</style><p>Guten Morgen</p>", media_type="text/html") == []
    assert codes(source, "<style>p{color:rot}</style><p>Guten Morgen</p>", media_type="text/html") == ["code.changed"]
    assert codes("<p>Good morning</p>", "<p>&nbsp; </p>", media_type="text/html") == ["text.empty"]


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        ("# Start\n\nRun `make`.", "# Anfang\n\n`make` ausführen.", []),
        ("# Start", "## Anfang", ["markdown.structure.changed"]),
        ("Run `make`.", "`mache` ausführen.", ["code.changed"]),
        ("```sh\nls\n```\nDone well", "```sh\nls\n```\nGut gemacht", []),
        ("```sh\nls\n```\nDone well", "Gut gemacht", ["code.changed"]),
        ("See [help](/en/help).", "Siehe [Hilfe](/de/help).", []),
        ("See [help](/help).", "Siehe [Hilfe](/other).", ["link.target.changed"]),
        ("See [help](/help).", "Siehe Hilfe.", []),
        ("See [help](/help).", "Siehe [Hilfe](javascript:alert(1)).", ["link.target.changed", "link.unsafe"]),
        ("See [help][1].\n\n[1]: /help", "Siehe [Hilfe][1].\n\n[1]: /help", []),
    ],
)
def test_markdown(codes: Codes, source: str, target: str, found: list[str]) -> None:
    """Code, link targets and headings survive."""
    assert codes(source, target, media_type="text/markdown") == found


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        ("Go to https://example.test/en/a.", "Gehen Sie zu https://example.test/de/a.", []),
        ("(see https://example.test/a)", "(siehe https://example.test/a)", []),
        ("Go to https://example.test", "Gehen Sie zu https://evil.test", ["url.missing", "url.unknown"]),
        ("Write to us", "Schreiben Sie an a@example.test", ["email.unknown"]),
        ("Write to a@example.test", "Schreiben Sie an b@example.test", ["email.missing", "email.unknown"]),
    ],
)
def test_addresses(codes: Codes, source: str, target: str, found: list[str]) -> None:
    """URLs and e-mail addresses stay, but for the locale in them; the sentence's punctuation is not theirs."""
    assert codes(source, target) == found


def listed(source: Any, target: Any, to: str = "pl") -> list[tuple[str, str]]:
    found = run_checks(
        source_text=json.dumps(source),
        target_text=target if isinstance(target, str) else json.dumps(target),
        source_locale="en",
        target_locale=to,
        media_type="application/json",
    )
    return [(one.code, one.path) for one in found]


def test_json_is_checked_leaf_by_leaf() -> None:
    """Each finding names its leaf; keys that could be content are named by their place."""
    source = {"menu": {"open": "Open {x}", "n": 3}, "list": ["One thing", "Two things"], "Hello you": "Hello you"}
    target = {"menu": {"open": "Otwórz", "n": 4}, "list": ["Jedna rzecz", ""], "Hello you": "\u200b"}
    assert listed(source, target) == [
        ("placeholder.missing", "$.menu.open"),
        ("json.value.changed", "$.menu.n"),
        ("text.empty", "$.list[1]"),
        ("text.empty", "$.*2"),
        ("character.invisible", "$.*2"),
    ]


def test_json_structure() -> None:
    """Missing and unknown keys, other types and lengths, and what is no JSON at all."""
    assert listed({"a": "Yes", "b": "No"}, {"a": "Tak", "c": "Nie"}) == [
        ("json.key.missing", "$.b"),
        ("json.key.unknown", "$.c"),
    ]
    assert listed({"a": "Yes"}, {"a": ["Tak"]}) == [("json.type.changed", "$.a")]
    assert listed(["Yes", "No"], ["Tak"]) == [("json.length.changed", "$")]
    assert listed({"a": True}, {"a": 1}) == [("json.type.changed", "$.a")]
    assert listed({}, '{"a":1,"a":2}') == [("json.invalid", "$")]
    assert listed({}, "[" * 100_000) == [("json.invalid", "$")]


@pytest.mark.parametrize(
    ("source", "target", "found"),
    [
        (
            {"files_one": "{{n}} file", "files_other": "{{n}} files"},
            {
                "files_one": "Plik",
                "files_few": "{{n}} pliki",
                "files_many": "{{n}} plików",
                "files_other": "{{n}} pliku",
            },
            [],
        ),
        (
            {"files_one": "{{n}} file", "files_other": "{{n}} files"},
            {"files_one": "{{n}} plik", "files_other": "{{n}} pliku"},
            [("plural.category.missing", "$.files_other")],
        ),
        (
            {"f": {"one": "%d file", "other": "%d files"}},
            {"f": {"one": "plik", "few": "pliki", "many": "%d plików", "other": "%d pliku"}},
            [("placeholder.missing", "$.f.few")],
        ),
    ],
)
def test_plural_keys_follow_the_language(source: Any, target: Any, found: list[tuple[str, str]]) -> None:
    """Keys of plural forms may be added where the language has them, and must be there where it needs them."""
    assert listed(source, target) == found


def test_no_code_is_told_without_end() -> None:
    """A document full of faults is told by the first of each code, and a warning never crowds out an error."""
    many = MOST_PER_CODE + 50
    found = run_checks(
        source_text=json.dumps([f"Good morning {n}" for n in range(1000, 1000 + many)] + ["Hello {x}"]),
        target_text=json.dumps(["" for _ in range(many)] + ["Hallo"]),
        source_locale="en",
        target_locale="de",
        media_type="application/json",
    )
    assert len(found) == MOST_PER_CODE + 1
    assert found[-1] == Finding(code="placeholder.missing", severity="error", path=f"$[{many}]")
