"""Rows without documents: whether every column holds what it must."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.domain.attempt import is_sound
from worker.domain.audit.finding import Finding, Row
from worker.domain.errors import is_error_code
from worker.domain.identifier import is_hash, is_time, is_token


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Which columns of a row must hold tokens, hashes, times, times or nothing, and error codes."""

    tokens: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    optional_times: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()  # integers from 0

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Tell whether a row has this shape."""
        return (
            all(is_token(row[name]) for name in self.tokens)
            and all(is_hash(row[name]) for name in self.hashes)
            and all(is_time(row[name]) for name in self.times)
            and all(row[name] is None or is_time(row[name]) for name in self.optional_times)
            and all(is_error_code(row[name]) for name in self.codes)
            and all(is_count(row[name]) for name in self.counts)
        )


def is_count(value: object) -> bool:
    """Tell whether a value is a true integer from 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def shape_findings(about: Row, row: Mapping[str, Any], shape: Shape) -> Iterator[Finding]:
    """Yield that a row does not have its shape."""
    if not shape.fits(row):
        yield about.breaks("row_invalid", "a column holds what it must not")


def lease_findings(about: Row, row: Mapping[str, Any], shape: Shape) -> Iterator[Finding]:
    """Yield that a row of the bounded-attempt machine is one that the machine cannot have written."""
    attempts, most = row["attempts"], row["max_attempts"]
    if is_count(attempts) and is_count(most) and attempts > most:
        yield about.breaks("attempts_exceeded", "more attempts are counted than the row allows")
    elif not is_sound(row, tokens=shape.tokens, hashes=shape.hashes) or not shape.fits(row):
        yield about.breaks("row_invalid", "the row is none that its state machine can have written")


def setback_findings(about: Row, row: Mapping[str, Any], ended: int, latest: int) -> Iterator[Finding]:
    """Yield that the attempts a row counts are not those that ended.

    `ended` is how many different attempts of the row ended without success, `latest` the highest of their numbers.
    Every attempt ends in a setback, but for the one that succeeded or is under way.
    """
    attempts = row["attempts"]
    allowed = {attempts} if row["status"] in {"pending", "retry_wait", "failed"} else {attempts, attempts - 1}
    if ended not in allowed or latest > attempts:
        yield about.breaks("setbacks_mismatch", "the attempts counted are not those whose ends were recorded")
