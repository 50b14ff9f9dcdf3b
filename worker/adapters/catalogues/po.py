"""Gettext PO. `polib` reads it; what `polib` would guess at (bad quotes, unknown escapes, repeats) is refused before.

A unit is an entry in use. Its key is the hash of context, msgid and msgid_plural, since a msgid is the text itself and
keys stand where no text may. Fuzzy and obsolete entries, and plurals without exactly their forms are gaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import polib

from worker.adapters.catalogues.reading import Reading
from worker.domain.catalogue import CatalogueFile, Entry, Reason, hashed_key
from worker.domain.checks.plurals import PluralRules, plural_rules
from worker.domain.plural import SOURCE_SELECTORS, PluralForms, parse_plural_forms, plural_text, selectors

MOST_LINES: Final = 2_000_000
_STRING: Final = r'"(?P<text>(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[\\"ntrvbf])*+)"'
_KEYWORD: Final = re.compile(rf"(?P<word>msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?)\s+{_STRING}")
_MORE: Final = re.compile(_STRING)
_CHARSET: Final = re.compile(r"charset=([^\s;]+)", re.IGNORECASE)
_UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii", "ascii"})
_TEMPLATE: Final = "charset"  # what xgettext writes into a template
_FOLLOWS: Final = {  # what an entry may go on with, after what
    None: {"msgctxt", "msgid"},
    "msgctxt": {"msgid"},
    "msgid": {"msgid_plural", "msgstr"},
    "msgid_plural": {"msgstr[0]"},
    "msgstr": {"msgctxt", "msgid"},
}


class _Lines(str):
    """A text that is parted at line feeds alone, as gettext does; Python would also part it at U+2028 and others."""

    __slots__ = ()

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Return the lines."""
        del keepends
        return self.split("\n")


@dataclass
class _Start:
    """Where an entry begins: the line of its msgid, and what is needed to know the header."""

    line: int
    has_context: bool
    is_obsolete: bool
    is_empty: bool = True


@dataclass(frozen=True, kw_only=True)
class _Plurals:
    """How the file's plural forms are read, or why they cannot be."""

    forms: PluralForms | None
    chosen: dict[str, int] | None
    rules: PluralRules | None


def read_po(data: bytes, reading: Reading) -> CatalogueFile:
    """Return the entries of a PO file (or template); refuse with `import.po.…` and the line."""
    text = reading.text(data)
    if text.count("\n") > MOST_LINES:
        raise reading.refusal("invalid", f"the file has more than {MOST_LINES} lines")
    lines, starts = _checked(text.split("\n"), reading)
    headers = [start for start in starts if start.is_empty and not start.is_obsolete]
    for start in headers:
        if start.has_context:
            raise reading.refusal("invalid", "an entry has a context but no msgid", start.line)
    if len(headers) > 1:
        raise reading.refusal("duplicate", "there is a second header", headers[1].line)
    starts = [start for start in starts if start not in headers]
    reading.check_count(len(starts))
    try:
        parsed = polib.pofile(_Lines("\n".join(lines)))
    except (OSError, ValueError):  # its messages quote the file
        raise reading.refusal("invalid", "the file is no PO file") from None
    if len(parsed) != len(starts):
        raise reading.refusal("invalid", "the file is no PO file")
    line = headers[0].line if headers else None
    header = parsed.metadata
    _check_charset(header.get("Content-Type", ""), reading, line)
    if not reading.is_source:
        reading.check_language(header.get("Language"), reading.locale, line)
    plurals = _plurals(header.get("Plural-Forms", ""), reading.locale)
    return CatalogueFile(
        name=reading.name, locale=reading.locale, entries=tuple(_entries(parsed, starts, plurals, reading))
    )


