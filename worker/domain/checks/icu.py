"""Reads ICU MessageFormat: text, arguments and choices, with ICU's quoting by apostrophes. One pass, bounded depth.

Only messages with a choice (`plural`, `select`, `selectordinal`) or a typed argument are read as ICU; `{name}` alone is
the same in every brace syntax and belongs to `placeholders`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

MAX_DEPTH: Final = 16

CHOICES: Final = frozenset({"plural", "select", "selectordinal"})
_TYPES: Final = frozenset({"number", "date", "time", "spellout", "ordinal", "duration", "list"})
LOOKS_LIKE_ICU: Final = re.compile(
    r"\{\s{0,20}+\w{1,100}+\s{0,20}+,\s{0,20}+(?:plural|select|selectordinal|number|date|time|spellout|ordinal|duration)"
    r"\s{0,20}+[,}]"
)
_NAME: Final = re.compile(r"\s*+(\w{1,100}+)\s*+")
_OFFSET: Final = re.compile(r"\s*+offset\s*+:\s*+\d{1,9}+")
_SELECTOR: Final = re.compile(r"\s*+(=\d{1,15}+|[\w-]{1,100}+)\s*+\{")
_SPACE: Final = re.compile(r"\s*+")
_PLAIN: Final = re.compile(r"[^{}'#]++")


class IcuSyntaxError(ValueError):
    """The text is no ICU message. Carries no text."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """A value that is put in: `{name}`, `{name, number}`; `#` is the argument `#`."""

    name: str
    type: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A choice between messages by the value of an argument."""

    name: str
    type: str
    branches: Mapping[str, Message]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A message as one reader sees it: one branch of one choice, every other choice taken at `other`.

    Without a choice (`name` is "") it is `other` everywhere.
    """

    name: str = ""
    type: str = ""
    selector: str = ""
    text: str


Message = tuple["str | Argument | Choice", ...]


def parse_icu(text: str) -> Message:
    """Return the parts of a message; `IcuSyntaxError` where it is none, or is nested deeper than 16 choices."""
    message, place = _Reader(text).message(0, depth=0, in_plural=False)
    if place != len(text):
        raise IcuSyntaxError
    return message


def arguments(message: Message) -> Iterator[tuple[str, str]]:
    """Yield name and type of every argument, those of choices included; `#` left out."""
    for part in message:
        if isinstance(part, Argument) and part.name != "#":
            yield part.name, part.type
        elif isinstance(part, Choice):
            yield part.name, part.type
            for branch in part.branches.values():
                yield from arguments(branch)


def choices(message: Message) -> Iterator[Choice]:
    """Yield every choice, those within others too."""
    for part in message:
        if isinstance(part, Choice):
            yield part
            for branch in part.branches.values():
                yield from choices(branch)


def readings(message: Message, *, limit: int = 24) -> list[Reading]:
    """Return the readings of a message: first `other` everywhere, then at most `limit` branches.

    The limit keeps the texts together a bounded multiple of the message.
    """
    found = [Reading(text=_flat(message, {}))]
    for choice in choices(message):
        for selector in choice.branches:
            if selector != "other" and len(found) <= limit:
                text = _flat(message, {choice.name: selector})
                found.append(Reading(name=choice.name, type=choice.type, selector=selector, text=text))
    return found


def _flat(message: Message, chosen: Mapping[str, str], number: str = "#") -> str:
    """Return the text with arguments as `{name}`; `number` is what a `#` stands for."""
    parts: list[str] = []
    for part in message:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, Argument):
            parts.append(f"{{{number if part.name == '#' else part.name}}}")
        else:
            branch = part.branches.get(chosen.get(part.name, "other"))
            if branch is None:
                branch = part.branches.get("other", next(iter(part.branches.values())))
            parts.append(_flat(branch, chosen, number if part.type == "select" else part.name))
    return "".join(parts)


class _Reader:
    """Reads one text from left to right; every method returns what it read and the place behind it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def message(self, place: int, *, depth: int, in_plural: bool) -> tuple[Message, int]:
        if depth > MAX_DEPTH:
            raise IcuSyntaxError
        text, parts, run = self._text, list[str | Argument | Choice](), list[str]()
        while place < len(text) and text[place] != "}":
            mark = text[place]
            if mark == "{":
                if run:
                    parts.append("".join(run))
                    run = []
                part, place = self._argument(place + 1, depth=depth, in_plural=in_plural)
                parts.append(part)
            elif mark == "'":
                quoted, place = self._quoted(place, in_plural=in_plural)
                run.append(quoted)
            elif mark == "#" and in_plural:
                if run:
                    parts.append("".join(run))
                    run = []
                parts.append(Argument(name="#"))
                place += 1
            else:
                found = _PLAIN.match(text, place)
                stop = found.end() if found else place + 1
                run.append(text[place:stop])
                place = stop
        if run:
            parts.append("".join(run))
        return tuple(parts), place

    def _quoted(self, place: int, *, in_plural: bool) -> tuple[str, int]:
        """Read from an apostrophe: two are one, before syntax it quotes to the next, elsewhere it is itself."""
        text = self._text
        following = text[place + 1 : place + 2]
        if following == "'":
            return "'", place + 2
        if following not in {"{", "}"} and not (following == "#" and in_plural):
            return "'", place + 1
        stop = place + 1
        while True:
            stop = text.find("'", stop)
            if stop < 0:
                return text[place + 1 :].replace("''", "'"), len(text)
            if text[stop + 1 : stop + 2] != "'":
                return text[place + 1 : stop].replace("''", "'"), stop + 1
            stop += 2

    def _argument(self, place: int, *, depth: int, in_plural: bool) -> tuple[Argument | Choice, int]:
        found = _NAME.match(self._text, place)
        if found is None:
            raise IcuSyntaxError
        name, place = found[1], found.end()
        if self._text[place : place + 1] == "}":
            return Argument(name=name), place + 1
        found = _NAME.match(self._text, self._comma(place))
        if found is None or found[1] not in CHOICES | _TYPES:
            raise IcuSyntaxError
        kind, place = found[1], found.end()
        if kind not in CHOICES:
            stop = self._text.find("}", place, place + 500)
            if stop < 0 or self._text[place] not in ",}":
                raise IcuSyntaxError
            return Argument(name=name, type=kind), stop + 1
        branches, place = self._branches(
            self._comma(place), depth=depth, plural=kind != "select", in_plural=in_plural or kind != "select"
        )
        return Choice(name=name, type=kind, branches=branches), place

    def _branches(self, place: int, *, depth: int, plural: bool, in_plural: bool) -> tuple[Mapping[str, Message], int]:
        branches: dict[str, Message] = {}
        if plural and (offset := _OFFSET.match(self._text, place)) is not None:
            place = offset.end()
        while (found := _SELECTOR.match(self._text, place)) is not None:
            message, place = self.message(found.end(), depth=depth + 1, in_plural=in_plural)
            if self._text[place : place + 1] != "}" or found[1] in branches:
                raise IcuSyntaxError
            branches[found[1]] = message
            place += 1
        space = _SPACE.match(self._text, place)
        place = space.end() if space else place
        if not branches or self._text[place : place + 1] != "}":
            raise IcuSyntaxError
        return branches, place + 1

    def _comma(self, place: int) -> int:
        if self._text[place : place + 1] != ",":
            raise IcuSyntaxError
        return place + 1
