"""One request to a CMS under a lease: on what terms it may be made, a question about a delivery, or the send of it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from concurrent.futures import Future

from worker.domain.breaker import CMS, News
from worker.domain.delivery import CmsAnswer, Lookup
from worker.domain.signature import SignedDocument
from worker.domain.turn import SEND_WINDOW_MISSED, WORKER_DRAINING, Promise
from worker.flow.cms_reply import Reply, answer_of, not_called
from worker.flow.services import Services
from worker.store.breakers import Told
from worker.store.deliveries import Delivery
from worker.store.delivery_answers import word_of
from worker.store.publications import StoredPublication
from worker.store.sends import SendLease
from worker.store.standings import Terms

ACKNOWLEDGEMENT = "acknowledgement"


def terms_for(services: Services, stored: StoredPublication) -> Terms:
    """Return the conditions on which this worker may act on a delivery, by the site's policy and its CMS's promises."""
    policy = services.policies.for_site(stored.delivery.site_id)
    cms = services.cms(stored.delivery.site_id)
    return Terms(
        delivery_id=stored.delivery.delivery_id,
        site_id=stored.delivery.site_id,
        source_id=stored.delivery.source_id,
        approval_ids=stored.approval_ids,
        approvals_code=stored.approvals_code,
        worker_id=services.worker_id,
        lease_seconds=policy.delivery_lease_seconds,
        send_seconds=services.deadlines.send_seconds,
        is_guided=policy.publication == "guided",
        promise=Promise(has_lookup=cms.has_lookup, is_idempotent=cms.is_idempotent),
        jitter=services.jitter(),
        quarantine=services.quarantine,
        limits=policy.delivery_limits,
    )


def news_of(services: Services, stored: StoredPublication, lease: SendLease, reply: Reply) -> tuple[Told, ...]:
    """Return what a reply tells the breaker of the site's CMS: nothing while all is sound and it answered."""
    site_id = stored.delivery.site_id
    shown = reply.shown
    if lease.permit is None and shown != "fault" and not (shown == "answered" and lease.is_cms_troubled):
        return ()
    news = News(
        kind=CMS,
        name=site_id,
        worker_id=services.worker_id,
        faults=int(shown == "fault"),
        answers=int(shown == "answered"),
        code=reply.answer.code,
        retry_after_seconds=reply.answer.retry_after_seconds if shown == "fault" else None,
        permit=lease.permit,
        probe=shown,
    )
    return (Told(news=news, policy=services.policies.for_site(site_id).delivery_breaker),)


def ask_cms(services: Services, delivery: Delivery) -> Reply:
    """Ask what became of a delivery, with a fresh nonce. Never raises for what the other side does."""
    return ask_about(services, [delivery])[0]


def ask_about(services: Services, deliveries: Sequence[Delivery]) -> list[Reply]:
    """Ask what became of several deliveries at once, each with a nonce of its own; return the replies in order.

    A process that drains begins no look-up. Raises `cms.cut_off` where it ends before the answers came.
    """
    if services.draining():
        return [not_called(WORKER_DRAINING)] * len(deliveries)
    asked: list[tuple[Lookup, Future[CmsAnswer]]] = []
    for delivery in deliveries:
        nonce = secrets.token_hex(32)
        lookup = Lookup(delivery_id=delivery.delivery_id, payload_sha256=delivery.payload_sha256, nonce=nonce)
        asking = services.cms(delivery.site_id).look_up(lookup, deadline_seconds=services.deadlines.lookup_seconds)
        asked.append((lookup, services.calls.start(asking)))
    trust = services.keys.trust(ACKNOWLEDGEMENT)
    answers = [(lookup, answer_of(call)) for lookup, call in asked]
    return [Reply(answer=answer, word=word_of(answer, lookup.nonce, trust)) for lookup, answer in answers]


def send_to_cms(services: Services, stored: StoredPublication, *, began: float) -> Reply:
    """Send the stored bytes once, so that the call ends within the send deadline after `began`.

    `began` is this process's monotonic time from before the claim: so `sent_at` plus the deadline bounds the call, and
    a process that was held up between the two, or drains, sends nothing. Raises `cms.cut_off` where the process ends
    before the answer came: whether it arrived, the next look-up finds.
    """
    left = services.deadlines.send_seconds - (services.monotonic() - began)
    if services.draining():
        return not_called(WORKER_DRAINING)
    if left <= services.deadlines.send_seconds / 2:
        return not_called(SEND_WINDOW_MISSED)
    cms = services.cms(stored.delivery.site_id)
    signed = SignedDocument(stored.document, stored.delivery.signature)
    sending = cms.publish(signed, delivery_id=stored.delivery.delivery_id, deadline_seconds=left)
    answer = answer_of(services.calls.start(sending))
    return Reply(answer=answer, word=word_of(answer, None, services.keys.trust(ACKNOWLEDGEMENT)))
