"""Finds what Markdown must keep through a translation: code, link targets, headings. One pass each."""

from __future__ import annotations

import re
from typing import Final

from worker.domain.checks.tags import MASK

_FENCE: Final = re.compile(r" {0,3}(`{3,}+|~{3,}+)[ \t]*+([^`\n]*+)")
_RUN: Final = re.compile(r"`++")
_TARGET: Final = re.compile(
    r"\]\([ \t]*+(?:<(?P<angle>[^<>\n]{0,2000}+)>|(?P<bare>[^\s()<>]{0,2000}+(?:\([^\s()]{0,2000}+\)[^\s()]{0,2000}+)*+))"
)
_DEFINITION: Final = re.compile(r"^ {0,3}\[([^\[\]\n]{1,200}+)\]:[ \t]*+<?+([^\s<>]{1,2000}+)", re.MULTILINE)
_HEADING: Final = re.compile(r"^ {0,3}(#{1,6})(?=[ \t])", re.MULTILINE)


def take_code(text: str) -> tuple[list[str], str]:
    """Return the fenced blocks and code spans, and the text with a mask in place of each."""
    blocks, text = _take_fences(text)
    spans, text = _take_spans(text)
    return blocks + spans, text


def take_targets(text: str) -> tuple[list[str], str]:
    """Return the targets of links, images and definitions, and the text without them."""
    targets: list[str] = []

    def take(match: re.Match[str]) -> str:
        targets.append(match["angle"] or match["bare"] or "")
        return f"]({MASK}"

    def define(match: re.Match[str]) -> str:
        targets.append(match[2])
        return f"[{match[1]}] {MASK}"

    return targets, _DEFINITION.sub(define, _TARGET.sub(take, text))


def headings(text: str) -> list[int]:
    """Return the levels of the headings in order."""
    return [len(match[1]) for match in _HEADING.finditer(text)]


def _take_fences(text: str) -> tuple[list[str], str]:
    if "```" not in text and "~~~" not in text:
        return [], text
    blocks: list[str] = []
    kept: list[str] = []
    fence, block = "", [""]
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if not fence and mark is not None:
            fence, block = mark[1], [line.strip() + "\n"]
        elif fence:
            ends = mark is not None and mark[1].startswith(fence) and not mark[2].strip()
            block.append(line.strip() if ends else line)
            if ends:
                blocks.append("".join(block))
                kept.append(MASK + "\n")
                fence = ""
        else:
            kept.append(line)
    if fence:  # a block that is never closed runs to the end
        blocks.append("".join(block))
        kept.append(MASK)
    return blocks, "".join(kept)


def _take_spans(text: str) -> tuple[list[str], str]:
    """Pair each run of backticks with the next run of the same length, as CommonMark does."""
    runs = [match.span() for match in _RUN.finditer(text)]
    following: dict[int, int] = {}
    partner = [-1] * len(runs)
    for index in range(len(runs) - 1, -1, -1):
        size = runs[index][1] - runs[index][0]
        partner[index] = following.get(size, -1)
        following[size] = index
    spans: list[str] = []
    kept: list[str] = []
    place = index = 0
    while index < len(runs):
        other = partner[index]
        if other < 0:
            index += 1
            continue
        kept.extend((text[place : runs[index][0]], MASK))
        spans.append(text[runs[index][1] : runs[other][0]].strip())
        place = runs[other][1]
        index = other + 1
    kept.append(text[place:])
    return spans, "".join(kept)
