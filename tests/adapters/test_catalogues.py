"""Readers of translators' files: what is a unit, what is a gap, and what is no such file at all. Real files and hostile ones."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from babel.messages.pofile import read_po as babel_po

from worker.adapters.catalogues.files import read_bounded, read_locale, read_source
from worker.adapters.catalogues.keyvalue import read_keyvalue
from worker.adapters.catalogues.po import read_po
from worker.adapters.catalogues.reading import LONGEST_FILE_BYTES, Reading
from worker.adapters.catalogues.xliff import read_xliff
from worker.domain.catalogue import CatalogueFile, Entry, hashed_key
from worker.domain.errors import Invalid
from worker.domain.manifest import Manifest, parse_manifest

ADMIN = Path(__file__).parents[1] / "data" / "django-admin" / "po"
SECRET = "Geheimnis"
GERMAN_HEADER = (
    'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    '"Language: de\\n"\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
)


def reading(area: str, **changes: Any) -> Reading:
    values: dict[str, Any] = {"name": "f", "area": f"import.{area}", "locale": "de", "source_locale": "en"}
    return Reading(**values | changes)


def po(text: str | bytes, **changes: Any) -> CatalogueFile:
    return read_po(text if isinstance(text, bytes) else text.encode(), reading("po", **changes))


def xliff(text: str | bytes, **changes: Any) -> CatalogueFile:
    return read_xliff(text if isinstance(text, bytes) else text.encode(), reading("xliff", **changes))


def keyvalue(text: str | bytes, **changes: Any) -> CatalogueFile:
    return read_keyvalue(text if isinstance(text, bytes) else text.encode(), reading("json", **changes))


def shown(file: CatalogueFile) -> list[tuple[str, str | None, str | None, str | None, int]]:
    return [(one.key, one.source, one.target, one.gap, one.line) for one in file.entries]


def refused(read: Any, *arguments: Any, **changes: Any) -> tuple[str, str]:
    """Return code and path of a refusal, which never shows anything of the file."""
    with pytest.raises(Invalid) as fault:
        read(*arguments, **changes)
    assert SECRET not in str(fault.value) + fault.value.path
    assert fault.value.__cause__ is None
    return fault.value.code, fault.value.path


# --- PO -------------------------------------------------------------------------------------------------------------


def test_entries_of_a_po_file() -> None:
    """Contexts part equal msgids; fuzzy, empty and obsolete entries are gaps; the header is no entry."""
    file = po(
        GERMAN_HEADER
        + '#. note\n#: a.py:1\nmsgid "Open"\nmsgstr "Offen"\n\n'
        + 'msgctxt "verb"\nmsgid "Open"\nmsgstr "Öffnen"\n\n'
        + '#, fuzzy, python-format\n#| msgid "old"\nmsgid "%s left"\nmsgstr "%s weg"\n\n'
        + 'msgid "Empty"\nmsgstr ""\n\n'
        + '#~ msgid "Gone"\n#~ msgstr "Weg"\n'
    )
    assert shown(file) == [
        (hashed_key("po-", None, "Open", None), "Open", "Offen", None, 9),
        (hashed_key("po-", "verb", "Open", None), "Open", "Öffnen", None, 13),
        (hashed_key("po-", None, "%s left", None), "%s left", None, "fuzzy", 18),
        (hashed_key("po-", None, "Empty", None), "Empty", None, "untranslated", 21),
        (hashed_key("po-", None, "Gone", None), "Gone", None, "obsolete", 24),
    ]


def test_an_older_translation_of_what_is_in_use_is_passed_over() -> None:
    """Tools keep such entries; the one in use counts, and of several obsolete ones the first is listed."""
    old = '#~ msgid "Open"\n#~ msgstr "Auf"\n\n#~ msgid "Gone"\n#~ msgstr "1"\n\n#~ msgid "Gone"\n#~ msgstr "2"\n'
    file = po('msgid "Open"\nmsgstr "Offen"\n\n' + old)
    assert [(one.source, one.target, one.gap, one.line) for one in file.entries] == [
        ("Open", "Offen", None, 1),
        ("Gone", None, "obsolete", 7),
    ]


def test_po_texts_are_what_gettext_reads() -> None:
    """Continued lines, escapes, U+2028 inside a string, CRLF line ends, and a comment as the last line."""
    text = 'msgid ""\n"one\\t\\"two\\"\\n"\n"three\\\\n"\nmsgstr "eins\u2028zwei"\n#,\n'
    for ends in ("\n", "\r\n"):
        (entry,) = po((GERMAN_HEADER + text).replace("\n", ends)).entries
        assert (entry.source, entry.target) == ('one\t"two"\nthree\\n', "eins\u2028zwei")


def plural(header: str, forms: list[str], locale: str) -> Entry:
    lines = "\n".join(f'msgstr[{number}] "{form}"' for number, form in enumerate(forms))
    start = f'msgid ""\nmsgstr "Plural-Forms: {header}\\n"\n\n' if header else ""
    (entry,) = po(f'{start}msgid "%d day"\nmsgid_plural "%d days"\n{lines}\n', locale=locale).entries
    return entry


def test_plural_forms_become_one_text_by_category() -> None:
    """The numbered forms stand under the categories that they are for, quoted where ICU would read them."""
    entry = plural("nplurals=2; plural=(n != 1);", ["%d Tag's", "%d {Tage}"], "de")
    assert entry.key == hashed_key("po-plural-", None, "%d day", "%d days")
    assert entry.source == "{n, plural, one {%d day} other {%d days}}"
    assert entry.target == "{n, plural, one {%d Tag''s} other {%d '{'Tage'}'}}"


POLISH = (
    "nplurals=4; plural=(n==1 ? 0 : (n%10>=2 && n%10<=4) && (n%100<12 || n%100>14) ? 1 : n!=1 && (n%10>=0 && n%10<=1)"
    " || (n%10>=5 && n%10<=9) || (n%100>=12 && n%100<=14) ? 2 : 3);"
)


@pytest.mark.parametrize(
    ("header", "forms", "locale", "gap"),
    [
        (POLISH, ["a", "b", "c", "d"], "pl", None),
        (POLISH, ["a", "b", "c"], "pl", "plural.incomplete"),
        (POLISH, ["a", "b", "", "d"], "pl", "plural.incomplete"),
        (POLISH, ["", "", "", ""], "pl", "untranslated"),
        ("nplurals=2; plural=(n != 1);", ["a", "b", "c"], "es", "plural.surplus"),
        ("nplurals=2; plural=(n != 1);", ["a", "b"], "pl", "plural.rules"),  # CLDR asks for three
        ("nplurals=2; plural=(n % 7 == 1);", ["a", "b"], "de", "plural.rules"),
        ("nplurals=2; plural=(n / 0);", ["a", "b"], "de", "plural.rules"),
        ("nplurals=2; plural=5;", ["a", "b"], "de", "plural.rules"),
        ("nplurals=2; plural=import os;", ["a", "b"], "de", "plural.header"),
        ("nplurals=9; plural=0;", ["a"], "ja", "plural.header"),
        ("", ["a", "b"], "de", "plural.header"),
        ("nplurals=1; plural=0;", ["a"], "ja", None),
    ],
)
def test_plurals_need_exactly_their_forms(header: str, forms: list[str], locale: str, gap: str | None) -> None:
    """Header and CLDR both have their say; a plural with anything missing or contradicting is not submitted."""
    entry = plural(header, forms, locale)
    assert (entry.gap, entry.target is None) == (gap, gap is not None)


def test_a_template_is_a_source_file() -> None:
    """It has units and no targets; its placeholders in the header do not matter."""
    text = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=CHARSET\\n"\n\nmsgid "Open"\nmsgstr ""\n'
    assert shown(po(text, is_source=True)) == [(hashed_key("po-", None, "Open", None), "Open", None, None, 4)]


ENTRY = 'msgid "a"\nmsgstr "b"\n'


@pytest.mark.parametrize(
    ("text", "kind", "line"),
    [
        (f'{ENTRY}msgid "a"\nmsgstr "{SECRET}"\n', "duplicate", 3),
        (f'{GERMAN_HEADER}msgid ""\nmsgstr "{SECRET}"\n', "duplicate", 7),
        (f'{ENTRY}msgid {SECRET}\nmsgstr "b"\n', "invalid", 3),
        (f"{ENTRY}{SECRET}\n", "invalid", 3),
        (f'{ENTRY}msgid "x" "{SECRET}"\nmsgstr "b"\n', "invalid", 3),
        (f'{ENTRY}msgid "\\x41{SECRET}"\nmsgstr "b"\n', "invalid", 3),
        (f'{ENTRY}msgid "bell \a{SECRET}"\nmsgstr "b"\n', "invalid", 3),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[0] "c"\nmsgstr[0] "d"\n', "invalid", 4),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[1] "c"\n', "invalid", 3),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[10] "c"\n', "invalid", 3),
        ('msgid "a"\nmsgid "b"\nmsgstr "c"\n', "invalid", 2),
        ('msgid "a"\nmsgstr "b"\nmsgstr "c"\n', "invalid", 3),
        ('"a"\n', "invalid", 1),
        (f'{ENTRY}msgid "last"\n', "invalid", 4),
        ('msgctxt "c"\nmsgid ""\nmsgstr "b"\n', "invalid", 2),
        ("\ufeff" + ENTRY, "encoding", 1),
        (ENTRY.encode() + b'msgid "\xe4"\nmsgstr "b"\n', "encoding", 3),
        (ENTRY.encode("utf-16"), "encoding", 1),
        (b"\x00\x01\x02", "invalid", 1),
        ('msgid ""\nmsgstr "Content-Type: text/plain; charset=ISO-8859-1\\n"\n\n' + ENTRY, "encoding", 1),
        ('msgid ""\nmsgstr "Language: fr\\n"\n\n' + ENTRY, "language", 1),
        ('msgid ""\nmsgstr "Language: ???\\n"\n\n' + ENTRY, "language", 1),
        ('msgid "a"\n#, fuzzy\nmsgstr "b"\n', "invalid", 2),
    ],
)
def test_a_broken_po_file_is_refused_with_its_line(text: str | bytes, kind: str, line: int) -> None:
    """Nothing is guessed: each line is PO or the file is refused, and the refusal shows nothing of it."""
    assert refused(po, text) == (f"import.po.{kind}", f"f:{line}")


def test_the_name_of_another_file_is_no_catalogue(tmp_path: Path) -> None:
    """A file whose whole content is a path does not lend that file's content."""
    other = tmp_path / "other.po"
    other.write_text(ENTRY)
    assert refused(po, str(other))[0] == "import.po.invalid"


