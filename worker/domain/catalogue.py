"""What a catalogue of translations is, which of its units are complete, and what of it may go out together.

A unit is one source text under a key with its translation in each locale. A translation that its translators do not
call finished is a gap, with a reason. Nothing with a gap is ever submitted, and nothing is left out without being said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from worker.domain.canonical import canonical_text, hash_of, parse_strict
from worker.domain.errors import Invalid
from worker.domain.identifier import is_token
from worker.domain.text import LONGEST_TEXT_BYTES, text_fault

Reason = Literal[
    "missing",  # the locale's file has no such unit
    "untranslated",  # it is there, without a text
    "fuzzy",  # its translators want it looked at again
    "state",  # its state says that it is not finished
    "obsolete",  # it was taken out of use
    "plural.header",  # the file does not say which plural forms there are
    "plural.incomplete",  # a form that the header asks for has no text
    "plural.surplus",  # there are more forms than the header knows, so one of the two is out of date
    "plural.rules",  # the header's forms cannot be those of the locale
    "plural.group",  # plural forms in a notation that is not read
    "inline.unexpected",  # inline elements where the source has none
    "source.differs",  # it translates another source text
    "source.empty",
    "source.unknown",  # the source file has no such unit
    "text.not_nfc",
    "text.invalid",  # a NUL, or more than 2,000,000 bytes
]
EventPer = Literal["document", "unit"]
Incomplete = Literal["leave-units", "leave-locales", "refuse"]

LONGEST_READABLE_KEY: Final = 120
HASHED_CHARACTERS: Final = 40  # 160 bits: no two texts that anybody will ever find share them
_HASHED: Final = "key-"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One unit as one file has it: the text of its locale, or the gap that says why there is none to submit.

    `source` is None where the files of a format hold no source texts. With `is_object` the texts are JSON objects: the
    forms of a plural by category.
    """

    key: str
    is_object: bool = False
    source: str | None = field(repr=False)
    target: str | None = field(default=None, repr=False)
    gap: Reason | None = None
    line: int


