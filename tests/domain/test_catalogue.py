"""Units, gaps, pieces, plural texts and manifests: what of a catalogue goes out, under which ids, and what never does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.domain.canonical import canonical_bytes, hash_of, sha256_hex
from worker.domain.catalogue import (
    Catalogue,
    CatalogueFile,
    Entry,
    Piece,
    gather,
    hashed_key,
    pieces,
    unit_key,
)
from worker.domain.checks.icu import Choice, parse_icu
from worker.domain.checks.plurals import CATEGORIES, plural_rules
from worker.domain.errors import Invalid
from worker.domain.manifest import Manifest, event_of, parse_manifest, results_of, submissions_of
from worker.domain.plural import parse_plural_forms, plural_text, quoted, selectors
from worker.domain.submission import parse_submission


def file(locale: str, *entries: Entry, name: str | None = None) -> CatalogueFile:
    return CatalogueFile(name=name or f"{locale}.po", locale=locale, entries=entries)


def entry(key: str, target: str | None = None, **changes: Any) -> Entry:
    return Entry(**{"key": key, "source": key.upper(), "target": target, "line": 7, **changes})


def refused(work: Any, *arguments: Any, **changes: Any) -> tuple[str, str]:
    with pytest.raises(Invalid) as fault:
        work(*arguments, **changes)
    return fault.value.code, fault.value.path


# --- keys -----------------------------------------------------------------------------------------------------------


def test_keys_are_readable_where_that_is_unambiguous() -> None:
    """Tokens stay; whatever else there is gets a hash that a reader in any language can compute."""
    assert unit_key("home.title") == "home.title"
    assert unit_key("app", "a:b") == "app:a:b"
    assert unit_key("a:b", "c") == "key-" + hash_of(["a:b", "c"])[:40]
    assert unit_key("Hello world") == "key-" + hash_of(["Hello world"])[:40]
    assert unit_key("x" * 120) == "x" * 120
    assert unit_key("x" * 121) == hashed_key("key-", "x" * 121)
    assert unit_key("") == hashed_key("key-", "")
    assert unit_key("a\n") == hashed_key("key-", "a\n")


@given(st.lists(st.tuples(st.text(":ab ", max_size=3), st.text(":ab ", max_size=3)), unique=True, max_size=8))
def test_different_ids_have_different_keys(ids: list[tuple[str, str]]) -> None:
    """Also where colons shift between file and id, and where an id looks like a hashed key."""
    known = [*ids, *(("", unit_key(*one)) for one in ids)]
    assert len({unit_key(*one) for one in set(known)}) == len(set(known))
    hashed = unit_key("a b")
    assert unit_key(hashed) != hashed


# --- gaps -----------------------------------------------------------------------------------------------------------


def test_a_unit_has_a_text_or_a_gap_in_each_locale() -> None:
    """Units come by key; every reason stands with its place."""
    catalogue = gather(
        [
            file("de", entry("b", "B"), entry("a", gap="fuzzy"), entry("d", "D"), entry("old", gap="obsolete")),
            file("fr", entry("c", "e\u0301"), entry("a", "", line=9), entry("d", gap="obsolete"), entry("b", "x\x00")),
        ]
    )
    assert catalogue.locales == ("de", "fr")
    assert [(unit.key, dict(unit.targets), unit.place) for unit in catalogue.units] == [
        ("a", {}, "de.po:7"),
        ("b", {"de": "B"}, "de.po:7"),
        ("c", {}, "fr.po:7"),
        ("d", {"de": "D"}, "de.po:7"),
    ]
    assert [(gap.key, gap.locale, gap.file, gap.line, gap.reason) for gap in catalogue.gaps] == [
        ("a", "de", "de.po", 7, "fuzzy"),
        ("a", "fr", "fr.po", 9, "untranslated"),
        ("b", "fr", "fr.po", 7, "text.invalid"),
        ("c", "de", "de.po", None, "missing"),
        ("c", "fr", "fr.po", 7, "text.not_nfc"),
        ("d", "fr", "fr.po", 7, "obsolete"),
    ]
    assert [(stray.key, stray.locale, stray.reason) for stray in catalogue.strays] == [("old", "de", "obsolete")]


def test_a_source_file_says_which_units_there_are() -> None:
    """What it does not have is a stray; a translation of another source text is a gap."""
    source = file("en", entry("a"), entry("b"), entry("gone", gap="obsolete"), name="app.pot")
    catalogue = gather([file("de", entry("a", "A"), entry("b", "B", source="older"), entry("new", "N"))], source)
    assert [(unit.key, dict(unit.targets), unit.place) for unit in catalogue.units] == [
        ("a", {"de": "A"}, "app.pot:7"),
        ("b", {}, "app.pot:7"),
    ]
    assert [(gap.key, gap.reason) for gap in catalogue.gaps] == [("b", "source.differs")]
    assert [(stray.key, stray.reason) for stray in catalogue.strays] == [("new", "source.unknown")]


def test_files_of_different_sources_contradict_each_other() -> None:
    """Without a source file nobody can say which of two source texts counts."""
    files = [file("de", entry("a", "A")), file("fr", entry("a", "A", source="other", line=3))]
    assert refused(gather, files) == ("import.source.mismatch", "fr.po:3")


@pytest.mark.parametrize(
    ("source", "reason"), [("", "source.empty"), ("e\u0301", "text.not_nfc"), ("\x00", "text.invalid")]
)
def test_an_unsound_source_text_goes_out_in_no_locale(source: str, reason: str) -> None:
    """The gap is the source's; the other units still go."""
    catalogue = gather([file("de", entry("a", "A", source=source), entry("b", "B"))])
    assert [(gap.key, gap.locale, gap.reason) for gap in catalogue.gaps] == [("a", None, reason)]
    for choice in ("leave-units", "leave-locales"):
        assert [one.keys for one in pieces(catalogue, event_per="unit", incomplete=choice)] == [("b",)]