def test_all_27_real_files() -> None:
    """Every real file is read; what is left out of each is what its translators left open."""
    gaps: Counter[tuple[str, str]] = Counter()
    entries: Counter[str] = Counter()
    files = sorted(ADMIN.glob("*.po"))
    for path in files:
        file = po(path.read_bytes(), name=path.name, locale=path.stem)
        entries[path.stem] += len(file.entries)
        gaps.update((path.stem, one.gap) for one in file.entries if one.gap)
    assert len(files) == 27
    assert (entries["de-DE"], entries["hr-HR"], sum(entries.values())) == (200, 175, 5297)
    assert gaps == {
        ("de-DE", "untranslated"): 5,
        ("es-ES", "plural.surplus"): 5,
        ("et-EE", "untranslated"): 2,
        ("fi-FI", "untranslated"): 7,
        ("fr-FR", "plural.surplus"): 5,
        ("hr-HR", "untranslated"): 19,
        ("hu-HU", "untranslated"): 6,
        ("it-IT", "plural.surplus"): 5,
        ("pt-BR", "plural.surplus"): 5,
        ("pt-PT", "plural.surplus"): 5,
        ("pt-PT", "untranslated"): 3,
        ("ro-RO", "untranslated"): 19,
        ("sl-SI", "untranslated"): 25,
    }


