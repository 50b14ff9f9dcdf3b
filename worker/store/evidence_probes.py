"""The claim of the one evidence row that tries a review route whose breaker is open."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Dialect,
    Float,
    Integer,
    RowMapping,
    Select,
    String,
    bindparam,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningUpdate

from worker.domain.breaker import PROVIDER, Permit
from worker.domain.policy import EvidenceLeases
from worker.store.breakers import grant, lock_breaker
from worker.store.claimable import may_be_claimed, names
from worker.store.conditions import is_waiting
from worker.store.due_groups import due_sites, first_of_each, share_of
from worker.store.engine import Bind, Moment, clock, json_rows, read_clock
from worker.store.leases import EVIDENCE
from worker.store.pauses import is_paused
from worker.store.schema import evidence

LOOKED_AT: Final = (
    1000  # due rows of the route, of each site the longest due, among which the fewest attempts are looked for
)


def probe(
    conn: Connection,
    route: str,
    *,
    worker_id: str,
    leases: EvidenceLeases,
    probe_seconds: float,
    blocked_sites: Collection[str],
    now: float | None,
) -> list[tuple[RowMapping, Permit]]:
    """Lease one due row of a route under its breaker's permit; none where another was faster or nothing is due.

    The breaker's row stays locked, so of all claims one grants the permit.
    """
    state = lock_breaker(conn, PROVIDER, route)
    if not state.may_probe(read_clock(conn, now)):
        return []
    taken = EVIDENCE.take_many(
        conn,
        _probing(conn.dialect.name, is_fixed=now is not None),
        most=1,
        worker_id=worker_id,
        leases=leases,
        parameters={
            "route": route,
            "blocked_sites": json_rows([{"name": name} for name in sorted(blocked_sites)]),
            **({} if now is None else {"now": now}),
        },
    )
    permits = [Permit(token=row["lease_token"], generation=state.generation) for row in taken]
    for permit in permits:
        grant(conn, PROVIDER, route, permit, seconds=probe_seconds, now=now)
    return list(zip(taken, permits, strict=True))


@functools.cache
def _probing(dialect_name: str, *, is_fixed: bool) -> ReturningUpdate[Any]:
    """Build the statement that leases the row of one route with the fewest attempts, of those due for longest."""
    bind: Dialect = (sqlite if dialect_name == "sqlite" else postgresql).dialect()
    now = bindparam("now", type_=Float) if is_fixed else None
    longest = _due_longest(bind, now).cte("longest")
    chosen = (
        select(evidence.c.request_id.label("row_id"))
        .join(longest, longest.c.request_id == evidence.c.request_id)
        .where(*may_be_claimed(bind, evidence))
        .order_by(evidence.c.attempts, evidence.c.next_attempt_at, evidence.c.created_at, evidence.c.request_id)
        .limit(1)
        .with_for_update(of=evidence, skip_locked=True)
        .subquery("chosen")
    )
    picked = select(chosen.c.row_id, literal_column("1", Integer).label("n")).cte("picked")
    return EVIDENCE.taking_many(bind, picked, now=now)


def _due_longest(bind: Bind, now: Moment) -> Select[tuple[str]]:
    """Return the rows that are due for longest of each site on the route, `LOOKED_AT` in all and one each at least.

    Site by site along the index: while nothing of this route is due, it does not matter how much is of the others.
    """
    at, e = clock(bind, now), evidence.alias("e")
    route = bindparam("route", type_=String)
    sites = due_sites(bind, now, route)
    first = (
        select(e.c.request_id)
        .where(
            is_waiting(e),
            e.c.site_id == sites.c.site_id,
            e.c.provider == route,
            e.c.next_attempt_at <= at,
        )
        .order_by(e.c.next_attempt_at, e.c.created_at, e.c.request_id)
        .limit(share_of(LOOKED_AT, sites))
    )
    may_call = (sites.c.site_id.not_in(names(bind, "blocked_sites")), ~is_paused(sites.c.site_id, route, at))
    return first_of_each(bind, sites, first).where(*may_call)
