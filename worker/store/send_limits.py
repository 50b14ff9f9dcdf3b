"""The fleet's bounds on calls to one site's CMS, kept inside the claim of a delivery: its lock first, then the live leases.

Asked under the locks of the source and of the delivery, before the breaker's. Sends and look-ups are calls alike. A
site without bounds costs no statement.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from worker.domain.limits import calls_allowed, next_call_after, refilled_at
from worker.domain.turn import Wait
from worker.store.conditions import is_leased
from worker.store.engine import clock, read_clock
from worker.store.limits import CMS, keep_rate, lock_rows
from worker.store.schema import deliveries, limits
from worker.store.standings import Terms


def find_room(conn: Connection, terms: Terms, *, now: float | None) -> Wait | None:
    """Return None where one more call to the site's CMS may begin, else what is waited for; keeps the bound's lock."""
    bounds = terms.limits
    if bounds.concurrent_calls is None and bounds.calls_per_second is None:
        return None
    lock_rows(conn, [(CMS, terms.site_id)])
    if bounds.concurrent_calls is not None:
        live = select(func.count()).where(
            is_leased(deliveries),
            deliveries.c.lease_expires_at > clock(conn, now),
            deliveries.c.site_id == terms.site_id,
        )
        if int(conn.execute(live).scalar_one()) >= bounds.concurrent_calls:
            return Wait(reason="limit")
    if bounds.calls_per_second is not None:
        at = read_clock(conn, now)
        saved = _saved(conn, terms.site_id)
        if calls_allowed(bounds.calls_per_second, saved, at) < 1:
            return Wait(reason="limit", seconds=max(0.0, refilled_at(bounds.calls_per_second, saved) - at))
    return None


def count_call(conn: Connection, terms: Terms, *, now: float | None) -> None:
    """Let a call that is about to begin count against the rate; one that follows an absent counts likewise."""
    rate = terms.limits.calls_per_second
    if rate is None:
        return
    lock_rows(conn, [(CMS, terms.site_id)])
    at = read_clock(conn, now)
    keep_rate(conn, CMS, terms.site_id, next_call_after(rate, _saved(conn, terms.site_id), at, 1))


def _saved(conn: Connection, site_id: str) -> float:
    row = select(limits.c.next_call_at).where(limits.c.kind == CMS, limits.c.name == site_id)
    return float(conn.execute(row).scalar_one())
