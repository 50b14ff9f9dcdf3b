"""Key/value JSON: an object of texts, or of such objects. Nested keys are joined by dots; anything else is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from worker.adapters.catalogues.reading import LONGEST_FILE_BYTES, Reading
from worker.domain.canonical import parse_strict
from worker.domain.catalogue import CatalogueFile, Entry, unit_key
from worker.domain.errors import Invalid

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
    entries: dict[str, Entry] = {}
    for path, leaf in _leaves(value, ()):
        line = lines.get(path, 1)
        if leaf is not None and not isinstance(leaf, str):
            raise reading.refusal("invalid", "a value is neither a text nor an object", line)
        key = unit_key(".".join(path))
        if key in entries:
            raise reading.refusal("duplicate", "two keys are the same once nested ones are joined by dots", line)
        is_source = reading.is_source
        entries[key] = Entry(
            key=key, source=leaf or "" if is_source else None, target=None if is_source else leaf, line=line
        )
    reading.check_count(len(entries))
    return CatalogueFile(name=reading.name, locale=reading.locale, entries=tuple(entries.values()))


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
