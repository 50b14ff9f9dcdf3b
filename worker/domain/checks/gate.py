"""Runs every check on a text and its translation. Deterministic, linear in their length, and it never raises on a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from worker.domain.checks.balance import check_brackets, check_quotes
from worker.domain.checks.characters import check_characters
from worker.domain.checks.finding import Finding, finding, rank
from worker.domain.checks.icu import readings
from worker.domain.checks.json_leaves import check_json
from worker.domain.checks.markup import (
    check_addresses,
    check_attributes,
    check_code,
    check_glue,
    check_tags,
    check_targets,
)
from worker.domain.checks.messages import compare_messages, only_number
from worker.domain.checks.numbers import check_numbers
from worker.domain.checks.pair import Check, Pair
from worker.domain.checks.plurals import plural_rules
from worker.domain.checks.presence import check_empty, check_incomplete, check_length, check_spaces, check_untranslated
from worker.domain.checks.script import check_script
from worker.domain.checks.wording import check_apostrophes, check_placeholders

CHECKS: Final[tuple[Check, ...]] = (
    check_empty,
    check_incomplete,
    check_untranslated,
    check_length,
    check_spaces,
    check_characters,
    check_script,
    check_placeholders,
    check_apostrophes,
    check_tags,
    check_attributes,
    check_glue,
    check_targets,
    check_addresses,
    check_code,
    check_numbers,
    check_brackets,
    check_quotes,
)
MOST_PER_CODE: Final = 200  # findings of one code; a text that has more is no better known by all of them
_READ_AGAIN: Final = 200_000  # characters that the readings of one ICU message may have together


def run_checks(
    *,
    source_text: str,
    target_text: str,
    source_locale: str,
    target_locale: str,
    media_type: str = "text/plain",
    content_type: str = "ui",
) -> tuple[Finding, ...]:
    """Return what was found, place by place, each code once a place and at most 200 times in all."""
    pair = Pair(
        source=source_text,
        target=target_text,
        source_locale=source_locale,
        target_locale=target_locale,
        media_type=media_type,
        content_type=content_type,
    )
    found = check_json(pair, check_text) if media_type == "application/json" else check_text(pair, "$")
    counts: dict[str, int] = {}
    kept: list[Finding] = []
    for one in found:
        counts[one.code] = counts.get(one.code, 0) + 1
        if counts[one.code] <= MOST_PER_CODE:
            kept.append(one)
    return tuple(dict.fromkeys(kept))


def check_text(pair: Pair, path: str) -> Iterator[Finding]:
    """Yield what is wrong with one text, in the order of the catalogue."""
    codes = set(_codes(pair))
    # An empty text lacks everything else as well.
    if "text.empty" in codes:
        codes &= {"text.empty", "character.invisible", "character.control", "character.bidi"}
    for code in sorted(codes, key=rank):
        yield finding(code, path)


def _codes(pair: Pair) -> Iterator[str]:
    if pair.source_message is None:
        for check in CHECKS:
            yield from check(pair)
        return
    if pair.target_message is None:
        yield "icu.syntax"
        yield from check_empty(pair)
        yield from check_characters(pair)
        return
    yield from compare_messages(pair.source_message, pair.target_message, pair.target_locale)
    limit = max(0, min(24, _READ_AGAIN // (len(pair.source) + len(pair.target))))
    general, *special = readings(pair.source_message, limit=limit)
    selected = {(one.name, one.selector): one.text for one in special if one.type == "select"}
    rules = plural_rules(pair.target_locale)
    for one in readings(pair.target_message, limit=limit):
        # Each form of a plural is compared with the general one: languages share numbers out differently.
        read = replace(
            pair,
            source=selected.get((one.name, one.selector), general.text),
            target=one.text,
            only_number=only_number(one.selector, rules) if one.type == "plural" else None,
            number_name=one.name,
            is_reading=True,
        )
        for check in CHECKS:
            yield from check(read)