# --- pieces ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def patchy() -> Catalogue:
    return gather(
        [
            file("de", entry("a", "A-de"), entry("b", "B-de")),
            file("fr", entry("b", "B-fr")),
            file("ja", entry("a", "A-ja"), entry("b", "B-ja")),
        ]
    )


def shown(found: tuple[Piece, ...]) -> list[tuple[str | None, str, dict[str, str]]]:
    return [(one.key, one.source_text, dict(one.targets)) for one in found]


def test_a_document_of_the_units_that_every_locale_has(patchy: Catalogue) -> None:
    """The text is canonical JSON, key by key."""
    assert shown(pieces(patchy, event_per="document", incomplete="leave-units")) == [
        (None, '{"b":"B"}', {"de": '{"b":"B-de"}', "fr": '{"b":"B-fr"}', "ja": '{"b":"B-ja"}'})
    ]


def test_a_document_in_the_locales_that_are_complete(patchy: Catalogue) -> None:
    """A locale that lacks a unit is left out of the event by this choice alone."""
    assert shown(pieces(patchy, event_per="document", incomplete="leave-locales")) == [
        (None, '{"a":"A","b":"B"}', {"de": '{"a":"A-de","b":"B-de"}', "ja": '{"a":"A-ja","b":"B-ja"}'})
    ]


def test_an_event_for_each_unit(patchy: Catalogue) -> None:
    """Either only the units that every locale has, or each in the locales that have it."""
    whole = ("b", "B", {"de": "B-de", "fr": "B-fr", "ja": "B-ja"})
    assert shown(pieces(patchy, event_per="unit", incomplete="leave-units")) == [whole]
    assert shown(pieces(patchy, event_per="unit", incomplete="leave-locales")) == [
        ("a", "A", {"de": "A-de", "ja": "A-ja"}),
        whole,
    ]