def test_the_real_files_say_what_another_reader_reads() -> None:
    """Babel's reader, which shares no line with ours, finds the same texts."""
    for path in sorted(ADMIN.glob("*.po")):
        with path.open("rb") as opened:
            other = {
                (one.context, one.id): one.string
                for one in babel_po(opened)
                if one.id and isinstance(one.id, str) and one.string and not one.fuzzy
            }
        file = po(path.read_bytes(), locale=path.stem)
        ours = {one.key: (one.source, one.target) for one in file.entries if one.key[:9] != "po-plural" and one.target}
        assert ours == {
            hashed_key("po-", context, name, None): (name, text) for (context, name), text in other.items()
        }, path.stem


def test_a_text_in_very_many_pieces_is_read_in_one_go() -> None:
    """A million continuation lines cost a pass, not a copy of the whole text each; more lines than that are refused."""
    pieces = '"x"\n' * 1_000_000
    (entry,) = po(f'msgid "a"\nmsgstr ""\n{pieces}').entries
    assert entry.target == "x" * 1_000_000
    assert refused(po, "\n" * 2_000_001) == ("import.po.invalid", "f")
    assert refused(xliff, one("<x/>" * 2_000_000)) == ("import.xliff.invalid", "f")


# --- key/value JSON -------------------------------------------------------------------------------------------------


