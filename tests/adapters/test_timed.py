"""The watch beside a review route and a CMS: every call is counted once, under what it came to, and passed through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from worker.adapters.timed import TimedCms, TimedProvider
from worker.domain.delivery import CmsAnswer
from worker.domain.errors import ProviderFailure
from worker.domain.evidence import NotYet

Counted = list[tuple[str, str]]


class Provider:
    """Answers what it was given, raises it where it is an exception, and never comes back from `...`."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def review(self, request: Any, *, deadline_seconds: float) -> object:
        """Return or raise the answer."""
        if self.answer is ...:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return (self.answer, request, deadline_seconds) if self.answer == "good" else self.answer


class Cms:
    """Accepts what is published, and knows nothing of what is asked about."""

    has_lookup = False
    is_idempotent = True

    async def publish(self, delivery: Any, *, delivery_id: str, deadline_seconds: float) -> CmsAnswer:
        """Accept."""
        return CmsAnswer(outcome="accepted", code=f"{delivery_id} {deadline_seconds:g}")

    async def look_up(self, lookup: Any, *, deadline_seconds: float) -> CmsAnswer:
        """Say that it is absent."""
        return CmsAnswer(outcome="absent")


def review(answer: object) -> tuple[object, Counted]:
    """Return what a call gives and what was counted of it."""
    counted: Counted = []
    timed = TimedProvider(Provider(answer), "lawyers", lambda *call: counted.append(call[:2]))
    request: Any = "request"
    try:
        given = asyncio.run(asyncio.wait_for(timed.review(request, deadline_seconds=7), 0.2 if answer is ... else 60))
    except (ProviderFailure, TimeoutError) as failure:
        return failure, counted
    return given, counted


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (NotYet(), "not_yet"),
        (ProviderFailure("evidence.timeout", "", retryable=True), "fault"),
        (ProviderFailure("evidence.terminology.mismatch", "", retryable=False), "refused"),
    ],
)
def test_what_a_call_came_to_is_counted_and_passed_on(answer: object, outcome: str) -> None:
    """Faults may be tried again, refusals may not."""
    assert review(answer) == (answer, [("lawyers", outcome)])


def test_an_answer_goes_through_as_it_is() -> None:
    """With the request and the deadline that it was asked by."""
    assert review("good") == (("good", "request", 7), [("lawyers", "answered")])


def test_a_call_that_is_cut_off_is_counted() -> None:
    """Whoever cancels it: a deadline or the end of the process."""
    failure, counted = review(...)
    assert isinstance(failure, TimeoutError)
    assert counted == [("lawyers", "cut_off")]


def test_a_cms_keeps_its_promises_behind_the_watch() -> None:
    """Both operations are counted under their names, and the promises are the CMS's own."""
    counted: list[tuple[str, str, float]] = []
    timed = TimedCms(Cms(), lambda *call: counted.append(call))
    asked: Any = "document"
    sent = asyncio.run(timed.publish(asked, delivery_id="delivery-1", deadline_seconds=30))
    found = asyncio.run(timed.look_up(asked, deadline_seconds=15))
    assert (sent.code, found.outcome) == ("delivery-1 30", "absent")
    assert [call[:2] for call in counted] == [("publish", "accepted"), ("lookup", "absent")]
    assert all(seconds >= 0 for _, _, seconds in counted)
    assert (timed.has_lookup, timed.is_idempotent) == (False, True)
