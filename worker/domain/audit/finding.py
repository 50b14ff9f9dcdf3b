"""What an audit found, as values: violations and notes with stable codes, counted, and kept up to a bound.

A finding names the row by its id and says one sentence. It never holds content: no text, receipt, signature or hash of
the damaged row, nor a message of a library that might quote one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from worker.domain.errors import Blocked
from worker.domain.identifier import is_token

MOST_KEPT: Final = 1_000  # findings kept one by one; beyond that they are only counted
LONGEST_ROW_ID: Final = 600


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing about one row. A violation breaks a promise; a note (`is_violation` False) is for the auditor to weigh."""

    code: str  # audit.<area>.<what>
    row_id: str
    sentence: str
    is_violation: bool = True

    def to_json(self) -> dict[str, str]:
        """Return it as JSON."""
        return {"code": self.code, "row_id": self.row_id, "sentence": self.sentence}


@dataclass(frozen=True)
class Row:
    """Says what is wrong with one row of an area."""

    area: str
    row_id: str

    def breaks(self, what: str, sentence: str) -> Finding:
        """Return a violation."""
        return Finding(code=f"audit.{self.area}.{what}", row_id=self.row_id, sentence=sentence)

    def notes(self, what: str, sentence: str) -> Finding:
        """Return a note."""
        return Finding(code=f"audit.{self.area}.{what}", row_id=self.row_id, sentence=sentence, is_violation=False)


def row_of(area: str, *key: object) -> Row:
    """Return what speaks for a row: its key columns, joined by a slash; a damaged part is shown as `?`."""
    parts = [str(part) if isinstance(part, int) or is_token(part) else "?" for part in key]
    return Row(area, "/".join(parts)[:LONGEST_ROW_ID])


def judged(row: Row, rule: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what a rule finds in a row; a row that it cannot even read is `audit.<area>.unreadable`, and stops nothing.

    Damage can put anything into a column, so that a rule may stumble over a type or a value before it can name it.
    """
    try:
        yield from rule()
    except (Blocked, ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError):
        yield row.breaks("unreadable", "the row holds values that cannot be read as what they should be")


@dataclass(kw_only=True)
class Tally:
    """Counts what was read and what was found. Holds at most `MOST_KEPT` findings of each kind."""

    checked: dict[str, int] = field(default_factory=dict)
    by_code: dict[str, int] = field(default_factory=dict)
    violations: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    violation_count: int = 0
    note_count: int = 0

    def count(self, area: str, rows: int) -> None:
        """Count rows that were read."""
        self.checked[area] = self.checked.get(area, 0) + rows

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings in."""
        for one in findings:
            self.by_code[one.code] = self.by_code.get(one.code, 0) + 1
            kept = self.violations if one.is_violation else self.notes
            if len(kept) < MOST_KEPT:
                kept.append(one)
            if one.is_violation:
                self.violation_count += 1
            else:
                self.note_count += 1

    def to_json(self, *, elapsed_seconds: float, site: str | None, event: str | None) -> dict[str, Any]:
        """Return the report as one JSON object."""
        return {
            "schema": "locseal.audit.v1",
            "clean": self.violation_count == 0,
            "site": site,
            "event": event,
            "checked": dict(self.checked),
            "violation_count": self.violation_count,
            "note_count": self.note_count,
            "by_code": dict(sorted(self.by_code.items())),
            "violations": [one.to_json() for one in self.violations],
            "notes": [one.to_json() for one in self.notes],
            "elapsed_seconds": round(elapsed_seconds, 3),
        }
