"""The fleet's bounds on open calls and on their rate, kept inside the claim: rows locked in key order, then the live leases counted.

The bounds come from the policy file; a row here is the lock of one of them, so that of two claims the second counts
what the first took. Counting alone would race on READ COMMITTED. Nothing waits here longer than one claim takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Float, String, func, literal, select, update

from worker.domain.limits import UNBOUNDED, FleetLimits, Room, calls_allowed, next_call_after, room_left
from worker.store.conditions import is_leased
from worker.store.engine import clock, is_sqlite, json_rows, read_clock, row_source
from worker.store.schema import evidence, limits
from worker.store.upserts import insert_into

OTHER_SITES = "*"  # no token, so it is no site's name


def lock_limits(conn: Connection, kept: FleetLimits) -> None:
    """Lock the rows of every bound until the transaction ends; makes those that are not there yet."""
    if is_sqlite(conn) and not kept.rates:  # BEGIN IMMEDIATE locked everything
        return
    names = [("provider", name) for name in {*kept.routes, *kept.rates}] + [("site", name) for name in kept.sites]
    if kept.other_sites is not None:
        names.append(("site", OTHER_SITES))
    rows = json_rows([{"kind": kind, "name": name} for kind, name in sorted(names)])
    given = row_source(conn, "given", {"kind": String, "name": String}, "names")
    locked = (
        select(limits.c.kind)
        .join(given, (given.c.kind == limits.c.kind) & (given.c.name == limits.c.name))
        .order_by(limits.c.kind, limits.c.name)
        .with_for_update(of=limits)
    )
    if len(conn.execute(locked, {"names": rows}).all()) < len(names):
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
    at = read_clock(conn, now) if kept.rates else 0.0
    routes = dict(room.routes)
    for name, saved in _saved(conn, kept).items():
        routes[name] = min(routes.get(name, UNBOUNDED), calls_allowed(kept.rates[name], saved, at))
    return replace(room, routes=routes)


def count_calls(conn: Connection, kept: FleetLimits, routes: Iterable[str | None], *, now: float | None) -> None:
    """Let calls that were just claimed, one route for each, count against their rates."""
    begun = Counter(route for route in routes if route in kept.rates)
    if not begun:
        return
    at = read_clock(conn, now)
    saved = _saved(conn, kept)
    for name, calls in sorted(begun.items(), key=str):
        following = next_call_after(kept.rates[str(name)], saved[str(name)], at, calls)
        is_it = (limits.c.kind == "provider", limits.c.name == name)
        conn.execute(update(limits).where(*is_it).values(next_call_at=following))


def _saved(conn: Connection, kept: FleetLimits) -> dict[str, float]:
    """Return `next_call_at` of each route that has a rate."""
    if not kept.rates:
        return {}
    found = select(limits.c.name, limits.c.next_call_at).where(
        limits.c.kind == "provider", limits.c.name.in_(sorted(kept.rates))
    )
    return {row.name: row.next_call_at for row in conn.execute(found)}


def room_parameters(room: Room) -> dict[str, Any]:
    """Return the parameters that a bounded claim reads: the room of each route and site, and of all other sites."""
    rows = [{"kind": "provider", "name": name, "free": free} for name, free in room.routes.items()]
    rows += [{"kind": "site", "name": name, "free": free} for name, free in room.sites.items()]
    return {"room": json_rows(rows), "other_sites": room.other_sites}
