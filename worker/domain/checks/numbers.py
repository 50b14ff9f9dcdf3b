"""Checks that figures survive: digits of any script, with the separators of any locale, in any order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from worker.domain.checks.pair import Pair

_GROUPED: Final = re.compile(
    r"(?<![\d.,])\d{1,3}(?:[.,٬'’\u00a0\u2009\u202f ]\d{2,3}){0,6}[.,٬'’\u00a0\u2009\u202f ]\d{3}(?!\d)"
)
_SEPARATORS: Final = re.compile(r"\D")
_DIGITS: Final = re.compile(r"\d++")
_AFTERNOON: Final = re.compile(r"\d\s?[ap]\.?m\b", re.IGNORECASE)
_SMALL: Final = 12  # numbers up to here are often written as words
_LONGEST: Final = 40  # digits; longer runs are compared as they are


def check_numbers(pair: Pair) -> Iterator[str]:
    """Yield figures that changed, that are gone, and that nobody wrote.

    Small numbers may become words and back; hours may change between twelve and twenty-four.
    """
    wanted, given = _numbers(pair.before.prose), _numbers(pair.after.prose)
    missing, unknown = wanted - given, given - wanted
    if not missing and not unknown:
        return
    if missing and unknown and _AFTERNOON.search(pair.before.prose):
        missing, unknown = _without_hours(missing, unknown)
    large_missing = {number for number in missing if not _is_small(number)}
    large_unknown = {number for number in unknown if not _is_small(number)}
    if (missing and large_unknown) or (large_missing and unknown):
        yield "number.changed"
    elif large_missing:
        yield "number.missing"
    elif large_unknown:
        yield "number.unknown"
    elif missing and unknown:
        yield "number.changed"


def _numbers(prose: str) -> Counter[str]:
    joined = _GROUPED.sub(lambda match: _SEPARATORS.sub("", match[0]), prose)
    return Counter(_plain(match[0]) for match in _DIGITS.finditer(joined))


def _plain(digits: str) -> str:
    return str(int(digits)) if len(digits) <= _LONGEST else digits


def _is_small(number: str) -> bool:
    return len(number) <= 2 and int(number) <= _SMALL


def _without_hours(missing: Counter[str], unknown: Counter[str]) -> tuple[Counter[str], Counter[str]]:
    """Take out pairs of numbers that are the same hour on both clocks."""
    missing, unknown = missing.copy(), unknown.copy()
    for hour in range(13):
        twelve, other = str(hour), str((hour + 12) % 24)
        same = min(missing[twelve], unknown[other])
        missing[twelve] -= same
        unknown[other] -= same
    return +missing, +unknown
