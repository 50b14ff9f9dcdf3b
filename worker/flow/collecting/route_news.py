"""What finished calls showed about the review routes they went to, for the breakers. Not a step; nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from worker.domain.breaker import PROVIDER, News, is_outage
from worker.domain.review import NOT_YET, Deferred, Ending, Refused, Verified
from worker.flow.collecting.answered import Answered
from worker.flow.services import Services
from worker.store.breakers import Told

Shown = Literal["answered", "fault", "unused"]


def shown_by(one: Answered) -> Shown:
    """Return what one ending says about its route: nothing where no call was begun, or where it was cut off.

    Whoever asks for a wait does not work now, as if it did not answer.
    """
    if not one.is_called:
        return "unused"
    return "fault" if _asked_wait(one) is not None else _of(one.ending)


def route_news(services: Services, answered: Sequence[Answered], *, is_troubled: bool) -> tuple[Told, ...]:
    """Return the news of each route; answers alone are none while every route is sound.

    Raises `Unavailable` where the policies cannot be read.
    """
    told: list[Told] = []
    for route in sorted({one.row.provider for one in answered}):
        ours = [one for one in answered if one.row.provider == route]
        shown = [shown_by(one) for one in ours]
        waits = [wait for one in ours if (wait := _asked_wait(one)) is not None]
        probes = [one for one in ours if one.row.permit is not None]
        news = News(
            kind=PROVIDER,
            name=route,
            worker_id=services.worker_id,
            faults=shown.count("fault"),
            answers=shown.count("answered"),
            code=next((one.ending.code for one in ours if isinstance(one.ending, Refused) and _is_fault(one)), ""),
            retry_after_seconds=max(waits, default=None),
            permit=probes[0].row.permit if probes else None,
            probe=shown_by(probes[0]) if probes else "unused",
        )
        if news.faults or waits or probes or (news.answers and is_troubled):
            told.append(Told(news=news, policy=services.policies.for_provider(route).breaker))
    return tuple(told)


def _of(ending: Ending) -> Shown:
    if isinstance(ending, Verified) or (isinstance(ending, Deferred) and ending.code == NOT_YET):
        return "answered"
    if isinstance(ending, Refused):
        return "fault" if is_outage(ending.code, retryable=ending.retryable) else "answered"
    return "unused"


def _is_fault(one: Answered) -> bool:
    return shown_by(one) == "fault"


def _asked_wait(one: Answered) -> float | None:
    """Return the wait that the provider asked everyone to keep; "accepted, not yet" asks for one row alone."""
    ending = one.ending
    if not one.is_called or not isinstance(ending, Refused) or not ending.retryable:
        return None
    return ending.retry_after_seconds if ending.code.startswith("evidence.") else None
