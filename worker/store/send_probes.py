"""Whether a delivery may go to its site's CMS while that is not wholly sound, and under which permit.

Asked under the locks of the source and of the delivery; the breaker's lock is the last.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, Float, RowMapping, and_, exists, literal_column, select, text

from worker.domain.breaker import CMS, Permit
from worker.domain.turn import Wait
from worker.store.breakers import grant, lock_breaker
from worker.store.conditions import is_row_sound, is_waiting, opaque
from worker.store.engine import clock, is_sqlite, read_clock
from worker.store.leases import DELIVERIES
from worker.store.pauses import is_paused
from worker.store.permits import has_permit
from worker.store.schema import DUE, UNSETTLED, WAKE_ORDER, deliveries
from worker.store.standings import OLDER, OLDER_UNSETTLED, Terms

LOOKED_AT: Final = 1000  # due deliveries, the longest waiting first, among which the fewest attempts are looked for
READ: Final = 20_000  # due deliveries of all sites among which those are found


def find_gate(conn: Connection, terms: Terms, *, attempts: int | None, now: float | None) -> int | bool | Wait:
    """Return whether the CMS may be called: true, what is waited for, or the generation of the breaker to be probed.

    `attempts` are those of a send, None for a look-up. A send gives way to a look-up that is due at the same site, and
    (where the terms say so) to another send that had fewer attempts.
    """
    state = lock_breaker(conn, CMS, terms.site_id)
    if not state.is_open:
        return True
    if not state.may_probe(read_clock(conn, now)):
        return Wait(reason="breaker")
    if attempts is not None:
        if terms.promise.has_lookup and _has_lookup_due(conn, terms, now):
            return Wait(reason="breaker")
        fewer = _with_fewer_attempts(conn, terms, attempts, now) if terms.gives_way else None
        if fewer is not None:
            return Wait(reason="breaker", first=fewer)
    return state.generation


def grant_permit(conn: Connection, terms: Terms, taken: RowMapping, generation: int, *, now: float | None) -> Permit:
    """Give the permit to the lease that was just taken, for as long as its calls may last."""
    permit = Permit(token=taken["lease_token"], generation=generation)
    seconds = min(terms.lease_seconds, 3 * terms.send_seconds)
    grant(conn, CMS, terms.site_id, permit, seconds=seconds, now=now)
    return permit


def _with_fewer_attempts(conn: Connection, terms: Terms, attempts: int, now: float | None) -> str | None:
    """Return the event of the site's sendable delivery with the fewest attempts, if it had fewer than these."""
    at = clock(conn, now)
    order = literal_column(WAKE_ORDER, Float)
    due = (
        select(deliveries.c.delivery_id, deliveries.c.site_id, order.label("since"))
        .where(text(DUE), order <= at, deliveries.c.next_attempt_at <= at)
        .order_by(order, deliveries.c.delivery_id)
        .limit(READ)
        .subquery("due")
    )
    longest = (
        select(due.c.delivery_id)
        .where(due.c.site_id == terms.site_id)
        .order_by(due.c.since, due.c.delivery_id)
        .limit(LOOKED_AT)
        .cte("longest")  # joined, and judged row by row: PostgreSQL would rather read every delivery there ever was
    )
    older = exists().where(
        OLDER.c.site_id == deliveries.c.site_id,
        OLDER.c.source_id == deliveries.c.source_id,
        OLDER.c.source_sequence < deliveries.c.source_sequence,
        OLDER_UNSETTLED,
    )
    sound = is_row_sound(deliveries, tokens=DELIVERIES.tokens, hashes=DELIVERIES.hashes, of_sqlite=is_sqlite(conn))
    may_be_sent = [deliveries.c.in_doubt.is_(False), sound, ~older, ~is_paused(deliveries.c.site_id, None, at)]
    if terms.is_guided:
        may_be_sent.append(has_permit(at))
    fewest = (
        select(deliveries.c.event_id)
        .join(longest, longest.c.delivery_id == deliveries.c.delivery_id)
        .where(opaque(and_(deliveries.c.attempts < attempts, *may_be_sent)))
        .order_by(deliveries.c.attempts, deliveries.c.next_attempt_at, deliveries.c.delivery_id)
        .limit(1)
    )
    return conn.execute(fewest).scalar_one_or_none()


def _has_lookup_due(conn: Connection, terms: Terms, now: float | None) -> bool:
    due = exists().where(
        text(UNSETTLED),  # in the words of the index that leads to the site's
        is_waiting(deliveries),
        deliveries.c.site_id == terms.site_id,
        deliveries.c.in_doubt.is_(True),
        deliveries.c.next_attempt_at <= clock(conn, now),
        deliveries.c.delivery_id != terms.delivery_id,
    )
    return bool(conn.execute(select(due)).scalar_one())