def test_objects_stand_in_a_document_as_objects() -> None:
    """Plural forms by category are no text inside a text; alone they are JSON too."""
    forms = '{"one":"1","other":"2"}'
    catalogue = gather([file("de", entry("a", forms, source=forms, is_object=True), entry("b", "B"))])
    (document,) = pieces(catalogue, event_per="document", incomplete="refuse")
    assert json.loads(document.targets["de"]) == {"a": {"one": "1", "other": "2"}, "b": "B"}
    singles = pieces(catalogue, event_per="unit", incomplete="refuse")
    assert [(one.is_json, one.targets["de"]) for one in singles] == [(True, forms), (False, "B")]


def test_nothing_is_left_out_where_that_was_forbidden(patchy: Catalogue) -> None:
    """`refuse` takes complete catalogues alone; and nothing at all is never an import."""
    for per in ("document", "unit"):
        assert refused(pieces, patchy, event_per=per, incomplete="refuse") == ("import.incomplete", "")
    empty = gather([file("de", entry("a", gap="fuzzy"))])
    for choice in ("leave-units", "leave-locales"):
        for per in ("document", "unit"):
            assert refused(pieces, empty, event_per=per, incomplete=choice) == ("import.nothing_complete", "")
    assert refused(pieces, gather([file("de")]), event_per="document", incomplete="refuse")[0].endswith("complete")


# --- plural texts ---------------------------------------------------------------------------------------------------

GETTEXT = {
    "ar": "nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 && n%100<=99 ? 4 : 5;",
    "cs": "nplurals=4; plural=(n == 1 && n % 1 == 0) ? 0 : (n >= 2 && n <= 4 && n % 1 == 0) ? 1: (n % 1 != 0 ) ? 2 : 3;",
    "de": "nplurals=2; plural=(n != 1);",
    "fr": "nplurals=3; plural=(n == 0 || n == 1) ? 0 : n != 0 && n % 1000000 == 0 ? 1 : 2;",
    "ga": "nplurals=5; plural=(n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4);",
    "ja": "nplurals=1; plural=0;",
    "lv": "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);",
    "pl": "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);",
    "pt-BR": "nplurals=2; plural=(n > 1);",
    "pt-PT": "nplurals=2; plural=(n != 1);",
    "ro": "nplurals=3; plural=(n==1?0:(((n%100>19)||((n%100==0)&&(n!=0)))?2:1));",
    "sl": "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);",
}


def chosen_by_icu(text: str, locale: str, number: int) -> str:
    """Return what a reader of ICU shows for a number: an explicit branch first, then the category's, then `other`."""
    (choice,) = parse_icu(text)
    assert isinstance(choice, Choice)
    assert (choice.name, choice.type) == ("n", "plural")
    rules = plural_rules(locale)
    assert rules is not None
    category = next(name for name, numbers in rules.numbers.items() if number in numbers)
    named = choice.branches.get(f"={number}") or choice.branches.get(category) or choice.branches["other"]
    return "".join(str(part) for part in named)


@pytest.mark.parametrize("locale", GETTEXT)
def test_icu_chooses_the_form_that_gettext_chose(locale: str) -> None:
    """For every whole number of the sample, also where a formula differs from CLDR in single numbers."""
    forms, rules = parse_plural_forms(GETTEXT[locale]), plural_rules(locale)
    assert forms is not None
    assert rules is not None
    chosen = selectors(forms, rules)
    assert chosen is not None
    text = plural_text(chosen, [f"form {index}" for index in range(forms.count)], rules)
    for number in [*range(1001), 1_000_000]:
        assert chosen_by_icu(text, locale, number) == f"form {forms.choose(number)}"


@pytest.mark.parametrize(
    ("locale", "chosen"),
    [
        ("de", {"one": 0, "other": 1}),
        ("ga", {"=0": 2, "one": 0, "two": 1, "few": 2, "many": 3, "other": 4}),
        ("lv", {"=0": 2, "zero": 1, "one": 0, "other": 1}),
        ("cs", {"one": 0, "few": 1, "many": 2, "other": 3}),  # `many` is for fractions, as the spare form is
        ("pl", {"one": 0, "few": 1, "many": 2, "other": 2}),  # no form for fractions: the last one says `other`
    ],
)
def test_forms_stand_under_their_categories(locale: str, chosen: Mapping[str, int]) -> None:
    """Explicit numbers only where they must be."""
    forms, rules = parse_plural_forms(GETTEXT[locale]), plural_rules(locale)
    assert forms is not None
    assert rules is not None
    assert selectors(forms, rules) == chosen


