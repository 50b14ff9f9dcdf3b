"""Step: revoke an approval. It never stands again; what was accepted by the CMS before stays published."""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain.errors import Blocked
from worker.domain.messages import DELIVERY_PUBLISH
from worker.flow.services import Services
from worker.store.approval_views import Consequence, consequence_of_revoking, revoke
from worker.store.deliveries import lock_event
from worker.store.engine import writing

LONGEST_REASON = 2000


def revoke_approval(services: Services, approval_id: str, *, reason: str, operator: str) -> tuple[Consequence, bool]:
    """Revoke an approval for ever, and return what that stopped; false where it had been revoked before.

    Checked from then on wherever a publication is signed or sent: an unsent delivery that names it is closed with
    `cms.delivery.approval_expired` at its next claim, one on its way or in doubt is not called back. The text may be
    approved again only by an explicit renewal, or be replaced. The first reason and operator are kept. Raises
    `release.approval.unknown`, `release.approval.reason_required`, and `Unavailable`. Safe to run concurrently.
    """
    if not reason.strip() or len(reason) > LONGEST_REASON:
        raise Blocked("release.approval.reason_required", f"say why, in 1 to {LONGEST_REASON} characters")

    def work(conn: Connection) -> tuple[Consequence, bool]:
        found = consequence_of_revoking(conn, approval_id, now=services.now())
        if found is None:
            raise Blocked("release.approval.unknown", "there is no such approval; see locseal approvals list")
        for event_id in found.events:  # whoever is preparing one of them finishes first, and is counted
            lock_event(conn, event_id)
        is_new = revoke(conn, approval_id, reason=reason.strip(), operator=operator, now=services.now())
        after = consequence_of_revoking(conn, approval_id, now=services.now())
        assert after is not None
        return after, is_new

    done, is_new = writing(services.engine, work)
    services.checkpoint("revoke.committed")
    for delivery in done.deliveries:
        services.queue.wake(DELIVERY_PUBLISH, event_id=delivery.event_id)
    return done, is_new
