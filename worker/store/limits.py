"""The fleet's bounds on open calls and on their rate, kept inside the claim: rows locked in key order, then the live leases counted.

The bounds come from the policy file; a row here is the lock of one of them, so that of two claims the second counts
what the first took. Counting alone would race on READ COMMITTED. Nothing waits here longer than one claim takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Float, String, func, literal, select

from worker.domain.limits import UNBOUNDED, FleetLimits, Room, calls_allowed, next_call_after, room_left
from worker.store.conditions import is_leased
from worker.store.engine import clock, is_sqlite, json_rows, read_clock, row_source
from worker.store.schema import evidence, limits
from worker.store.upserts import insert_into

PROVIDER: Final = "provider"
SITE: Final = "site"
CMS: Final = "cms"  # what is sent to a site's CMS; see `send_limits`
OTHER_SITES: Final = "*"  # no token, so it is no site's name


def lock_limits(conn: Connection, kept: FleetLimits) -> None:
    """Lock the rows of every bound until the transaction ends; makes those that are not there yet."""
    if is_sqlite(conn) and not kept.has_rates:  # BEGIN IMMEDIATE locked everything
        return
    names = {(PROVIDER, name) for name in {*kept.routes, *kept.rates}} | {
        (SITE, name) for name in {*kept.sites, *kept.site_rates}
    }
    if kept.other_sites is not None or kept.other_sites_rate is not None:
        names.add((SITE, OTHER_SITES))
    lock_rows(conn, names)


def lock_rows(conn: Connection, keys: Collection[tuple[str, str]]) -> None:
    """Lock the rows of these bounds (kind and name) in key order until the transaction ends; makes those missing."""
    rows = json_rows([{"kind": kind, "name": name} for kind, name in sorted(keys)])
    given = row_source(conn, "given", {"kind": String, "name": String}, "names")
    locked = (
        select(limits.c.kind)
        .join(given, (given.c.kind == limits.c.kind) & (given.c.name == limits.c.name))
        .order_by(limits.c.kind, limits.c.name)
        .with_for_update(of=limits)
    )
    if len(conn.execute(locked, {"names": rows}).all()) < len(keys):
        missing = select(given.c.kind, given.c.name, literal(0.0, Float)).order_by(given.c.kind, given.c.name)
        made = insert_into(conn, limits).from_select(["kind", "name", "next_call_at"], missing).on_conflict_do_nothing()
        conn.execute(made, {"names": rows})
        conn.execute(locked, {"names": rows}).all()


def room_of(conn: Connection, kept: FleetLimits, *, now: float | None) -> Room:
    """Return the room that is left, counted from live leases. The caller holds the locks of `lock_limits`."""
    rows = conn.execute(
        select(evidence.c.site_id, evidence.c.provider, func.count().label("calls"))
        .where(is_leased(evidence), evidence.c.lease_expires_at > clock(conn, now))
        .group_by(evidence.c.site_id, evidence.c.provider)
    )
    room = room_left(kept, [(row.site_id, row.provider, row.calls) for row in rows])
    if not kept.has_rates:
        return room
    at = read_clock(conn, now)
    saved = saved_of(conn)
    routes, sites = dict(room.routes), dict(room.sites)
    for name, rate in kept.rates.items():
        allowed = calls_allowed(rate, saved.get((PROVIDER, name), 0.0), at)
        routes[name] = min(routes.get(name, UNBOUNDED), allowed)
    for name in {*sites, *kept.site_rates, *(name for kind, name in saved if kind == SITE)}:
        own = kept.rate_of_site(name)
        if own is not None:
            allowed = calls_allowed(own, saved.get((SITE, name), 0.0), at)
            sites[name] = min(sites.get(name, room.other_sites), allowed)
    others = room.other_sites
    if kept.other_sites_rate is not None:
        others = min(others, calls_allowed(kept.other_sites_rate, 0.0, at))
    return replace(room, routes=routes, sites=sites, other_sites=others)


def count_calls(
    conn: Connection, kept: FleetLimits, begun: Iterable[tuple[str | None, str | None]], *, now: float | None
) -> None:
    """Let calls that were just claimed, a site and a route for each, count against their rates."""
    counted: Counter[tuple[str, str]] = Counter()
    for site_id, route in begun if kept.has_rates else ():
        if route in kept.rates:
            counted[PROVIDER, str(route)] += 1
        if site_id is not None and kept.rate_of_site(site_id) is not None:
            counted[SITE, site_id] += 1
    if not counted:
        return
    at = read_clock(conn, now)
    saved = saved_of(conn)
    for (kind, name), calls in sorted(counted.items()):
        rate = kept.rates[name] if kind == PROVIDER else kept.rate_of_site(name)
        assert rate is not None  # only what has a rate is counted
        keep_rate(conn, kind, name, next_call_after(rate, saved.get((kind, name), 0.0), at, calls))


def keep_rate(conn: Connection, kind: str, name: str, next_call_at: float) -> None:
    """Keep from when on a rate allows one more call. The caller holds the lock that covers it."""
    row = insert_into(conn, limits).values(kind=kind, name=name, next_call_at=next_call_at)
    conn.execute(row.on_conflict_do_update(index_elements=["kind", "name"], set_={"next_call_at": next_call_at}))


def saved_of(conn: Connection) -> dict[tuple[str, str], float]:
    """Return `next_call_at` of every route and site that has called under a rate, by kind and name."""
    found = select(limits.c.kind, limits.c.name, limits.c.next_call_at).where(
        limits.c.kind.in_((PROVIDER, SITE)), limits.c.name != OTHER_SITES
    )
    return {(row.kind, row.name): row.next_call_at for row in conn.execute(found)}


def room_parameters(room: Room) -> dict[str, Any]:
    """Return the parameters that a bounded claim reads: the room of each route and site, and of all other sites."""
    rows = [{"kind": "provider", "name": name, "free": free} for name, free in room.routes.items()]
    rows += [{"kind": "site", "name": name, "free": free} for name, free in room.sites.items()]
    return {"room": json_rows(rows), "other_sites": room.other_sites}