def test_nested_keys_are_joined_and_null_is_no_text() -> None:
    """Keys that are tokens stay readable, others are hashed; lines are those of the keys."""
    file = keyvalue('{\n "home": {\n  "title": "Hallo",\n  "Lead text!": "Ja"\n },\n "x": null, "y": ""\n}\n')
    assert shown(file) == [
        ("home.title", None, "Hallo", None, 3),
        (hashed_key("key-", "home.Lead text!"), None, "Ja", None, 4),
        ("x", None, "", None, 6),
        ("y", None, "", None, 6),
    ]


SOURCE = '{"files_one": "a file", "files_other": "files", "days": {"one": "a day", "other": "days"}, "one": "1"}'


def test_plural_keys_are_one_unit_with_the_categories_of_each_locale() -> None:
    """Both spellings of plurals; a locale needs its own categories, and may have a text for zero besides."""
    source = keyvalue(SOURCE, locale="en", is_source=True)
    assert source.plurals == {"files_", "days."}
    assert [(one.key, one.source, one.is_object) for one in source.entries] == [
        ("one", "1", False),
        ("files", '{"one":"a file","other":"files"}', True),
        ("days", '{"one":"a day","other":"days"}', True),
    ]

    def gap(text: str, locale: str) -> str | None:
        (entry,) = keyvalue(text, locale=locale, plurals=source.plurals).entries
        assert (entry.key, entry.is_object) == ("files", True)
        return entry.gap

    polish = '{"files_one": "a", "files_few": "b", "files_many": "c", "files_other": "d"}'
    assert gap(polish, "pl") is None
    assert gap(polish.replace("files_few", "files_zero"), "pl") == "plural.incomplete"
    assert gap(polish.replace('"b"', '""'), "pl") == "plural.incomplete"
    assert gap(polish, "de") == "plural.surplus"
    assert gap('{"files_zero": "none", "files_one": "a", "files_other": "d"}', "de") is None
    assert gap('{"files_other": "d"}', "ja") is None
    assert gap('{"files_other": "d"}', "tlh") == "plural.rules"  # CLDR knows no rules for it
    assert gap('{"files_one": "", "files_other": null}', "de") == "untranslated"


def test_a_key_that_is_also_a_plural_is_refused() -> None:
    """One key would stand for two texts."""
    text = '{"files": "x",\n"files_one": "a file",\n"files_other": "files"}'
    assert refused(keyvalue, text, locale="en", is_source=True) == ("import.json.duplicate", "f:2")


def test_more_units_than_anybody_translates_are_refused() -> None:
    """The bound holds memory, not translators."""
    text = json.dumps({f"k{number}": "x" for number in range(100_001)})
    assert refused(keyvalue, text) == ("import.json.invalid", "f")


@pytest.mark.parametrize(
    ("text", "kind", "where"),
    [
        (f'{{\n"a": "1",\n"a": "{SECRET}"}}', "duplicate", "f:3"),
        (f'{{"b": [{{"x": "1"}}, {{"x": "{SECRET}",\n "x": "2"}}]}}', "duplicate", "f:2"),
        (f'{{\n"a": {{"b": "1"}},\n"a.b": "{SECRET}"}}', "duplicate", "f:3"),
        (f'{{\n"a": "{SECRET}"\n"b": "2"}}', "invalid", "f:3"),
        (f'["{SECRET}"]', "invalid", "f:1"),
        ('{\n"a": ["1"]}', "invalid", "f:2"),
        ('{"a": 1}', "invalid", "f:1"),
        ('{"a": true}', "invalid", "f:1"),
        ('{"a": NaN}', "invalid", "f"),
        ('{"a":' * 1000 + '"1"' + "}" * 1000, "invalid", "f"),
        ("[" * 100_000, "invalid", "f"),
        ('{"a": "\\ud800"}', "invalid", "f"),
        ("", "invalid", "f:1"),
        ('\ufeff{"a": "1"}', "encoding", "f:1"),
        (b'{"a":\n"\xff"}', "encoding", "f:2"),
    ],
)
def test_broken_json_is_refused_with_its_line(text: str | bytes, kind: str, where: str) -> None:
    """Strict JSON of texts alone; the refusal shows nothing of it."""
    assert refused(keyvalue, text) == (f"import.json.{kind}", where)


