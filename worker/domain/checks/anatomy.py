"""Takes a text apart, once: code, tags, links, addresses, placeholders, and the prose that is left between them.

Every part is found in one pass, so that a text of two million bytes costs a fixed number of passes.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Final

from worker.domain.checks.markdown import headings, take_code, take_targets
from worker.domain.checks.placeholders import Placeholder, take_placeholders
from worker.domain.checks.tags import MASK, Tag, take_tags

_URL: Final = re.compile(
    r"\b(?:(?:https?|ftps?|wss?)://|www\.(?=[\w-]))[^\s<>\"'`“”„«»‚‘’（）「」、。，；：！？\ufffc]{1,2048}+"
    r"|\b(?:mailto|tel):[^\s<>\"'`“”„«»（）]{1,320}+",
    re.IGNORECASE,
)
_EMAIL: Final = re.compile(
    r"(?<![\w.+-])[A-Za-z0-9_.+-]{1,64}+@(?=[A-Za-z0-9])[A-Za-z0-9-]{1,63}+(?:\.[A-Za-z0-9-]{1,63}+){1,8}+"
)
_PERCENT: Final = re.compile(r"%(?=[0-9A-Fa-f]{2})")
_ENDS: Final = ".,;:!?…*_~|]}"
_INVISIBLE: Final = frozenset("\u2800\u3164\u115f\u1160\uffa0\ufffc")


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """The parts of one text. `prose` has a mask wherever something was taken out."""

    text: str
    code: tuple[str, ...]
    tags: tuple[Tag, ...]
    targets: tuple[str, ...]  # of Markdown links
    headings: tuple[int, ...]
    urls: tuple[str, ...]
    emails: tuple[str, ...]
    placeholders: tuple[Placeholder, ...]
    prose: str


def take_apart(text: str, media_type: str) -> Anatomy:
    """Return the parts of a text of a media type (a JSON leaf is plain text)."""
    code: list[str] = []
    targets: list[str] = []
    levels: list[int] = []
    rest = text
    if media_type == "text/markdown":
        code, rest = take_code(rest)
        levels = headings(rest)
    whole = rest
    tags, hidden, rest = take_tags(rest, every_name=media_type == "text/html") if "<" in rest else ([], [], rest)
    if media_type == "text/markdown":
        targets, rest = take_targets(rest)
    urls, rest = _take(_URL, rest) if ":" in rest or "www" in rest.lower() else ([], rest)
    emails, rest = _take(_EMAIL, rest) if "@" in rest else ([], rest)
    # Placeholders also stand in attributes and addresses, so they are taken from the whole; `%20` there is none.
    placeholders, _ = take_placeholders(_URL.sub(_decoded, whole) if "%" in whole else whole)
    _, prose = take_placeholders(rest)
    if media_type == "text/html":
        prose = html.unescape(prose)
    return Anatomy(
        text=text,
        code=tuple(code + [part for part in hidden if not part.startswith("<!--")]),
        tags=tuple(tags),
        targets=tuple(targets),
        headings=tuple(levels),
        urls=tuple(urls),
        emails=tuple(emails),
        placeholders=tuple(placeholders),
        prose=prose,
    )


def is_visible(text: str) -> bool:
    """Tell whether a reader would see anything of a text."""
    return any(not one.isspace() and one.isprintable() and one not in _INVISIBLE for one in text)


def _take(pattern: re.Pattern[str], text: str) -> tuple[list[str], str]:
    found: list[str] = []

    def take(match: re.Match[str]) -> str:
        whole = _trimmed(match[0])
        found.append(whole)
        return MASK + match[0][len(whole) :]

    return found, pattern.sub(take, text)


def _trimmed(address: str) -> str:
    """Cut off the punctuation of the sentence around an address."""
    address = address.rstrip(_ENDS)
    surplus = address.count(")") - address.count("(")
    while surplus > 0 and address.endswith(")"):
        address = address[:-1].rstrip(_ENDS)
        surplus -= 1
    return address


def _decoded(match: re.Match[str]) -> str:
    return _PERCENT.sub("_", match[0])