def test_a_category_of_fractions_without_a_form_is_not_named() -> None:
    """The older Czech header has none for them; a reader of ICU then takes `other`."""
    forms, rules = parse_plural_forms("nplurals=3; plural=(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2;"), plural_rules("cs")
    assert forms is not None
    assert rules is not None
    assert selectors(forms, rules) == {"one": 0, "few": 1, "other": 2}


def test_a_form_that_no_number_reaches_is_not_lost() -> None:
    """Neither a formula with a dead form, nor one that divides by zero, is brought together with CLDR."""
    rules = plural_rules("de")
    assert rules is not None
    for header in ("nplurals=3; plural=(n != 1);", "nplurals=2; plural=1/(n-2);", "nplurals=2; plural=n;"):
        forms = parse_plural_forms(header)
        assert forms is not None
        assert selectors(forms, rules) is None


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nplurals=0; plural=0;",
        "nplurals=7; plural=0;",
        "nplurals=2; plural=__import__('os');",
        "nplurals=2;",
        "nplurals=2; plural=" + "(" * 999 + ";",
        "nplurals=2; plural=" + "1+" * 900 + "1;",
        "nplurals=2; plural=(n",
        "nplurals=2; plural=1" + " " * 2000,
    ],
)
def test_what_is_no_formula_is_not_run(header: str) -> None:
    """Only numbers, `n`, operators and brackets of a bounded length are a formula."""
    assert parse_plural_forms(header) is None


def test_rare_categories_are_named_only_where_they_say_something() -> None:
    """French `many` (millions) is left out where it says what `other` says."""
    forms, rules = parse_plural_forms(GETTEXT["fr"]), plural_rules("fr")
    assert forms is not None
    assert rules is not None
    chosen = selectors(forms, rules)
    assert chosen is not None
    assert plural_text(chosen, ["a", "b", "b"], rules) == "{n, plural, one {a} other {b}}"
    assert plural_text(chosen, ["a", "c", "b"], rules) == "{n, plural, one {a} many {c} other {b}}"


@given(st.text("'{}# ab", max_size=12))
def test_quoting_is_undone_by_an_icu_reader(text: str) -> None:
    """Whatever marks a form holds, a reader of ICU gets the form back."""
    (choice,) = parse_icu(f"{{n, plural, other {{{quoted(text)}}}}}")
    assert isinstance(choice, Choice)
    assert "".join(str(part) for part in choice.branches["other"]) == text


# --- manifests ------------------------------------------------------------------------------------------------------


def manifest_document(**changes: Any) -> dict[str, Any]:
    return {
        "format": "po",
        "site_id": "site-1",
        "website_version": "2026.11",
        "source_sequence": 3,
        "source_id": "admin",
        "source_revision": "5.2",
        "source_locale": "en",
        "content_type": "ui",
        "glossary_version": "g-1",
        "policy_version": "p-1",
        "software_version": "s-1",
        "provider": {"id": "translator", "model_id": "m", "model_version": "1"},
        "review_confidence": {"target_native": "high", "source_fidelity": "high"},
        "quality_profile": {"version": "1", "sha256": "a" * 64},
        "locales": [{"locale": "de", "file": "de.po"}, {"locale": "fr", "file": "fr.po"}],
        **changes,
    }


def manifest(**changes: Any) -> Manifest:
    return parse_manifest(manifest_document(**changes))


DE = {"locale": "de", "file": "de.po"}


