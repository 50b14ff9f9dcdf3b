"""Step: renew by itself what is about to expire before it is published, a configurable lead before its end."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from worker.domain.errors import Blocked, Unavailable
from worker.domain.messages import EVIDENCE_COLLECT
from worker.flow.services import Services
from worker.store.due import take_turn_to_sweep
from worker.store.engine import writing
from worker.store.events import find_event
from worker.store.expiring_approvals import RENEWALS, expiring_events
from worker.store.renewals import Renewal, reopen

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 60.0
MOST_EVENTS = 20  # that one look renews


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """What one look did; `renewed` are event ids. Nothing at all where the interval's turn was taken."""

    is_turn: bool
    renewed: tuple[str, ...] = ()


def renew_expiring(services: Services, *, interval_seconds: float = INTERVAL_SECONDS) -> Renewed:
    """Ask again for approvals of open events that end within their site's lead and have no delivery.

    What an operator revoked stays revoked, what failed to be renewed waits for an operator, and an event with an open
    delivery is renewed only on an operator's word. Raises `Unavailable`. Safe to run twice at once.
    """
    now = services.now()

    def look(conn: Connection) -> tuple[str, ...] | None:
        if not take_turn_to_sweep(conn, interval_seconds=interval_seconds, now=now, name=RENEWALS):
            return None
        lead = services.policies.for_site
        return expiring_events(conn, lambda site_id: lead(site_id).renews_within_seconds, room=MOST_EVENTS, now=now)

    found = writing(services.engine, look)
    if found is None:
        return Renewed(is_turn=False)
    services.checkpoint("renew.found")
    renewed = tuple(event_id for event_id in found if _renew(services, event_id))
    services.checkpoint("renew.committed")
    for event_id in renewed:
        services.queue.wake(EVIDENCE_COLLECT, event_id=event_id)
    return Renewed(is_turn=True, renewed=renewed)


def _renew(services: Services, event_id: str) -> bool:
    """Renew one event in a transaction of its own; what stops it concerns that event alone."""

    def work(conn: Connection) -> Renewal:
        event = find_event(conn, event_id)
        assert event is not None  # events are never deleted
        return reopen(conn, event_id, "expiring", services.policies.for_site(event.site_id), now=services.now())

    try:
        done = writing(services.engine, work)
    except Unavailable:
        raise
    except Blocked as refusal:  # it was published, withdrawn or altered meanwhile
        log.warning("evidence.renewal.blocked", event_id=event_id, code=refusal.code)
        return False
    for one in done.reopened:
        ids = {"request_id": one.request_id, "event_id": event_id}
        log.info("evidence.renewed", target_locale=one.target_locale, **ids)
    return bool(done.reopened)
