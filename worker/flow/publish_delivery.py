"""Step: take one prepared delivery one visit further: look it up where it is in doubt, send it where it may be sent."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from worker.domain.delivery import Advance
from worker.domain.errors import Blocked
from worker.domain.turn import (
    APPROVAL_EXPIRED,
    SUPERSEDED,
    WITHDRAWN,
    Close,
    Over,
    Settlement,
    Wait,
    standing_status,
)
from worker.flow.cms_call import terms_for
from worker.flow.publishing.following import wake_followers
from worker.flow.publishing.visit import visit
from worker.flow.services import Services
from worker.store.coverage import has_current_approvals
from worker.store.engine import reading
from worker.store.events import EventRow, find_event
from worker.store.publications import StoredPublication, load_publication


def publish_delivery(services: Services, event_id: str) -> Advance:
    """Bring an event's delivery one visit further, and return where the event stands.

    Returns `delivered`, `superseded` or `withdrawn` where it ended so; `delivery_ready` while it waits: not due, leased
    by another, behind an older one, not permitted, in doubt; `waiting` where none was prepared. Raises the code it was
    closed with now (`cms.delivery.approval_expired`), `cms.delivery.failed`, `.tampered` or `.invalid`; `Unavailable`.
    """
    event, stored = _load(services, event_id)
    if stored is None:
        return Advance(status="waiting", event_id=event_id, plan_id=event.plan_id)
    end = None if services.draining() else _visit(services, stored)
    if isinstance(end, Close) and end.code not in {SUPERSEDED, WITHDRAWN}:
        raise Blocked(end.code, "the delivery was closed before it was sent; see locseal deliveries list")
    status = standing_status("failed" if isinstance(end, Close) else end.status, end.code) if end else "delivery_ready"
    if status == "delivery_ready":
        with reading(services.engine) as conn:
            if not has_current_approvals(conn, stored.approval_ids, now=services.now()):
                raise Blocked(APPROVAL_EXPIRED, "the approvals are no longer current; see locseal evidence renew")
    return Advance(status=status, event_id=event_id, plan_id=event.plan_id, delivery_id=stored.delivery.delivery_id)


def _load(services: Services, event_id: str) -> tuple[EventRow, StoredPublication | None]:
    with reading(services.engine) as conn:
        event = find_event(conn, event_id)
        if event is None:
            raise Blocked("coordinator.event_id.unknown", "there is no such event; see locseal releases list")
        stored = load_publication(
            conn,
            event_id,
            publication_trust=services.keys.trust("publication"),
            approval_trust=services.keys.trust("approval"),
        )
    return event, stored


def _visit(services: Services, stored: StoredPublication) -> Over | Close | Settlement | None:
    """Visit the delivery, after another that should try a closed CMS first; return None where it goes on waiting."""
    terms = terms_for(services, stored)
    end = visit(services, stored, terms)
    if isinstance(end, Wait) and end.first is not None:
        with suppress(Blocked):  # what is wrong with that one is its own story
            _, other = _load(services, end.first)
            if other is not None:
                wake_followers(
                    services, other, visit(services, other, replace(terms_for(services, other), gives_way=False))
                )
        end = visit(services, stored, replace(terms, gives_way=False))
    wake_followers(services, stored, end)
    return None if isinstance(end, Wait) else end
