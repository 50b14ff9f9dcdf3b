"""What this process counted and timed since it last told the database. Not a step; `keep_measures` is.

The one exception to "no state in the process": these are numbers for graphs, and a process that is killed takes those
of its last seconds along. What really became of an attempt stands in the rows that it moved.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from worker.domain.attempt import LEASE_EXPIRED
from worker.domain.measure import (
    ATTEMPTS,
    CMS_CALLS,
    CMS_SECONDS,
    DELIVERY,
    EVIDENCE,
    EXPIRED,
    LOST,
    PROVIDER_CALLS,
    PROVIDER_SECONDS,
    SUM,
    Series,
    bucket_of,
    fold,
)
from worker.domain.turn import Settlement


class Meters:
    """Adds up in memory; safe to share between threads. Its size is bounded like the table's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Series, float] = {}

    def attempts(self, work: str, outcome: str, code: str | None = None, *, times: int = 1) -> None:
        """Count attempts at `evidence` or a `delivery` that ended so, with the code that says why."""
        if times:
            self._add({Series(measure=ATTEMPTS, subject=work, outcome=outcome, part=code or ""): times})

    def visit(self, end: Settlement | None) -> None:
        """Count how a visit to a delivery, a send or a look-up, ended its lease; None: it was somebody else's by then."""
        if end is None:
            self.attempts(DELIVERY, LOST)
        else:
            self.attempts(DELIVERY, "released" if end.is_attempt_returned else end.status, end.code)

    def expired(self, *, evidence: int, deliveries: int) -> None:
        """Count leases that a sweep took away because they had run out."""
        self.attempts(EVIDENCE, EXPIRED, LEASE_EXPIRED, times=evidence)
        self.attempts(DELIVERY, EXPIRED, LEASE_EXPIRED, times=deliveries)

    def provider_call(self, route: str, outcome: str, seconds: float) -> None:
        """Count one call to a review route, and how long it took."""
        self._call(PROVIDER_CALLS, PROVIDER_SECONDS, route, outcome, seconds)

    def cms_call(self, operation: str, outcome: str, seconds: float) -> None:
        """Count one call to a CMS (`publish` or `lookup`), and how long it took."""
        self._call(CMS_CALLS, CMS_SECONDS, operation, outcome, seconds)

    def take(self) -> dict[Series, float]:
        """Return everything counted since the last time, and begin again from nothing."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken

    def give_back(self, counts: Mapping[Series, float]) -> None:
        """Take back what could not be kept; it is part of what is taken next."""
        self._add(counts)

    def _call(self, calls: str, durations: str, subject: str, outcome: str, seconds: float) -> None:
        self._add(
            {
                Series(measure=calls, subject=subject, outcome=outcome): 1,
                Series(measure=durations, subject=subject, part=bucket_of(seconds)): 1,
                Series(measure=durations, subject=subject, part=SUM): seconds,
            }
        )

    def _add(self, counts: Mapping[Series, float]) -> None:
        with self._lock:
            for series, value in counts.items():
                # Rare is a new name: only that may need to be folded.
                name = series if series in self._counts else next(iter(fold({series: value}, self._counts)))
                self._counts[name] = self._counts.get(name, 0.0) + value
