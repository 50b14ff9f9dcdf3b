"""Step: let an event whose delivery failed be delivered after all, on an operator's word."""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain.delivery import Advance
from worker.domain.errors import Blocked
from worker.domain.messages import DELIVERY_PREPARE
from worker.flow.services import Services
from worker.store.deliveries import Delivery, find_delivery, lock_event, retire_failed
from worker.store.engine import writing
from worker.store.unprepared import keep_unprepared


def retry_delivery(services: Services, event_id: str) -> Advance:
    """Move an event's failed deliveries to history, so that the next preparation makes a new revision of it.

    Returns `approved`, and wakes `delivery.prepare`, which checks whether the event is ready. Only where none of them
    may be live: raises `cms.outcome_unknown` where one has to be reconciled first, `cms.delivery.not_failed` where
    nothing failed, `cms.delivery.event_ended` where the event is no longer open. Safe to run concurrently with itself.
    """

    def work(conn: Connection) -> Delivery:
        state = lock_event(conn, event_id)
        if state is None:
            raise Blocked("coordinator.event_id.unknown", "there is no such event; see locseal releases list")
        newest = find_delivery(conn, event_id)
        if state != "open":
            raise Blocked("cms.delivery.event_ended", f"the event is {state}; only an open event is delivered")
        if newest is None or newest.status != "failed":
            raise Blocked("cms.delivery.not_failed", "only a failed delivery is retried; see locseal releases show")
        if not retire_failed(conn, event_id, now=services.now()):
            raise Blocked(
                "cms.outcome_unknown",
                "the CMS may have taken an earlier delivery of this event; first: locseal deliveries reconcile",
            )
        keep_unprepared(conn, event_id, now=services.now())
        return newest

    newest = writing(services.engine, work)
    services.checkpoint("retry.committed")
    services.queue.wake(DELIVERY_PREPARE, event_id=event_id)
    return Advance(status="approved", event_id=event_id, plan_id=newest.plan_id)
