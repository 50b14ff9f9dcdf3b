"""Checks of placeholders: nothing missing, nothing invented, nothing torn, nothing swallowed by an apostrophe."""

from __future__ import annotations

from collections.abc import Iterator

from worker.domain.checks.pair import Pair
from worker.domain.checks.placeholders import compare_placeholders, take_placeholders, torn_placeholders
from worker.domain.checks.tags import MASK


def check_placeholders(pair: Pair) -> Iterator[str]:
    """Yield what differs between the placeholders of both texts."""
    yield from compare_placeholders(
        pair.before.placeholders, pair.after.placeholders, only_number=pair.only_number, number_name=pair.number_name
    )
    if torn_placeholders(pair.after.prose) > torn_placeholders(pair.before.prose) or _lone_percent(pair):
        yield "placeholder.broken"


def check_apostrophes(pair: Pair) -> Iterator[str]:
    """Yield `icu.apostrophe` where a lone apostrophe turns a numbered placeholder (`{0}`) into literal text.

    `java.text.MessageFormat` reads it so. A source that has lone apostrophes itself is of another syntax.
    """
    numbered = any(one.kind == "brace" and one.key.isdecimal() for one in pair.before.placeholders)
    if not numbered or pair.is_reading or "'" not in pair.target or "'" in pair.source.replace("''", ""):
        return
    quoted = pair.target.replace("''", "").split("'")[1::2]
    if any(one.kind == "brace" for part in quoted for one in take_placeholders(part)[0]):
        yield "icu.apostrophe"


def _lone_percent(pair: Pair) -> bool:
    """Tell whether the translation of a printf text has a `%` that printf would stumble over."""
    printf = {"printf", "named"}
    if not any(one.kind in printf for one in pair.before.placeholders):
        return False
    return _percents(pair.after.prose) > 0 and _percents(pair.before.prose) == 0


def _percents(prose: str) -> int:
    return prose.replace("%%", MASK).count("%")
