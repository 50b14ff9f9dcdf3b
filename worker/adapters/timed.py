"""A review route and a CMS with a watch beside them: every call is counted with its outcome, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from worker.domain.delivery import CmsAnswer, Lookup
from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceRequest, NotYet
from worker.domain.signature import SignedDocument

T = TypeVar("T")
Count = Callable[[str, str, float], None]  # the route or the operation, the outcome, the seconds

CUT_OFF: Final = "cut_off"  # by a deadline, or the end of the process
FAULT: Final = "fault"  # retryable
REFUSED: Final = "refused"


class _Provider(Protocol):
    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object | NotYet: ...


class _Cms(Protocol):
    has_lookup: bool
    is_idempotent: bool

    async def publish(self, delivery: SignedDocument, *, delivery_id: str, deadline_seconds: float) -> CmsAnswer: ...

    async def look_up(self, lookup: Lookup, *, deadline_seconds: float) -> CmsAnswer: ...


class TimedProvider:
    """Passes everything through. Outcomes: `answered` (not judged yet), `not_yet`, `refused`, `fault`, `cut_off`."""

    def __init__(self, provider: _Provider, route: str, count: Count) -> None:
        self._provider = provider
        self._route = route
        self._count = count

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object | NotYet:
        """Ask the route behind."""
        call = self._provider.review(request, deadline_seconds=deadline_seconds)
        return await _timed(self._route, call, self._count, _of_review)


class TimedCms:
    """Passes everything through. Outcomes are those of `CmsAnswer`, and `cut_off`."""

    def __init__(self, cms: _Cms, count: Count) -> None:
        self._cms = cms
        self._count = count
        self.has_lookup = cms.has_lookup
        self.is_idempotent = cms.is_idempotent

    async def publish(self, delivery: SignedDocument, *, delivery_id: str, deadline_seconds: float) -> CmsAnswer:
        """Send to the CMS behind."""
        call = self._cms.publish(delivery, delivery_id=delivery_id, deadline_seconds=deadline_seconds)
        return await _timed("publish", call, self._count, lambda answer: answer.outcome)

    async def look_up(self, lookup: Lookup, *, deadline_seconds: float) -> CmsAnswer:
        """Ask the CMS behind."""
        call = self._cms.look_up(lookup, deadline_seconds=deadline_seconds)
        return await _timed("lookup", call, self._count, lambda answer: answer.outcome)


async def _timed(name: str, call: Awaitable[T], count: Count, outcome_of: Callable[[T], str]) -> T:
    """Return what a call returns, or raise what it raises, once it was counted."""
    began, outcome = time.monotonic(), CUT_OFF
    try:
        answer = await call
        outcome = outcome_of(answer)
        return answer
    except Blocked as failure:
        outcome = FAULT if failure.retryable else REFUSED
        raise
    finally:
        count(name, outcome, time.monotonic() - began)


def _of_review(answer: object) -> str:
    return "not_yet" if isinstance(answer, NotYet) else "answered"
