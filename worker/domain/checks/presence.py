"""Checks of the text as a whole: that it is there, that it was translated, that it is neither cut nor padded."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from worker.domain.checks.anatomy import Anatomy, is_visible
from worker.domain.checks.pair import Pair

_WORD: Final = re.compile(r"[^\W\d_]{2,}+")
_SENTENCE_WORDS: Final = 3
_LONG_WORDS: Final = 5  # from here on equal texts are no names any more
_LONG_LETTERS: Final = 20
_LINE_WORDS: Final = 8
UNSPACED: Final = frozenset({"ja", "zh", "yue", "th", "lo", "km", "my", "bo", "dz"})
_TIGHT: Final = frozenset({"headline", "cta", "seo", "ui"})


def check_empty(pair: Pair) -> Iterator[str]:
    """Yield `text.empty` where a reader sees nothing, and `text.unexpected` where the source shows nothing."""
    shown_before, shown_after = _shows(pair.before), _shows(pair.after)
    if shown_before and not shown_after:
        yield "text.empty"
    if shown_after and not shown_before and not pair.is_reading:
        yield "text.unexpected"


def check_incomplete(pair: Pair) -> Iterator[str]:
    """Yield `text.incomplete` where a sentence became nothing but placeholders."""
    if _WORD.search(pair.after.prose) is None and len(_WORD.findall(pair.before.prose)) >= _SENTENCE_WORDS:
        yield "text.incomplete"


def check_untranslated(pair: Pair) -> Iterator[str]:
    """Yield where the text, or whole lines of it, stayed in the source language. Names and short texts may."""
    if pair.source_locale.split("-")[0] == pair.target_locale.split("-")[0]:
        return
    before, after = _squeezed(pair.before.prose), _squeezed(pair.after.prose)
    if before == after and _is_long(before, _LONG_WORDS):
        yield "text.untranslated"
        return
    lines = set(_lines(pair.before.prose))
    if any(line in lines and _is_long(line, _LINE_WORDS) for line in _lines(pair.after.prose)):
        yield "text.partly_untranslated"


def check_length(pair: Pair) -> Iterator[str]:
    """Yield texts far longer or shorter than any language needs. Wide characters count twice."""
    before, after = width(pair.before.prose), width(pair.after.prose)
    allowed = before * 1.6 + 24 if pair.content_type in _TIGHT else before * 2 + 40
    if after > allowed:
        yield "length.growth"
    if before >= 40 and after < before * 0.3 and pair.only_number is None:
        yield "length.shrink"


def check_spaces(pair: Pair) -> Iterator[str]:
    """Yield white space at the ends that was dropped or added: such texts are parts of a sentence, or lines of a file."""
    if pair.media_type not in {"text/plain", "application/json"} or not pair.target.strip():
        return
    before, after = _ends(pair.source), _ends(pair.target)
    unspaced = pair.target_locale.split("-")[0] in UNSPACED
    for code, wanted, given in zip(("space.leading", "space.trailing"), before, after, strict=True):
        if wanted != given and not (unspaced and not given and wanted == " "):
            yield code


def width(text: str) -> int:
    """Return how many columns a text takes: two for wide characters, none for marks."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    marks = sum(unicodedata.category(one)[0] in "MC" for one in text)
    return len(text) + wide - marks


def _shows(parts: Anatomy) -> bool:
    return bool(parts.placeholders or parts.urls or parts.emails or parts.code) or is_visible(parts.prose)


def _lines(prose: str) -> Iterator[str]:
    return (_squeezed(line) for line in prose.splitlines() if len(line) >= _LONG_LETTERS)


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _is_long(text: str, least_words: int) -> bool:
    words = _WORD.findall(text)
    letters = sum(map(len, words))
    return letters >= _LONG_LETTERS and (len(words) >= least_words or width("".join(words)) > 2 * len(words) * 12)


def _ends(text: str) -> tuple[str, str]:
    """Return the kind of white space at both ends: none, spaces, or line breaks."""
    lead = text[: len(text) - len(text.lstrip())]
    trail = text[len(text.rstrip()) :]
    return _kind(lead), _kind(trail)


def _kind(space: str) -> str:
    if not space:
        return ""
    return "\n" if "\n" in space else " "
