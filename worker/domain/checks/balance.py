"""Checks that brackets and quotation marks come in pairs, in whatever style a locale has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from worker.domain.checks.pair import Pair

_BRACKETS: Final = str.maketrans("（）［］｛｝【】〔〕", "()[]{}[]()")
_NOT_BRACKETS: Final = re.compile(r"[^()\[\]{}]++")
_MARKERS: Final = re.compile(r"(?<![\w(])\w{1,3}\)|[:;=]'?-?[()\[\]]")  # `a)`, `1)`, `:-)`
_PAIRS: Final = {"(": ")", "[": "]", "{": "}"}

# What may end a quotation, by its beginning. Swedish and Finnish use one mark for both, Danish and German both ways.
_QUOTES: Final = {
    '"': '"',
    "“": "”",
    "„": "“”",
    "‟": "”",
    "”": "”",
    "«": "»",
    "»": "«»",
    "「": "」",
    "『": "』",
    "《": "》",
    "〈": "〉",
    "〝": "〞〟",
    "＂": "＂",
}
_FROM_THE_RIGHT: Final = frozenset({"ar", "arc", "ckb", "dv", "fa", "he", "ks", "ps", "sd", "syr", "ug", "ur", "yi"})
_QUOTE_MARKS: Final = re.compile(r"[\"“”„‟«»「」『』《》〈〉〝〞〟＂]")
# Inches (5"), and the mark inside Hebrew abbreviations.
_NO_QUOTE: Final = re.compile(r'(?<=\d)"(?!\w)|(?<=[\u05d0-\u05ea])["”](?=[\u05d0-\u05ea])')


def check_brackets(pair: Pair) -> Iterator[str]:
    """Yield `bracket.unbalanced` where only the translation's brackets do not close."""
    if not brackets_close(pair.after.prose) and brackets_close(pair.before.prose):
        yield "bracket.unbalanced"


def check_quotes(pair: Pair) -> Iterator[str]:
    """Yield `quote.unbalanced` where only the translation's quotation marks do not pair up."""
    if not quotes_close(pair.after.prose, pair.target_locale) and quotes_close(pair.before.prose):
        yield "quote.unbalanced"


def brackets_close(prose: str) -> bool:
    """Tell whether every bracket has its partner; list markers and smileys may stand alone."""
    return _close(prose) or _close(_MARKERS.sub("", prose))


def quotes_close(prose: str, locale: str = "") -> bool:
    """Tell whether every quotation mark has a partner of its style. Written from the right, `”x“` looks as it should."""
    pairs = {**_QUOTES, "”": "”“", "“": "”“"} if locale.split("-", maxsplit=1)[0] in _FROM_THE_RIGHT else _QUOTES
    opened: list[str] = []
    for mark in _QUOTE_MARKS.findall(_NO_QUOTE.sub("", prose)):
        if opened and mark in pairs[opened[-1]]:
            opened.pop()
        elif mark in pairs:
            opened.append(mark)
        else:
            return False
    return not opened


def _close(prose: str) -> bool:
    opened: list[str] = []
    for mark in _NOT_BRACKETS.sub("", prose.translate(_BRACKETS)):
        if mark in _PAIRS:
            opened.append(_PAIRS[mark])
        elif not opened or opened.pop() != mark:
            return False
    return not opened
