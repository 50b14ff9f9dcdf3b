"""Who is woken after a visit to a delivery, so that the sweeper need not find it: not a step, and never the truth.

The next sequence of a source whose delivery was settled; and where a site's CMS has limits, whoever may go next there:
at once where a call made room, or when the rate allows it. A wake that is lost here is the sweeper's to send.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from worker.domain.errors import Unavailable
from worker.domain.messages import DELIVERY_PUBLISH
from worker.domain.turn import UNKNOWN_CODES, Close, Over, Settlement, Wait
from worker.flow.services import Services
from worker.store.engine import reading, writing
from worker.store.followers import next_of_source, stamp_next_of_site
from worker.store.publications import StoredPublication
from worker.store.standings import Terms

LONGEST_WAIT_SECONDS = 10.0  # a rate that allows the next call later than this is left to the sweeper


def wake_followers(services: Services, stored: StoredPublication, end: Over | Close | Settlement | Wait | None) -> None:
    """Wake whom the end of a visit lets go on; a database that is away leaves it to the sweeper. Never raises."""
    with suppress(Unavailable):
        _follow(services, stored, end)


def wake_next_of_site(services: Services, terms: Terms) -> None:
    """Wake the delivery that waits longest at a site whose CMS has limits. Never raises: a lease is held meanwhile."""
    if terms.limits.concurrent_calls is None and terms.limits.calls_per_second is None:
        return
    with suppress(Unavailable):
        _wake_next(services, terms.site_id, terms.delivery_id)


def _follow(services: Services, stored: StoredPublication, end: Over | Close | Settlement | Wait | None) -> None:
    delivery = stored.delivery
    site_id = delivery.site_id
    if isinstance(end, Wait):
        if end.seconds is not None and end.seconds <= LONGEST_WAIT_SECONDS and services.pacing.begin(site_id):
            services.calls.start(_wake_later(services, site_id, delivery.event_id, end.seconds))
        return
    if isinstance(end, Close | Settlement) and _is_settled(end):
        with reading(services.engine) as conn:
            event_id = next_of_source(conn, delivery)
        if event_id is not None:
            services.queue.wake(DELIVERY_PUBLISH, event_id=event_id)
    if isinstance(end, Settlement) and services.policies.for_site(site_id).delivery_limits.concurrent_calls is not None:
        _wake_next(services, site_id, delivery.delivery_id)


def _wake_next(services: Services, site_id: str, delivery_id: str) -> None:
    is_guided = services.policies.for_site(site_id).publication == "guided"
    event_id = writing(
        services.engine,
        lambda conn: stamp_next_of_site(conn, site_id, delivery_id, is_guided=is_guided, now=services.now()),
    )
    if event_id is not None:
        services.queue.wake(DELIVERY_PUBLISH, event_id=event_id)


def _is_settled(end: Close | Settlement) -> bool:
    """Tell whether nothing about it holds up the next sequence of its source any more."""
    if isinstance(end, Close):
        return not end.in_doubt
    return not end.in_doubt and end.status != "retry_wait" and end.code not in UNKNOWN_CODES


async def _wake_later(services: Services, site_id: str, event_id: str, seconds: float) -> None:
    """Wake one delivery when its rate allows it; meanwhile it holds nothing, and a process keeps one such wait a site."""
    try:
        await asyncio.sleep(seconds)
    finally:
        services.pacing.end(site_id)
    await asyncio.to_thread(services.queue.wake, DELIVERY_PUBLISH, event_id=event_id)
