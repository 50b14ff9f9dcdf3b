"""The visit to `verify`: the CMS confirms every delivery id by a signed look-up answer, which is kept for auditors."""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain.run_visit import Again, Ended, Ending
from worker.flow.cms_call import ask_about
from worker.flow.cms_reply import Reply
from worker.flow.running.work import Work
from worker.flow.services import Services
from worker.store.deliveries import Delivery, find_delivery
from worker.store.delivery_answers import append_word
from worker.store.engine import reading, writing
from worker.store.run_facts import confirmed_deliveries

AT_ONCE = 20  # look-ups in flight
MOST = 200  # look-ups of one visit
WAITS = "run.waits_for_cms"


def confirm_all(services: Services, work: Work) -> Ending:
    """Ask the CMS for every delivery it has not confirmed since the step started; end the step once it has for all.

    Ends with `not_confirmed` where it says, signed, that it does not have one, and with `confirmed_by_acknowledgement`
    where it has no look-up: its signed acknowledgements are all there is. No answer is no answer: asked again later.
    """
    with reading(services.engine) as conn:
        stored = [find_delivery(conn, event.event_id) for event in work.events]
        confirmed = confirmed_deliveries(conn, work.events, since=work.lease.created_at)
    deliveries = [one for one in stored if one is not None and one.status == "succeeded"]
    if len(deliveries) != len(work.events):
        return Ended(code="not_acknowledged", succeeded=False)
    if not services.cms(work.site_id).has_lookup:
        return Ended(code="confirmed_by_acknowledgement", succeeded=True)
    waiting = [one for one in deliveries if one.delivery_id not in confirmed]
    left = len(waiting)
    for start in range(0, min(len(waiting), MOST), AT_ONCE):
        replies = _ask(services, waiting[start : start + AT_ONCE])
        services.checkpoint("run.verified")
        words = [reply.word.answer.outcome for reply in replies if reply.word is not None]
        if "absent" in words:
            return Ended(code="not_confirmed", succeeded=False)
        left -= len(words)
        if not words:
            break  # nobody answers; the rest would wait for nothing
    return Again(code=WAITS) if left else Ended(code="all_confirmed", succeeded=True)


def _ask(services: Services, deliveries: list[Delivery]) -> list[Reply]:
    """Ask for some deliveries at once and keep what was signed."""
    replies = ask_about(services, deliveries)

    def keep(conn: Connection) -> None:
        for delivery, reply in zip(deliveries, replies, strict=True):
            if reply.word is not None:
                append_word(conn, delivery.delivery_id, reply.word, now=services.now())

    writing(services.engine, keep)
    return replies
