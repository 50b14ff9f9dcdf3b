"""The calls that one collector has open, and how their answers come back to its thread. Not a step.

Answers arrive in an inbox, so the collector sleeps until there is one; a wake arrives there too. An answer waits a
moment for company, so that one commit serves several; places are counted for the whole process.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from worker.domain.evidence import EvidenceRequest
from worker.domain.review import CUT_OFF, UNAVAILABLE, Abandoned, Ending, Refused
from worker.flow.collecting.answered import Answered
from worker.flow.collecting.evidence_call import Guard, review_locale
from worker.flow.collecting.slot import WAKE
from worker.flow.services import Services
from worker.store.due_evidence import ClaimedRow

COMPANY_SECONDS = 0.002
LONGEST_COMPANY_SECONDS = 0.01  # an answer is not kept longer than this, however many others come


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call to begin: the row, its guard, what to ask, and the answer where it was handed in already."""

    row: ClaimedRow
    guard: Guard
    request: EvidenceRequest
    pushed: object = None


class OpenCalls:
    """The open calls of one collector. `waiting` is how many answers are still to come."""

    def __init__(self, services: Services, inbox: queue.SimpleQueue[Any]) -> None:
        self._services = services
        self._inbox = inbox
        self.waiting = 0

    @classmethod
    def enter(cls, services: Services) -> Self | None:
        """Become the process's collector; None where another thread is, which then has got a wake."""
        inbox = services.collecting.enter()
        return None if inbox is None else cls(services, inbox)

    def leave(self) -> None:
        """Stop being the process's collector, if this one still is."""
        self._services.collecting.leave(self._inbox)

    def free_places(self) -> int:
        """Return how many more calls may be opened now.

        An answer keeps its place until it was taken in, so that answers cannot pile up unsettled behind new calls;
        calls that a collector before this one left open keep theirs until they end.
        """
        bound = self._services.concurrent_calls
        return min(self._services.collecting.free_places(bound), bound - self.waiting)

    def begin(self, calls: Sequence[Call]) -> None:
        """Start calls, or what is left of one whose answer was handed in; they come out of `gather`."""
        services = self._services
        services.collecting.calls_began(len(calls))
        self.waiting += len(calls)
        services.calls.start_all(
            [(one, review_locale(services, one.request, one.row.provider, one.guard, one.pushed)) for one in calls],
            partial(_ended, services, self._inbox),
        )

    def gather(self, *, has_company: bool, pause_seconds: float) -> list[Answered]:
        """Sleep until an answer or a wake arrives, then take in what comes within a moment.

        `has_company` says that answers are in hand already: then only the moment is waited. `pause_seconds` is the
        longest wait while the database is away, 0 otherwise. Returns at once where there is nothing to wait for.
        """
        if not self.waiting and not pause_seconds:
            return []
        patience = pause_seconds or (COMPANY_SECONDS if has_company else None)
        answered: list[Answered] = []
        until: float | None = None
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._inbox.get(timeout=patience)
                if item is WAKE:
                    if not answered and not has_company:
                        break  # there may be a row for a free place: do not let it wait for an answer
                else:
                    self.waiting -= len(item)
                    answered += item
                until = until or time.monotonic() + LONGEST_COMPANY_SECONDS
                patience = min(COMPANY_SECONDS, until - time.monotonic())
                if not self.waiting or patience <= 0:
                    break
        return answered


def _ended(services: Services, inbox: queue.SimpleQueue[Any], ended: Sequence[tuple[Call, Ending | None]]) -> None:
    """Hand answers to the collector.

    A call that was cut off as its process ends may still be answered over there: its row stays leased until it is safe
    to ask again. One that was cut off otherwise may be tried again.
    """
    services.collecting.calls_ended(len(ended))
    cut_off: Ending = Abandoned(code=CUT_OFF) if services.cut() else Refused(code=UNAVAILABLE, retryable=True)
    inbox.put(
        [
            Answered(
                row=call.row,
                guard=call.guard,
                ending=cut_off if ending is None else ending,
                is_pushed=call.pushed is not None,
                is_called=call.pushed is None and ending is not None,
            )
            for call, ending in ended
        ]
    )