@pytest.mark.parametrize(
    ("changes", "code", "path"),
    [
        ({"format": "mo"}, "import.manifest.invalid", "format"),
        ({"site_id": "a b"}, "import.manifest.invalid", "site_id"),
        ({"extra": 1}, "import.manifest.invalid", "extra"),
        ({"source_sequence": "1"}, "import.manifest.invalid", "source_sequence"),
        ({"source_sequence": True}, "import.manifest.invalid", "source_sequence"),
        ({"source_locale": "en_US"}, "import.manifest.locale.invalid", "source_locale"),
        ({"locales": []}, "import.manifest.invalid", "locales"),
        ({"locales": [{**DE, "locale": "pt_BR"}]}, "import.manifest.locale.invalid", "locales.0.locale"),
        ({"locales": [DE, DE]}, "import.manifest.locale.duplicate", "locales.1.locale"),
        ({"locales": [{**DE, "file": ""}]}, "import.manifest.invalid", "locales.0.file"),
        ({"quality_profile": None}, "import.manifest.invalid", "locales.0.quality_profile"),
        ({"format": "json"}, "import.manifest.invalid", "source"),
        ({"event_per": "locale"}, "import.manifest.invalid", "event_per"),
        (
            {"review_confidence": {"target_native": "high"}},
            "import.manifest.invalid",
            "review_confidence.source_fidelity",
        ),
    ],
)
def test_a_wrong_manifest_is_refused_with_its_member(changes: dict[str, Any], code: str, path: str) -> None:
    """Members are exact, as in every document."""
    assert refused(manifest, **changes) == (code, path)


WHOLE = Piece(
    key=None, is_json=True, keys=("a",), source_text='{"a":"A"}', targets={"fr": '{"a":"F"}', "de": '{"a":"D"}'}
)
SINGLE = Piece(key="a", is_json=False, keys=("a",), source_text="A", targets={"fr": "F", "de": "D"})


def test_an_event_of_a_document() -> None:
    """Everything beside the text is the manifest's; the same import is the same event, byte for byte."""
    event = event_of(manifest(), WHOLE)
    assert event.document == {
        "schema": "locseal.change-event.v1",
        "event_id": "site-1:admin:3",
        "site_id": "site-1",
        "website_version": "2026.11",
        "source_sequence": 3,
        "localization": {
            "source_id": "admin",
            "source_revision": "5.2",
            "source_text": '{"a":"A"}',
            "source_locale": "en",
            "media_type": "application/json",
            "content_type": "ui",
            "glossary_version": "g-1",
            "policy_version": "p-1",
            "provider": {"id": "translator", "model_id": "m", "model_version": "1"},
            "software_version": "s-1",
            "commercial_profile": None,
            "target_locales": ["de", "fr"],
        },
    }
    assert event_of(manifest(), WHOLE).sha256 == event.sha256


def test_an_event_of_a_unit_has_ids_of_its_own() -> None:
    """Event and source carry the key; names that would be no tokens are hashed."""
    event = event_of(manifest(media_type="text/html"), SINGLE)
    assert (event.event_id, event.localization.source_id) == ("site-1:admin:3:a", "admin:a")
    assert (event.localization.media_type, event.localization.source_text) == ("text/html", "A")
    assert event_of(manifest(), SINGLE).localization.media_type == "text/plain"
    named = event_of(manifest(event_id="e"), SINGLE)
    assert named.event_id == "e:a"
    long = event_of(manifest(event_id="e" * 256), SINGLE)
    assert long.event_id == hashed_key("import-", "e" * 256, "a")


def test_a_document_is_json_whatever_the_manifest_says() -> None:
    """A manifest that says otherwise is refused instead of ignored."""
    assert event_of(manifest(media_type="application/json"), WHOLE).localization.media_type == "application/json"
    assert refused(event_of, manifest(media_type="text/html"), WHOLE) == ("import.manifest.invalid", "media_type")


def test_a_text_beyond_the_limit_asks_for_smaller_events() -> None:
    """Two megabytes are the most that one text may have."""
    big = Piece(key=None, is_json=True, keys=("a",), source_text="x", targets={"de": "y" * 2_000_001})
    assert refused(event_of, manifest(), big) == ("import.document.too_large", "")


