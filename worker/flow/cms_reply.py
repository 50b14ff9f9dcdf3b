"""What came of one request to a CMS, or that it was not begun, or that the process ended before it was answered."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Literal

from worker.domain.breaker import is_outage
from worker.domain.delivery import CmsAnswer
from worker.domain.errors import Blocked
from worker.domain.turn import CUT_OFF
from worker.store.delivery_answers import Word


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a CMS answered, the same as it is kept where it is a verified word, and whether a call was begun at all."""

    answer: CmsAnswer
    word: Word | None
    was_called: bool = True

    @property
    def shown(self) -> Literal["answered", "fault", "unused"]:
        """Tell what it says about the CMS: down (or asking for a wait), up, or nothing, for a fault of our own."""
        answer = self.answer
        if answer.outcome != "unavailable":
            return "answered"
        if not self.was_called or not answer.code.startswith("cms."):
            return "unused"
        is_down = answer.retry_after_seconds is not None or is_outage(answer.code, retryable=True)
        return "fault" if is_down else "answered"


def not_called(code: str) -> Reply:
    """Return the reply of a call that was not begun, and why."""
    return Reply(answer=CmsAnswer(outcome="unavailable", code=code, sent=False), word=None, was_called=False)


def answer_of(call: Future[CmsAnswer]) -> CmsAnswer:
    """Wait for the answer to a call that was begun; raise `cms.cut_off` where its process ends first."""
    try:
        return call.result()
    except CancelledError:
        raise Blocked(CUT_OFF, "the worker ended first; the lease stays until it runs out", retryable=True) from None
