"""Whether a delivery may go to its site's CMS while that is not wholly sound, and under which permit.

Asked under the locks of the source and of the delivery; the breaker's lock is the last.
"""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, exists, select

from worker.domain.breaker import CMS, Permit
from worker.store.breakers import grant, lock_breaker
from worker.store.conditions import is_waiting
from worker.store.engine import clock, read_clock
from worker.store.schema import deliveries
from worker.store.standings import Terms


def find_gate(conn: Connection, terms: Terms, *, is_lookup: bool, now: float | None) -> int | bool:
    """Return whether the CMS may be called: true, false, or the generation of the breaker that this call may probe.

    A send gives way to a look-up that is due at the same site.
    """
    state = lock_breaker(conn, CMS, terms.site_id)
    if not state.is_open:
        return True
    if not state.may_probe(read_clock(conn, now)):
        return False
    if not is_lookup and terms.promise.has_lookup and _has_lookup_due(conn, terms, now):
        return False
    return state.generation


def grant_permit(conn: Connection, terms: Terms, taken: RowMapping, generation: int, *, now: float | None) -> Permit:
    """Give the permit to the lease that was just taken, for as long as its calls may last."""
    permit = Permit(token=taken["lease_token"], generation=generation)
    seconds = min(terms.lease_seconds, 3 * terms.send_seconds)
    grant(conn, CMS, terms.site_id, permit, seconds=seconds, now=now)
    return permit


def _has_lookup_due(conn: Connection, terms: Terms, now: float | None) -> bool:
    due = exists().where(
        is_waiting(deliveries),
        deliveries.c.site_id == terms.site_id,
        deliveries.c.in_doubt.is_(True),
        deliveries.c.next_attempt_at <= clock(conn, now),
        deliveries.c.delivery_id != terms.delivery_id,
    )
    return bool(conn.execute(select(due)).scalar_one())