# --- XLIFF ----------------------------------------------------------------------------------------------------------


def one(units: str, *, target: str = "de", file: str = 'original="app" source-language="en"') -> str:
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">\n'
        f'<file {file} target-language="{target}" datatype="plaintext"><body>\n{units}\n</body></file></xliff>'
    )


def two(units: str, *, version: str = "2.1", space: str = "2.0", target: str = "de") -> str:
    return (
        f'<xliff version="{version}" xmlns="urn:oasis:names:tc:xliff:document:{space}" srcLang="en" trgLang="{target}">\n'
        f'<file id="app">\n{units}\n</file></xliff>'
    )


def trans(inner: str, attributes: str = "") -> str:
    return f'<trans-unit id="u" {attributes}><source>Open</source>{inner}</trans-unit>'


@pytest.mark.parametrize(
    ("unit", "gap"),
    [
        (trans("<target>Offen</target>"), None),
        (trans('<target state="translated">Offen</target>'), None),
        (trans('<target state="signed-off">Offen</target>'), None),
        (trans('<target state="final">Offen</target>', 'approved="yes"'), None),
        (trans("<target>Offen</target>", 'approved="yes"'), None),
        (trans("<target>Offen</target>", 'approved="no"'), "state"),
        (trans('<target state="needs-translation">Offen</target>', 'approved="yes"'), "state"),
        (trans('<target state="needs-review-translation">Offen</target>'), "state"),
        (trans('<target state="new">Offen</target>'), "state"),
        (trans('<target state="x-mine">Offen</target>'), "state"),
        (trans(""), "untranslated"),
        (trans("<alt-trans><target>Offen</target></alt-trans>"), "untranslated"),
        (trans("<target>Of<x id='1'/>fen</target>"), "inline.unexpected"),
        (f'<group restype="x-gettext-plurals">{trans("<target>Offen</target>")}</group>', "plural.group"),
    ],
)
def test_states_of_xliff_1(unit: str, gap: str | None) -> None:
    """A target counts once its state says so, or says nothing and nobody withholds approval."""
    assert shown(xliff(one(unit))) == [("app:u", "Open", None if gap else "Offen", gap, 4)]


def unit2(inner: str, attributes: str = "") -> str:
    return f'<unit id="u"><segment {attributes}><source>Open</source>{inner}</segment></unit>'


@pytest.mark.parametrize(
    ("unit", "gap"),
    [
        (unit2("<target>Offen</target>", 'state="translated"'), None),
        (unit2("<target>Offen</target>", 'state="reviewed"'), None),
        (unit2("<target>Offen</target>", 'state="final"'), None),
        (unit2("<target>Offen</target>", 'state="initial"'), "state"),
        (unit2("<target>Offen</target>"), "state"),  # the standard's default is initial
        (unit2("", 'state="final"'), "untranslated"),
    ],
)
def test_states_of_xliff_2(unit: str, gap: str | None) -> None:
    """Every segment has to be translated, reviewed or final, in all versions of 2.x."""
    for version, space in (("2.0", "2.0"), ("2.1", "2.0"), ("2.2", "2.2")):
        file = xliff(two(unit, version=version, space=space))
        assert shown(file) == [("app:u", "Open", None if gap else "Offen", gap, 3)]


def test_a_missing_state_counts_where_the_manifest_says_so() -> None:
    """Tools that write no states can be told apart, by word of the manifest alone."""
    (entry,) = xliff(two(unit2("<target>Offen</target>")), stateless_is_translated=True).entries
    assert (entry.target, entry.gap) == ("Offen", None)