def test_results_are_what_intake_takes() -> None:
    """Hashes and flags are derived; a locale's own confidence and quality rules win."""
    own = {
        **DE,
        "review_confidence": {"target_native": "low", "source_fidelity": "high"},
        "quality_profile": {"version": "de-2", "sha256": "b" * 64},
    }
    used = manifest(locales=[own, {"locale": "fr", "file": "fr.po"}])
    event = event_of(used, WHOLE)
    results = {one.target_locale: one for one in results_of(used, event, WHOLE)}
    assert results["de"].independent_review_required is True
    assert results["de"].quality_profile.to_json() == {"locale": "de", "version": "de-2", "sha256": "b" * 64}
    assert results["fr"].independent_review_required is False
    assert results["fr"].quality_profile.to_json() == {"locale": "fr", "version": "1", "sha256": "a" * 64}
    assert results["fr"].target_sha256 == sha256_hex('{"a":"F"}')
    (document,) = submissions_of(event, results_of(used, event, WHOLE), replaced={})
    submission = parse_submission(document)
    assert {pair.job.target_locale: pair.result.candidate for pair in submission.results} == dict(WHOLE.targets)
    assert submission.event.sha256 == event.sha256


def test_legal_and_commercial_content_follow_their_rules() -> None:
    """Legal asks for a human; commercial content carries its review, the locale's own before the manifest's."""
    event = event_of(manifest(content_type="legal"), WHOLE)
    assert [one.human_review_required for one in results_of(manifest(content_type="legal"), event, WHOLE)] == [
        True,
        True,
    ]
    used = manifest(
        content_type="commercial",
        commercial_profile="retail",
        commercial_review={"verdict": "ok"},
        locales=[{**DE, "commercial_review": {"verdict": "own"}}, {"locale": "fr", "file": "fr.po"}],
    )
    found = {one.target_locale: one.commercial_review for one in results_of(used, event_of(used, WHOLE), WHOLE)}
    assert found == {"de": {"verdict": "own"}, "fr": {"verdict": "ok"}}
    assert refused(event_of, manifest(content_type="commercial"), WHOLE)[0] == "submission.commercial.invalid"


def test_only_a_result_that_differs_replaces() -> None:
    """A stored result is named where ours is another one; an equal one, or none, is not."""
    event = event_of(manifest(), WHOLE)
    results = results_of(manifest(), event, WHOLE)
    (document,) = submissions_of(
        event, results, replaced={results[0].job_id: "c" * 64, results[1].job_id: results[1].sha256}
    )
    assert [one.get("replaces") for one in document["results"]] == ["c" * 64, None]
    assert parse_submission(document).results[0].result.sha256 == results[0].sha256


def test_results_that_are_too_large_for_one_submission_are_spread_over_several() -> None:
    """Each holds the same event, none is beyond the limit, and no result is lost."""
    locales = [{"locale": tag, "file": tag} for tag in ("de", "fr", "ja", "pl")]
    piece = Piece(
        key=None, is_json=True, keys=("a",), source_text="s", targets={one["locale"]: "t" * 3000 for one in locales}
    )
    used = manifest(locales=locales)
    event = event_of(used, piece)
    results = results_of(used, event, piece)
    documents = submissions_of(event, results, replaced={}, most_bytes=4096 + 1000 + 8500)
    assert [len(one["results"]) for one in documents] == [2, 2]
    assert {one["event"]["event_id"] for one in documents} == {event.event_id}
    assert [result["job_id"] for one in documents for result in one["results"]] == [job.job_id for job in event.jobs]
    assert all(len(canonical_bytes(one)) < 13_600 for one in documents)
    assert [len(one["results"]) for one in submissions_of(event, results, replaced={}, most_bytes=5500)] == [1, 1, 1, 1]


def test_categories_are_those_of_cldr() -> None:
    """Every category that a locale of the product has is one that a plural text may name."""
    for locale in GETTEXT:
        rules = plural_rules(locale)
        assert rules is not None
        assert set(rules.categories) <= set(CATEGORIES)
