"""Key/value JSON: an object of texts, or of such objects. Nested keys are joined by dots; anything else is refused.

Where the source file has `files_one` and `files_other` (or an object of `one` and `other`), these are the forms of one
plural: one unit, whose text is a JSON object of the forms by category. Each locale has its own categories.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from worker.adapters.catalogues.reading import LONGEST_FILE_BYTES, Reading
from worker.domain.canonical import canonical_text, parse_strict
from worker.domain.catalogue import CatalogueFile, Entry, Reason, unit_key
from worker.domain.checks.plurals import CATEGORIES, plural_rules
from worker.domain.errors import Invalid
from worker.domain.plural import EVERYDAY

_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\]:\n]')

Path = tuple[str, ...]


def read_keyvalue(data: bytes, reading: Reading) -> CatalogueFile:
    """Return the entries of a JSON file; refuse with `import.json.…` and the line.

    Only a source file has source texts; in the others an entry's source is None.
    """
    text = reading.text(data)
    try:
        value = parse_strict(data, max_bytes=LONGEST_FILE_BYTES)
    except Invalid as fault:
        raise _refusal(text, reading, fault.message) from None
    if not isinstance(value, dict):
        raise reading.refusal("invalid", "the file is no JSON object", 1)
    lines, _ = _places(text)
    texts: dict[str, tuple[str, int]] = {}
    for path, leaf in _leaves(value, ()):
        line = lines.get(path, 1)
        if leaf is not None and not isinstance(leaf, str):
            raise reading.refusal("invalid", "a value is neither a text nor an object", line)
        name = ".".join(path)
        if name in texts:
            raise reading.refusal("duplicate", "two keys are the same once nested ones are joined by dots", line)
        texts[name] = (leaf or "", line)
    reading.check_count(len(texts))
    plurals = _plurals(texts) if reading.is_source else reading.plurals
    entries: dict[str, Entry] = {}
    for entry in _entries(texts, plurals, reading):
        if entry.key in entries:
            raise reading.refusal("duplicate", "a key is also the name of a plural", entry.line)
        entries[entry.key] = entry
    return CatalogueFile(
        name=reading.name, locale=reading.locale, entries=tuple(entries.values()), plurals=frozenset(plurals)
    )


def _plurals(texts: Iterable[str]) -> set[str]:
    """Return what the names of plural forms begin with: `files_` of `files_one`, `files.` of `files.one`."""
    names = set(texts)
    found = {name.removesuffix("other") for name in names if name.endswith(("_other", ".other"))}
    return {start for start in found if f"{start}one" in names and len(start) > 1}


def _entries(texts: Mapping[str, tuple[str, int]], plurals: Collection[str], reading: Reading) -> Iterator[Entry]:
    forms: dict[str, dict[str, str]] = {}
    first: dict[str, int] = {}
    for name, (text, line) in texts.items():
        start, category = _form(name, plurals)
        if category:
            forms.setdefault(start, {})[category] = text
            first.setdefault(start, line)
        elif reading.is_source:
            yield Entry(key=unit_key(name), source=text, line=line)
        else:
            yield Entry(key=unit_key(name), source=None, target=text, line=line)
    for start, given in forms.items():
        key, line, text = unit_key(start[:-1]), first[start], canonical_text(given)
        if reading.is_source:
            yield Entry(key=key, is_object=True, source=text if all(given.values()) else "", line=line)
        else:
            gap = _plural_gap(given, reading.locale)
            yield Entry(key=key, is_object=True, source=None, target=None if gap else text, gap=gap, line=line)


def _form(name: str, plurals: Collection[str]) -> tuple[str, str]:
    for category in CATEGORIES:
        start = name.removesuffix(category)
        if start != name and start in plurals:
            return start, category
    return name, ""


def _plural_gap(given: Mapping[str, str], locale: str) -> Reason | None:
    """Return why the forms of a plural are not those of the locale; a text of its own for zero is always allowed."""
    rules = plural_rules(locale)
    if rules is None:
        return "plural.rules"
    if not any(given.values()):
        return "untranslated"
    if given.keys() - {*rules.categories, "zero"}:
        return "plural.surplus"
    needed = {"other"} | {name for name, numbers in rules.numbers.items() if numbers and min(numbers) <= EVERYDAY}
    return "plural.incomplete" if needed - given.keys() or not all(given.values()) else None


def _leaves(value: Mapping[str, Any], above: Path) -> Iterator[tuple[Path, Any]]:
    for name, below in value.items():
        if isinstance(below, dict):
            yield from _leaves(below, (*above, name))
        else:
            yield (*above, name), below


def _refusal(text: str, reading: Reading, message: str) -> Invalid:
    """Say where strict JSON ends: at a syntax error, or at the first repeated key."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return reading.refusal("invalid", "the file is not strict JSON", error.lineno)
    except (ValueError, RecursionError):
        return reading.refusal("invalid", message)
    _, repeated = _places(text)
    if repeated is not None:
        return reading.refusal("duplicate", "a key stands twice in one object", repeated)
    return reading.refusal("invalid", message)


def _places(text: str) -> tuple[dict[Path, int], int | None]:
    """Return the line of every key of sound JSON, and the line of the first one that is repeated."""
    lines: dict[Path, int] = {}
    line = 1
    path: list[str] = []
    names: list[set[str]] = []  # of the objects that are open
    word = ""
    for token in _TOKENS.finditer(text):
        mark = token[0]
        if mark == "\n":
            line += 1
        elif mark.startswith('"'):
            word = mark
        elif mark in "{[":
            path.append("")
            names.append(set())
        elif mark in "}]":
            path.pop()
            names.pop()
        elif mark == ":":
            path[-1] = json.loads(word)
            if path[-1] in names[-1]:
                return lines, line
            names[-1].add(path[-1])
            lines[tuple(path)] = line
    return lines, None
