"""Events and results read back from the canonical text that rows hold. Whether it is the text that was accepted, the caller asks.

The same text always says the same, so short texts read a moment ago are not parsed again: an event is read once for
each batch that meets it, a result at its claim and when its delivery is prepared (0.1 ms and more a locale).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from worker.domain.canonical import parse_strict
from worker.domain.change import ChangeEvent, parse_change
from worker.domain.result import Result, parse_result

MAX_STORED_BYTES: Final = 64 * 1024 * 1024  # twice what intake lets in: escapes may be written longer than they came
LONGEST_REMEMBERED: Final = 8192  # characters; longer texts are read each time, so that what is kept stays small
MOST_RESULTS: Final = 512
MOST_EVENTS: Final = 64


def read_change(text: str) -> ChangeEvent:
    """Return the change event in a stored text; raise `Invalid` where it is none."""
    return _read_change_once(text) if len(text) <= LONGEST_REMEMBERED else _read_change(text)


def read_result(text: str) -> Result:
    """Return the result in a stored text; raise `Invalid` where it is none."""
    return _read_result_once(text) if len(text) <= LONGEST_REMEMBERED else _read_result(text)


def _read_change(text: str) -> ChangeEvent:
    return parse_change(parse_strict(text, max_bytes=MAX_STORED_BYTES))


def _read_result(text: str) -> Result:
    return parse_result(parse_strict(text, max_bytes=MAX_STORED_BYTES))


_read_change_once = lru_cache(maxsize=MOST_EVENTS)(_read_change)
_read_result_once = lru_cache(maxsize=MOST_RESULTS)(_read_result)
