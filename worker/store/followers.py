"""Which delivery may go on once another was settled, or once its site's CMS has room. Wakes are stamped, never sent, here."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, Float, literal_column, or_, select, text, update

from worker.store.deliveries import Delivery, is_spoken_for
from worker.store.engine import clock
from worker.store.permits import has_permit
from worker.store.schema import DUE, WAKE_ORDER, deliveries, events

LOOKED_AT: Final = 1000  # due deliveries, the longest waiting first, among which one of the site is looked for


def next_of_source(conn: Connection, delivery: Delivery) -> str | None:
    """Return the event of the next newer sequence of a source whose delivery waits to be published, or None."""
    statement = (
        select(events.c.event_id)
        .select_from(events.join(deliveries, deliveries.c.event_id == events.c.event_id))
        .where(
            is_spoken_for(),
            events.c.site_id == delivery.site_id,
            events.c.source_id == delivery.source_id,
            events.c.source_sequence > delivery.source_sequence,
            deliveries.c.status.in_(("pending", "retry_wait")),
        )
        .order_by(events.c.source_sequence)
        .limit(1)
    )
    return conn.execute(statement).scalar_one_or_none()


def stamp_next_of_site(
    conn: Connection, site_id: str, besides_id: str, *, is_guided: bool, now: float | None
) -> str | None:
    """Return the event of the site's due delivery that waits longest for a wake, and stamp it, so that all take turns."""
    at = clock(conn, now)
    order = literal_column(WAKE_ORDER, Float)
    longest = (
        select(deliveries.c.delivery_id)
        .where(text(DUE), order <= at, deliveries.c.next_attempt_at <= at)
        .order_by(order, deliveries.c.delivery_id)
        .limit(LOOKED_AT)
        .subquery("longest")
    )
    may_go = or_(deliveries.c.in_doubt.is_(True), has_permit(at)) if is_guided else text("1 = 1")
    first = (
        select(deliveries.c.delivery_id)
        .select_from(deliveries.join(longest, longest.c.delivery_id == deliveries.c.delivery_id))
        .where(
            text("deliveries." + DUE), deliveries.c.site_id == site_id, deliveries.c.delivery_id != besides_id, may_go
        )
        .order_by(order, deliveries.c.delivery_id)
        .limit(1)
        .with_for_update(of=deliveries, skip_locked=True)
    )
    stamped = (
        update(deliveries)
        .where(deliveries.c.delivery_id.in_(first.scalar_subquery()))
        .values(last_woken_at=at)
        .returning(deliveries.c.event_id)
    )
    return conn.execute(stamped).scalar_one_or_none()
