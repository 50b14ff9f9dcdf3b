"""What was removed on purpose and what must not be: prunings, what they took of which event, and legal holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.domain.audit.finding import Finding, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.audit.plain import Shape, is_count, shape_findings
from worker.domain.canonical import parse_strict
from worker.domain.retention import KINDS, STATES

LONGEST_COUNTS_BYTES = 64 * 1024
PRUNING_SHAPE = Shape(
    tokens=("pruning_id", "owner"), times=("before_at", "started_at", "updated_at"), optional_times=("ended_at",)
)
PRUNED_SHAPE = Shape(tokens=("pruning_id", "event_id"), times=("pruned_at",))
HOLD_SHAPE = Shape(tokens=("hold_id", "name", "owner"), times=("placed_at",), optional_times=("released_at",))


@dataclass(frozen=True, kw_only=True)
class Hold:
    """When a hold was in force, in seconds; without an end, it is still."""

    placed_at: float
    released_at: float | None


@dataclass(frozen=True, kw_only=True)
class BesidePruned:
    """What the database holds about some records of removal."""

    prunings: frozenset[str]
    states: Mapping[str, str]  # of events, by id
    holds: Mapping[str, Sequence[Hold]]  # on the event or its site, by event id


@dataclass(frozen=True, kw_only=True)
class BesideRetention:
    """Nothing: the row stands for itself."""


def pruning_findings(row: Mapping[str, Any], _beside: BesideRetention, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a pruning."""
    about = row_of("pruning", row["pruning_id"])
    yield from shape_findings(about, row, PRUNING_SHAPE)
    said = (set(str(row["kinds"]).split(",")) <= KINDS.keys(), set(str(row["states"]).split(",")) <= set(STATES))
    if said != (True, True) or not _are_counts(row["removed"]):
        yield about.breaks("row_invalid", "the pruning says what no pruning removes")


def pruned_findings(row: Mapping[str, Any], beside: BesidePruned, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with the record of what was removed of an event: above all, that a hold kept it."""
    about = row_of("pruned", row["pruning_id"], row["event_id"])
    yield from shape_findings(about, row, PRUNED_SHAPE)
    if not _are_counts(row["removed"]):
        yield about.breaks("row_invalid", "the record counts what no pruning removes")
    if row["pruning_id"] not in beside.prunings:
        yield about.breaks("pruning_missing", "the pruning that removed something of the event is gone")
    state = beside.states.get(row["event_id"])
    if state is None:
        yield about.breaks("event_missing", "the event of which something was removed is gone")
    elif state not in STATES:
        yield about.breaks("event_open", "something was removed of an event that has not ended")
    for hold in beside.holds.get(row["event_id"], ()):
        if hold.placed_at < row["pruned_at"] < (hold.released_at or float("inf")):
            yield about.breaks("held", "something was removed of the event while a legal hold kept it")
            return


def hold_findings(row: Mapping[str, Any], _beside: BesideRetention, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a legal hold."""
    about = row_of("legal_hold", row["hold_id"])
    yield from shape_findings(about, row, HOLD_SHAPE)
    is_released = row["released_at"] is not None
    if row["scope"] not in {"site", "event"} or is_released != (row["released_by"] is not None):
        yield about.breaks("row_invalid", "the hold is none that an operator placed or released")


def _are_counts(text: object) -> bool:
    counts = parse_strict(text, max_bytes=LONGEST_COUNTS_BYTES)  # type: ignore[arg-type]
    return isinstance(counts, dict) and counts.keys() <= KINDS.keys() and all(map(is_count, counts.values()))