def test_segments_are_joined_with_what_stands_between() -> None:
    """An ignorable's source stands in for its target; targets may ask for another order."""
    segment = '<segment state="final"><source>{}</source><target{}>{}</target></segment>'
    space = "<ignorable><source> </source></ignorable>"
    unit = (
        "<unit id='u'>" + segment.format("One.", "", "Eins.") + space + segment.format("Two.", "", "Zwei.") + "</unit>"
    )
    assert [(one.source, one.target) for one in xliff(two(unit)).entries] == [("One. Two.", "Eins. Zwei.")]
    turned = unit.replace("<target>Eins", '<target order="3">Eins').replace("<target>Zwei", '<target order="1">Zwei')
    assert [one.target for one in xliff(two(turned)).entries] == ["Zwei. Eins."]
    clash = unit.replace("<target>Eins", '<target order="3">Eins')
    assert refused(xliff, two(clash)) == ("import.xliff.invalid", "f:3")


def test_inline_elements_are_kept_as_tags() -> None:
    """A unit with inline elements is an XML fragment: tags with sorted attributes, all else escaped; tools' stay out."""
    text = trans(
        '<target>L <g id="1"><ph id="2" xmlns:t="urn:tool" t:x="1" ctype="a&quot;b">&lt;br></ph></g> &amp; <x id="3"/></target>'
    ).replace("Open", 'R &amp; <g id="1"><ph id="2"/></g><x id="3"/>')
    (entry,) = xliff(one(text)).entries
    assert entry.source == 'R &amp; <g id="1"><ph id="2"/></g><x id="3"/>'
    assert entry.target == 'L <g id="1"><ph ctype=\'a"b\' id="2">&lt;br&gt;</ph></g> &amp; <x id="3"/>'
    (pair,) = xliff(
        two(unit2("<target>A<pc id='1'>b</pc></target>", 'state="final"').replace("Open", "<pc id='1'>x</pc>"))
    ).entries
    assert (pair.source, pair.target) == ('<pc id="1">x</pc>', 'A<pc id="1">b</pc>')


def test_a_text_without_inline_elements_is_plain() -> None:
    """Escaped marks, CDATA and sentence marks are read as what they stand for; comments are no text."""
    text = '<target><mrk mtype="seg" mid="1">A &lt;b&gt;</mrk><!-- x --><![CDATA[ & ]]></target>'
    assert [one.target for one in xliff(one(trans(text))).entries] == ["A <b> & "]


def test_what_is_not_to_be_translated_is_no_unit() -> None:
    """`translate="no"` on a unit, a group or a file; the nearest one decides."""
    unit = trans("<target>Offen</target>", 'translate="no"')
    assert xliff(one(unit)).entries == ()
    assert xliff(one(f'<group translate="no">{trans("")}</group>')).entries == ()
    wanted = trans("<target>Offen</target>", 'translate="yes"')
    kept = f'<group translate="no">{wanted}</group>'
    assert len(xliff(one(kept)).entries) == 1
    assert xliff(two('<unit id="u" translate="no"><segment><source>x</source></segment></unit>')).entries == ()


def test_files_of_one_document_have_keys_of_their_own() -> None:
    """The key names the file, readable where it can be, and a source file has no targets."""
    text = one(trans("<target>Offen</target>"))
    assert xliff(text.replace('"app"', '"src/app.html"')).entries[0].key == hashed_key("key-", "src/app.html", "u")
    assert shown(xliff(text, is_source=True)) == [("app:u", "Open", None, None, 4)]


LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>'
)


