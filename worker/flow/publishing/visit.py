"""One visit to a delivery: claimed under the lock of its source, asked about or sent under the lease, settled. Not a step."""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain.turn import (
    Ask,
    Close,
    Over,
    Settlement,
    Wait,
    after_failed_probe,
    after_lookup,
    after_send,
    not_asked,
    not_sent,
)
from worker.flow.cms_call import ask_cms, news_of, send_to_cms
from worker.flow.publishing.following import wake_next_of_site
from worker.flow.services import Services
from worker.flow.tracing.deliveries import tell_closed, tell_visit
from worker.store.engine import writing
from worker.store.publications import StoredPublication
from worker.store.sends import SendLease, send_again, settle, take_turn
from worker.store.standings import Terms


def visit(services: Services, stored: StoredPublication, terms: Terms) -> Over | Close | Settlement | Wait | None:
    """Return how the visit ended the delivery or its lease, what it waits for, or None where the lease was lost.

    Raises `cms.delivery.invalid` for a damaged row and `Unavailable`.
    """
    began = services.monotonic()
    turn, lease = writing(services.engine, lambda conn: take_turn(conn, terms, now=services.now()))
    services.claimed("delivery")
    services.checkpoint("publish.claimed")
    if isinstance(turn, Close):
        tell_closed(stored.delivery.delivery_id, stored.delivery.event_id, turn)
    if isinstance(turn, Over | Close | Wait) or lease is None:
        return turn if isinstance(turn, Over | Close | Wait) else None
    wake_next_of_site(services, terms)  # there may be room for it beside this call
    if isinstance(turn, Ask):
        return _ask(services, stored, terms, lease, asked_at=began)
    return _send(services, stored, terms, lease, began=began)


def _ask(
    services: Services, stored: StoredPublication, terms: Terms, lease: SendLease, *, asked_at: float
) -> Settlement | None:
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
    if isinstance(follows, SendLease):
        return _send(services, stored, terms, follows, began=began)
    tell_visit(services, lease, follows, is_lookup=True, began=asked_at)
    return follows


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
    tell_visit(services, lease, end if is_ours else None, is_lookup=False, began=began)
    return end if is_ours else None