def _checked(lines: Sequence[str], reading: Reading) -> tuple[list[str], list[_Start]]:
    """Return the lines without comments, and where entries begin; refuse every line that is not exactly PO.

    A continued string is joined on its first line, since `polib` would copy all of it for each line that it goes on.
    """
    kept: list[str] = []
    strings: dict[int, list[str]] = {}  # by the place of its first line in `kept`
    starts: list[_Start] = []
    last: str | None = None
    has_context = False
    number = 0
    for number, raw in enumerate(lines, start=1):
        line = raw.strip(" \t\r\x0c")
        is_obsolete = line.startswith("#~") and not line.startswith("#~|")
        line = line[2:].lstrip() if is_obsolete else line
        kept.append("")
        if line.startswith("#") or line == "":
            if line.startswith(("#,", "#=")) and line[2:].strip():
                if last is not None and not last.startswith("msgstr"):
                    raise reading.refusal("invalid", "flags stand inside an entry", number)
                kept[-1] = f"#, {line[2:]}"
            continue
        if (found := _KEYWORD.fullmatch(line)) is not None:
            last = _following(last, found["word"], reading, number)
            if last == "msgid":
                starts.append(_Start(number, has_context, is_obsolete))
            has_context = last == "msgctxt"
            kept[-1] = f"{'#~ ' if is_obsolete else ''}{last} "
            strings[number - 1] = [found["text"]]
        elif last is not None and (found := _MORE.fullmatch(line)) is not None:
            strings[next(reversed(strings))].append(found["text"])
        else:
            raise reading.refusal("invalid", "this is no line of a PO file", number)
        if last == "msgid" and found["text"]:
            starts[-1].is_empty = False
    if last is not None and not last.startswith("msgstr"):
        raise reading.refusal("invalid", "the last entry has no msgstr", number)
    for place, parts in strings.items():
        kept[place] += f'"{"".join(parts)}"'
    return kept, starts


def _following(last: str | None, word: str, reading: Reading, number: int) -> str:
    if not _may_follow(last, word):
        raise reading.refusal("invalid", "this keyword does not belong here", number)
    return word


def _may_follow(last: str | None, word: str) -> bool:
    if last is not None and last.startswith("msgstr["):
        return word in {"msgctxt", "msgid", f"msgstr[{int(last[7]) + 1}]"}
    return word in _FOLLOWS[last]


def _check_charset(content_type: str, reading: Reading, line: int | None) -> None:
    found = _CHARSET.search(content_type)
    charset = found[1].lower() if found is not None else "utf-8"
    if charset not in _UTF8 and not (reading.is_source and charset == _TEMPLATE):
        raise reading.refusal("encoding", "the header names another encoding than UTF-8; convert the file", line)


def _plurals(header: str, locale: str) -> _Plurals:
    forms, rules = parse_plural_forms(header), plural_rules(locale)
    chosen = selectors(forms, rules) if forms is not None and rules is not None else None
    return _Plurals(forms=forms, chosen=chosen, rules=rules)


def _entries(
    parsed: Sequence[polib.POEntry], starts: Sequence[_Start], plurals: _Plurals, reading: Reading
) -> Iterator[Entry]:
    seen: set[tuple[str | None, str]] = set()
    used = {(entry.msgctxt, entry.msgid) for entry in parsed if not entry.obsolete}
    for entry, start in zip(parsed, starts, strict=True):
        name = (entry.msgctxt, entry.msgid)
        if entry.obsolete and (name in used or name in seen):
            continue  # an older translation of what is in use, or of what was listed
        if name in seen:
            raise reading.refusal("duplicate", "an entry with this context and msgid was there before", start.line)
        seen.add(name)
        is_plural = bool(entry.msgid_plural)
        source = plural_text(SOURCE_SELECTORS, [entry.msgid, entry.msgid_plural]) if is_plural else entry.msgid
        prefix = "po-plural-" if is_plural else "po-"
        key = hashed_key(prefix, entry.msgctxt, entry.msgid, entry.msgid_plural or None)
        gap = _gap(entry, plurals, reading)
        target = None if gap is not None or reading.is_source else _target(entry, plurals)
        yield Entry(key=key, source=source, target=target, gap=gap, line=start.line)


def _gap(entry: polib.POEntry, plurals: _Plurals, reading: Reading) -> Reason | None:
    if entry.obsolete:
        return "obsolete"
    if reading.is_source:
        return None
    if "fuzzy" in entry.flags:
        return "fuzzy"
    if not entry.msgid_plural:
        return None if entry.msgstr else "untranslated"
    texts = entry.msgstr_plural
    if not any(texts.values()):
        return "untranslated"
    if plurals.forms is None:
        return "plural.header"
    if len(texts) > plurals.forms.count:
        return "plural.surplus"
    if len(texts) < plurals.forms.count or not all(texts.values()):
        return "plural.incomplete"
    return "plural.rules" if plurals.chosen is None else None


def _target(entry: polib.POEntry, plurals: _Plurals) -> str:
    if not entry.msgid_plural or plurals.chosen is None:
        return entry.msgstr
    return plural_text(
        plurals.chosen, [entry.msgstr_plural[index] for index in sorted(entry.msgstr_plural)], plurals.rules
    )