@dataclass(frozen=True, kw_only=True)
class CatalogueFile:
    """One file: the entries of one locale, their keys distinct. In a source file entries have no targets.

    `plurals` is what the keys begin with that are forms of one plural; other files are read by those of the source file.
    """

    name: str
    locale: str
    entries: tuple[Entry, ...]
    plurals: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Something that is not submitted: where it stands, and why. `locale` is None for the source, `line` without one."""

    key: str
    locale: str | None
    file: str
    line: int | None
    reason: Reason


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One source text with its finished translations by locale, and its gaps. `place` is where it stands first."""

    key: str
    is_object: bool
    place: str
    source: str = field(repr=False)
    targets: Mapping[str, str] = field(repr=False)
    gaps: tuple[LeftOut, ...]


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """Units in the order of their keys, the locales of the files, and entries that are no units."""

    locales: tuple[str, ...]
    units: tuple[Unit, ...]
    strays: tuple[LeftOut, ...]

    @property
    def gaps(self) -> tuple[LeftOut, ...]:
        """Return every gap of every unit."""
        return tuple(gap for unit in self.units for gap in unit.gaps)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one event says: a source text and its translations. `key` is None for a whole document."""

    key: str | None
    is_json: bool
    keys: tuple[str, ...]
    source_text: str = field(repr=False)
    targets: Mapping[str, str] = field(repr=False)


def unit_key(*parts: str) -> str:
    """Return the key of ids that a catalogue gives itself: `a:b` where that is a readable token, else their hash."""
    readable = ":".join(parts)
    is_unambiguous = all(":" not in part for part in parts[:-1])
    if is_unambiguous and len(readable) <= LONGEST_READABLE_KEY and is_token(readable):
        return readable if not readable.startswith(_HASHED) else hashed_key(_HASHED, *parts)
    return hashed_key(_HASHED, *parts)


def hashed_key(prefix: str, *parts: str | None) -> str:
    """Return a prefix and the first 40 hex digits of the hash of the array of the parts."""
    return prefix + hash_of(list(parts))[:HASHED_CHARACTERS]


def gather(files: Sequence[CatalogueFile], source: CatalogueFile | None = None) -> Catalogue:
    """Return the units of the files of all locales.

    With a source file its units count, else those of all files together; then two files that have different source
    texts under one key contradict each other: `Invalid("import.source.mismatch")`.
    """
    known: dict[str, tuple[Entry, str]] = {}
    strays: list[LeftOut] = []
    if source is not None:
        known |= {entry.key: (entry, source.name) for entry in source.entries if entry.gap != "obsolete"}
    for file in files:
        for entry in file.entries:
            if entry.gap == "obsolete" or (entry.key in known and source is not None):
                continue
            if source is not None:
                strays.append(_left_out(file, entry, "source.unknown"))
                continue
            first, _ = known.setdefault(entry.key, (entry, file.name))
            if first.source != entry.source:
                raise Invalid(
                    "import.source.mismatch",
                    "two files have different source texts here; name the source file that counts",
                    path=f"{file.name}:{entry.line}",
                )
    entries = [(file, {entry.key: entry for entry in file.entries}) for file in files]
    units = [_unit(key, entry, name, entries) for key, (entry, name) in sorted(known.items())]
    strays += [
        _left_out(file, entry, "obsolete")
        for file in files
        for entry in file.entries
        if entry.gap == "obsolete" and entry.key not in known
    ]
    return Catalogue(locales=tuple(file.locale for file in files), units=tuple(units), strays=tuple(strays))


def _left_out(file: CatalogueFile, entry: Entry, reason: Reason) -> LeftOut:
    return LeftOut(key=entry.key, locale=file.locale, file=file.name, line=entry.line, reason=reason)


def _unit(key: str, known: Entry, name: str, files: Iterable[tuple[CatalogueFile, Mapping[str, Entry]]]) -> Unit:
    gaps = []
    targets = {}
    source = known.source or ""
    fault: Reason | None = "source.empty" if source == "" else _text_gap(source)
    if fault is not None:
        gaps.append(LeftOut(key=key, locale=None, file=name, line=known.line, reason=fault))
    for file, entries in files:
        entry = entries.get(key)
        if entry is None:
            gaps.append(LeftOut(key=key, locale=file.locale, file=file.name, line=None, reason="missing"))
            continue
        reason = _reason(entry, source)
        if reason is None:
            targets[file.locale] = entry.target or ""
        else:
            gaps.append(_left_out(file, entry, reason))
    return Unit(
        key=key,
        is_object=known.is_object,
        place=f"{name}:{known.line}",
        source=source,
        targets=targets,
        gaps=tuple(gaps),
    )


def _reason(entry: Entry, source: str) -> Reason | None:
    """Return why an entry has no text to submit, or None where it has one."""
    if entry.gap is not None:
        return entry.gap
    if entry.source is not None and entry.source != source:
        return "source.differs"
    return _text_gap(entry.target) if entry.target else "untranslated"


def _text_gap(text: str) -> Reason | None:
    fault = text_fault(text)
    return None if fault is None else "text.not_nfc" if fault == "nfc" else "text.invalid"


def pieces(catalogue: Catalogue, *, event_per: EventPer, incomplete: Incomplete) -> tuple[Piece, ...]:
    """Return what goes out: one piece for the document, or one for each unit.

    `leave-units`: what is complete in every locale. `leave-locales`: of a document every sound unit, in the locales
    that are complete; each unit by itself in the locales that have it. `refuse`: any gap is
    `Invalid("import.incomplete")`. Where nothing is left: `Invalid("import.nothing_complete")`.
    """
    if incomplete == "refuse" and catalogue.gaps:
        raise Invalid("import.incomplete", "something is incomplete, and this import was told to refuse that")
    sound = [unit for unit in catalogue.units if all(gap.locale is not None for gap in unit.gaps)]
    if incomplete != "leave-locales":
        sound = [unit for unit in sound if not unit.gaps]
    found = _documents(catalogue, sound) if event_per == "document" else _singles(sound)
    if not found:
        raise Invalid("import.nothing_complete", "no unit is complete in the locales that it would need")
    return tuple(found)


def _documents(catalogue: Catalogue, units: Sequence[Unit]) -> list[Piece]:
    locales = [locale for locale in catalogue.locales if all(locale in unit.targets for unit in units)]
    if not units or not locales:
        return []
    return [
        Piece(
            key=None,
            is_json=True,
            keys=tuple(unit.key for unit in units),
            source_text=canonical_text({unit.key: _value(unit, unit.source) for unit in units}),
            targets={
                locale: canonical_text({unit.key: _value(unit, unit.targets[locale]) for unit in units})
                for locale in locales
            },
        )
    ]


def _value(unit: Unit, text: str) -> Any:
    return parse_strict(text, max_bytes=LONGEST_TEXT_BYTES) if unit.is_object else text


def _singles(units: Sequence[Unit]) -> list[Piece]:
    return [
        Piece(key=unit.key, is_json=unit.is_object, keys=(unit.key,), source_text=unit.source, targets=unit.targets)
        for unit in units
        if unit.targets
    ]
