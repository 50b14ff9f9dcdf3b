"""Step: take one prepared delivery one visit further: look it up where it is in doubt, send it where it may be sent."""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain.delivery import Advance
from worker.domain.errors import Blocked
from worker.domain.turn import (
    APPROVAL_EXPIRED,
    SUPERSEDED,
    WITHDRAWN,
    Ask,
    Close,
    Over,
    Send,
    Settlement,
    after_failed_probe,
    after_lookup,
    after_send,
    not_asked,
    not_sent,
    standing_status,
)
from worker.flow.cms_call import ask_cms, news_of, send_to_cms, terms_for
from worker.flow.services import Services
from worker.store.coverage import has_current_approvals
from worker.store.engine import reading, writing
from worker.store.events import find_event
from worker.store.publications import StoredPublication, load_publication
from worker.store.sends import SendLease, send_again, settle, take_turn
from worker.store.standings import Terms


def publish_delivery(services: Services, event_id: str) -> Advance:
    """Bring an event's delivery one visit further, and return where the event stands.

    Returns `delivered`, `superseded` or `withdrawn` where it ended so; `delivery_ready` while it waits: not due, leased
    by another, behind an older one, not permitted, in doubt; `waiting` where none was prepared. Raises the code it was
    closed with now (`cms.delivery.approval_expired`), `cms.delivery.failed`, `.tampered` or `.invalid`; `Unavailable`.
    """
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
    if stored is None:
        return Advance(status="waiting", event_id=event_id, plan_id=event.plan_id)
    end = None if services.draining() else _visit(services, stored, terms_for(services, stored))
    services.meters.visit(end)
    if isinstance(end, Close) and end.code not in {SUPERSEDED, WITHDRAWN}:
        raise Blocked(end.code, "the delivery was closed before it was sent; see locseal deliveries list")
    status = standing_status("failed" if isinstance(end, Close) else end.status, end.code) if end else "delivery_ready"
    if status == "delivery_ready":
        with reading(services.engine) as conn:
            if not has_current_approvals(conn, stored.approval_ids, now=services.now()):
                raise Blocked(APPROVAL_EXPIRED, "the approvals are no longer current; see locseal evidence renew")
    return Advance(status=status, event_id=event_id, plan_id=event.plan_id, delivery_id=stored.delivery.delivery_id)


def _visit(services: Services, stored: StoredPublication, terms: Terms) -> Over | Close | Settlement | None:
    """Return how the visit ended the delivery or its lease, or None where nothing may be done or the lease was lost."""
    began = services.monotonic()
    turn, lease = writing(services.engine, lambda conn: take_turn(conn, terms, now=services.now()))
    services.claimed("delivery")
    services.checkpoint("publish.claimed")
    if isinstance(turn, Ask) and lease is not None:
        return _ask(services, stored, terms, lease)
    if isinstance(turn, Send) and lease is not None:
        return _send(services, stored, terms, lease, began=began)
    return turn if isinstance(turn, Over | Close) else None


def _ask(services: Services, stored: StoredPublication, terms: Terms, lease: SendLease) -> Settlement | None:
    reply = ask_cms(services, stored.delivery)
    services.checkpoint("publish.looked_up")
    asked = lease.asked(terms.send_seconds)
    after = after_lookup(reply.answer, asked, jitter=terms.jitter) if reply.was_called else not_asked(reply.answer.code)
    told = news_of(services, stored, lease, reply)
    if lease.permit is not None and reply.shown == "fault" and isinstance(after, Settlement):
        after = after_failed_probe(after, is_send=False)
    began = services.monotonic()

    def work(conn: Connection) -> SendLease | Settlement | None:
        if isinstance(after, Settlement):
            return after if settle(conn, lease, after, reply.word, now=services.now(), told=told) else None
        assert reply.word is not None  # only a verified answer is an absent
        return send_again(conn, terms, lease, reply.word, now=services.now(), told=told)

    follows = writing(services.engine, work)
    services.checkpoint("publish.asked")
    return _send(services, stored, terms, follows, began=began) if isinstance(follows, SendLease) else follows


def _send(
    services: Services, stored: StoredPublication, terms: Terms, lease: SendLease, *, began: float
) -> Settlement | None:
    reply = send_to_cms(services, stored, began=began)
    services.checkpoint("publish.answered")
    end = not_sent(reply.answer.code, was_in_doubt=lease.was_in_doubt)
    is_failed_probe = lease.permit is not None and reply.shown == "fault"
    if reply.was_called:
        end = after_send(
            reply.answer,
            was_in_doubt=lease.was_in_doubt,
            attempts=lease.attempts,
            max_attempts=lease.max_attempts + int(is_failed_probe),  # it is not counted, so it uses nothing up
            promise=terms.promise,
            jitter=terms.jitter,
        )
    end = after_failed_probe(end, is_send=True) if is_failed_probe else end
    told = news_of(services, stored, lease, reply)
    is_ours = writing(services.engine, lambda conn: settle(conn, lease, end, reply.word, now=services.now(), told=told))
    services.checkpoint("publish.settled")
    return end if is_ours else None
