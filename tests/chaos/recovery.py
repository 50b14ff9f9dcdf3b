"""How long the fleet took to recover from each fault, read from the times that the database kept.

*Progress* of an event is anything settled for it: it was accepted, a locale approved or given up, its delivery
prepared, answered or closed, the event ended. For a fault that ended at T:

- *first*: from T to the first progress of any event after T;
- *half*: from T to the moment at which half of the events that were open at T (accepted, and not ended) have made
  progress again;
- *all*: the same for every one of them.

Back-off, an open breaker and the wait for a countable `absent` (34 s here) are part of it, and so are other faults that
fall into the same time. The database's clock and the harness's are those of one machine.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text

from worker.cli.local_stage import Stage
from worker.store.engine import reading

# Each: event and the time of something settled for it. Evidence is followed by its request.
PROGRESS: Final = """
SELECT event_id, created_at AS at FROM events
UNION ALL SELECT event_id, updated_at FROM events WHERE state <> 'open'
UNION ALL SELECT e.event_id, a.approved_at FROM approvals a JOIN evidence e ON e.request_id = a.request_id
UNION ALL SELECT event_id, updated_at FROM evidence WHERE status IN ('succeeded', 'failed')
UNION ALL SELECT event_id, created_at FROM deliveries
UNION ALL SELECT event_id, updated_at FROM deliveries WHERE status IN ('succeeded', 'failed')
UNION ALL SELECT d.event_id, a.answered_at FROM delivery_answers a JOIN deliveries d ON d.delivery_id = a.delivery_id
"""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What followed one fault, in seconds; None where nothing was left to do."""

    first: float | None
    half: float | None
    all: float | None


def progress_of(stage: Stage) -> dict[str, list[float]]:
    """Return the times of progress of each event, in order. The first is its acceptance, the last its end."""
    found: dict[str, list[float]] = {}
    with reading(stage.engine) as conn:
        for row in conn.execute(text(PROGRESS)):
            found.setdefault(row.event_id, []).append(float(row.at))
    return {event_id: sorted(times) for event_id, times in found.items()}


def recovery_after(ended_at: float, progress: Mapping[str, list[float]]) -> Recovery:
    """Return how long it took from the end of a fault, a time in seconds."""
    first: list[float] = []
    waits: list[float] = []  # of those that were open
    for times in progress.values():
        at = bisect.bisect_right(times, ended_at)
        if at == len(times):  # it had ended already
            continue
        first.append(times[at] - ended_at)
        if at > 0:
            waits.append(times[at] - ended_at)
    waits.sort()
    return Recovery(
        first=min(first, default=None),
        half=waits[(len(waits) - 1) // 2] if waits else None,
        all=waits[-1] if waits else None,
    )


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of those that are there."""
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 2) if known else None