@pytest.mark.parametrize(
    ("text", "kind", "where"),
    [
        (LAUGHS + "<xliff>&c;</xliff>", "doctype", "f"),
        ("<?xml version='1.0'?><!-- x -->\n<!DOCTYPE x SYSTEM 'file:///etc/passwd'><xliff/>", "doctype", "f"),
        (one(trans("<target>&secret;</target>")), "invalid", "f:4"),
        (one(trans(f"<target>{SECRET}</target>")) + f"<{SECRET}>", "invalid", "f:5"),
        (one(trans(f"<target>{SECRET}</targt>")), "invalid", "f:4"),
        (one(trans("") + "\n" + trans("")), "duplicate", "f:5"),
        (one("<trans-unit id='u'/>"), "invalid", "f:4"),
        (one("\n<trans-unit><source>x</source></trans-unit>"), "invalid", "f:5"),
        (
            one(trans(f"<target><t:b xmlns:t='urn:t'>{SECRET}</t:b></target>").replace("Open", "<x id='1'/>")),
            "invalid",
            "f:4",
        ),
        (one(trans(""), target="fr"), "language", "f:3"),
        (one(trans(""), file='original="app" source-language="fr"'), "language", "f:3"),
        (two(unit2(""), target="fr"), "language", "f:1"),
        (two("<unit id='u'/>"), "invalid", "f:3"),
        (two("<unit id='u'><segment/></unit>"), "invalid", "f:3"),
        (two(unit2("<target order='0'>x</target>")), "invalid", "f:3"),
        (two(unit2(""), version="1.2"), "invalid", "f:1"),
        ("<xliff version='1.2'/>", "invalid", "f:1"),
        ("<html/>", "invalid", "f:1"),
        ("", "invalid", "f:1"),
        ('<?xml version="1.0" encoding="ISO-8859-1"?><xliff/>', "encoding", "f:1"),
        (one(trans("")).encode("utf-16"), "encoding", "f:1"),
        ("<a>" * 5000, "invalid", "f:1"),
    ],
)
def test_broken_or_hostile_xliff_is_refused(text: str | bytes, kind: str, where: str) -> None:
    """No document type, entity, foreign element or other version gets in; the refusal shows nothing of the file."""
    assert refused(xliff, text) == (f"import.xliff.{kind}", where)


def test_a_byte_order_mark_is_xml() -> None:
    """XML allows it, unlike the other formats."""
    assert len(xliff("\ufeff" + one(trans(""))).entries) == 1


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    """The limit is judged by what is read, so that a file that lies about its size is bounded too."""
    path = tmp_path / "big"
    path.write_bytes(b"x" * 100)
    assert read_bounded(path, "big", most_bytes=100) == b"x" * 100
    assert refused(read_bounded, path, "big", most_bytes=99) == ("import.file.too_large", "big")
    with path.open("wb") as opened:
        opened.truncate(LONGEST_FILE_BYTES + 1)  # sparse
    assert refused(read_bounded, path, "big") == ("import.file.too_large", "big")


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    """Missing files, directories and impossible names; a pipe that nobody writes to does not hang the import."""
    assert refused(read_bounded, tmp_path / "none", "none") == ("import.file.unreadable", "none")
    assert refused(read_bounded, tmp_path, "dir") == ("import.file.unreadable", "dir")
    assert refused(read_bounded, tmp_path / "a\x00b", "nul") == ("import.file.unreadable", "nul")
    os.mkfifo(tmp_path / "pipe")
    seen: list[tuple[str, str]] = []
    worker = threading.Thread(target=lambda: seen.append(refused(read_bounded, tmp_path / "pipe", "pipe")), daemon=True)
    worker.start()
    worker.join(10)
    assert seen == [("import.file.unreadable", "pipe")]


def manifest(**changes: Any) -> Manifest:
    return parse_manifest(
        {
            "format": "json",
            "site_id": "site-1",
            "website_version": "1",
            "source_sequence": 1,
            "source_id": "app",
            "source_revision": "1",
            "source_locale": "en",
            "content_type": "ui",
            "glossary_version": "1",
            "policy_version": "1",
            "software_version": "1",
            "provider": {"id": "p", "model_id": "m", "model_version": "1"},
            "review_confidence": {"target_native": "high", "source_fidelity": "high"},
            "quality_profile": {"version": "1", "sha256": "a" * 64},
            "source": {"file": "en.json"},
            "locales": [{"locale": "pl", "file": "pl.json"}],
            **changes,
        }
    )


def test_files_are_read_beside_their_manifest(tmp_path: Path) -> None:
    """The source file says which keys are plurals; refusals name the file as the manifest does."""
    (tmp_path / "en.json").write_text(SOURCE)
    (tmp_path / "pl.json").write_text('{"files_one": "1", "files_few": "2", "files_many": "3", "files_other": "4"}')
    used = manifest()
    source = read_source(tmp_path, used)
    assert source is not None
    assert [one.key for one in read_locale(tmp_path, used, used.locales[0], source).entries] == ["files"]
    (tmp_path / "pl.json").write_text("{")
    assert refused(read_locale, tmp_path, used, used.locales[0], source) == ("import.json.invalid", "pl.json:1")
    assert read_source(tmp_path, manifest(format="po", source=None)) is None
