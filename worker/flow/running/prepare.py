"""The visit to `prepare`: does a signed delivery of every event lie in the outbox. Nothing is sent."""

from __future__ import annotations

from worker.domain.attempt import FAILED
from worker.domain.messages import DELIVERY_PREPARE
from worker.domain.run_visit import Again, Ended, Ending, result_code
from worker.flow.running.work import Work
from worker.flow.services import Services
from worker.store.deliveries import find_delivery, verify_delivery
from worker.store.engine import reading
from worker.store.run_facts import delivery_standings

MOST_WAKES = 200
WAITS = "run.waits_for_preparation"


def await_deliveries(services: Services, work: Work) -> Ending:
    """End the step once every event has a delivery whose stored bytes and signature hold; wake who prepares until then.

    Ends with the code of a delivery that failed: it is followed only after `locseal deliveries retry`.
    """
    with reading(services.engine) as conn:
        standings = delivery_standings(conn, work.events, now=services.now())
    failed = next((one for one in standings if one.status == FAILED), None)
    if failed is not None:
        return Ended(code=result_code(failed.code or "delivery_failed"), succeeded=False)
    missing = [one.event_id for one in standings if one.delivery_id is None]
    if missing:
        for event_id in missing[:MOST_WAKES]:
            services.queue.wake(DELIVERY_PREPARE, event_id=event_id)
        return Again(code=WAITS)
    trust = services.keys.trust("publication")
    for event in work.events:
        with reading(services.engine) as conn:
            stored = find_delivery(conn, event.event_id)
        if stored is None:
            return Again(code=WAITS)
        verify_delivery(stored, trust)
    return Ended(code="all_prepared", succeeded=True)
