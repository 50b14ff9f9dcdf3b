"""Checks of single characters that no translation should bring in: controls, bidi overrides, hidden and broken ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from worker.domain.checks.pair import Pair

# A bad character is one that the source has not: what the author wrote, the translator may keep.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufdd0-\ufdef\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
_BIDI: Final = re.compile("[\u202a-\u202e\u2066-\u2069]")
_OVERRIDE: Final = frozenset("\u202d\u202e")
_ISOLATES: Final = frozenset("\u2066\u2067\u2068")
_EMBEDDINGS: Final = frozenset("\u202a\u202b")
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u2060-\u2064\u206a-\u206f\ufeff\U000e0000-\U000e0fff]"
)
_REPLACEMENT: Final = re.compile(r"\ufffd|Ã[\u0080-\u00bf]|â€[œ™“”\u009d]|Â[\u00a0-\u00bf]")
_PRIVATE: Final = re.compile("[\ue000-\uf8ff\U000f0000-\U0010fffd]")

# Marks that belong to the spelling or the layout of a script: joiners, directional marks, break opportunities.
_USUAL: Final = frozenset("\u00ad\u2060\u200c\u200d\u200e\u200f\u061c")
_BREAKS: Final = frozenset({"th", "lo", "km", "my", "bo", "dz", "ja", "zh", "ko"})
_FLAGS: Final = re.compile("\U0001f3f4[\U000e0061-\U000e007a\U000e0030-\U000e0039]{2,6}\U000e007f")


def check_characters(pair: Pair) -> Iterator[str]:
    """Yield forbidden characters that the translation has and its source has not."""
    if pair.target.isascii() and pair.target.isprintable():
        return
    if _new(_CONTROL, pair):
        yield "character.control"
    if _new(_BIDI, pair) & _OVERRIDE or (_closes_isolates(pair.source) and not _closes_isolates(pair.target)):
        yield "character.bidi"
    language = pair.target_locale.split("-")[0].lower()
    allowed = _USUAL | {"\u200b"} if language in _BREAKS else _USUAL
    if set(_INVISIBLE.findall(_FLAGS.sub("", pair.target))) - set(pair.source) - allowed:
        yield "character.invisible"
    if _REPLACEMENT.search(pair.target) is not None and _REPLACEMENT.search(pair.source) is None:
        yield "character.replacement"
    if _new(_PRIVATE, pair):
        yield "character.private_use"


def _new(pattern: re.Pattern[str], pair: Pair) -> set[str]:
    return set(pattern.findall(pair.target)) - set(pair.source)


def _closes_isolates(text: str) -> bool:
    """Tell whether each directional isolate and embedding ends before its line does."""
    for line in text.splitlines() if _BIDI.search(text) else ():
        opened: list[str] = []
        for mark in _BIDI.findall(line):
            if mark in _ISOLATES or mark in _EMBEDDINGS or mark in _OVERRIDE:
                opened.append(mark)
            elif not opened or (opened.pop() in _ISOLATES) != (mark == "\u2069"):
                return False
        if opened:
            return False
    return True
