"""Which due evidence rows a worker gets, and the one statement that leases them to it.

Fair share: each further row goes to the site with the fewest live leases, those of this very batch counted; within a
site rows go by due time. The cost does not grow with the backlog: sites and routes are walked by index, and of each
only as many rows are read as the batch may need. Rows of events that are not open, or that have a delivery which is
not being renewed, stay; so does what is paused.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Float,
    Integer,
    RowMapping,
    Select,
    String,
    Subquery,
    bindparam,
    case,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningUpdate

from worker.domain.attempt import require_lease_seconds
from worker.domain.breaker import Permit
from worker.domain.evidence import EvidenceClaim, EvidenceKey
from worker.domain.identifier import require_time, require_token
from worker.domain.limits import UNBOUNDED, FleetLimits, Room
from worker.domain.policy import EvidenceLeases
from worker.store.breakers import probes_due, probes_waiting
from worker.store.claimable import may_be_claimed
from worker.store.conditions import is_leased, is_waiting
from worker.store.due_groups import due_groups
from worker.store.engine import Bind, Moment, clock, is_sqlite, json_rows, row_source, writing
from worker.store.evidence_claims import claim_of, key_of
from worker.store.evidence_probes import probe
from worker.store.leases import EVIDENCE
from worker.store.limits import count_calls, lock_limits, room_of, room_parameters
from worker.store.schema import evidence

# As long as all groups together have no more candidates than this, each is read as far as the batch could need; beyond
# that the last rows of a batch may go to a site that has one lease too many.
MOST_CANDIDATES = 1000
# How many further candidates a claim reads for each row it may take: others may hold the locks of the first ones.
SPARE = 3


@dataclass(frozen=True, kw_only=True)
class ClaimedRow:
    """One leased evidence row: the question, the lease, and who is to be asked for which site.

    `awaited_since_at` is when a provider first answered "accepted, not yet". Where `renewed_at` is set, only an
    approval given since then answers the row. Both in seconds.
    """

    key: EvidenceKey
    claim: EvidenceClaim
    site_id: str
    provider: str
    awaited_since_at: float | None = None
    renewed_at: float | None = None
    permit: Permit | None = None  # it tries a route whose breaker is open


def claim_due(
    engine: Engine,
    *,
    worker_id: str,
    limit: int,
    lease_seconds: float,
    site_leases: Mapping[str, float] = MappingProxyType({}),
    preferred_event_id: str | None = None,
    now: float | None = None,
    blocked_providers: Collection[str] = (),
    blocked_sites: Collection[str] = (),
    probe_seconds: float | None = None,
    limits: FleetLimits | None = None,
) -> list[ClaimedRow]:
    """Lease up to `limit` due rows to a worker in one statement, by fair share, and return them in that order.

    Each row gets a token of its own and is claimed under its own bound on attempts. A lease lasts `lease_seconds`, or what
    `site_leases` names for its site. `preferred_event_id` only decides
    between rows of a site that fell due at the same time. Damaged rows are passed over. Many workers may claim at
    once: rows that another is taking are skipped, not waited for. Of a route whose breaker is open nothing is taken, but
    once its time came one row with the fewest attempts, first in the list, under a permit of `probe_seconds` (the
    lease's length if left out). With `limits`, never more than they leave room for, whoever claims at the same time.
    """
    require_token(worker_id, "evidence.worker_id.invalid")
    seconds = require_lease_seconds(lease_seconds)
    own = {site_id: require_lease_seconds(length) for site_id, length in site_leases.items()}
    leases = EvidenceLeases(default_seconds=seconds, by_site=own)
    moment = None if now is None else require_time(now)
    if limit < 1:
        return []
    kept = limits if limits is not None and limits.is_any else None
    statement = _statement(engine.dialect.name, is_fixed=moment is not None, is_bounded=kept is not None)
    parameters = {
        "limit": limit,
        "spare": 0 if is_sqlite(engine) else limit * SPARE,  # SQLite has one writer: nobody holds the first
        "preferred": preferred_event_id or "",
        "blocked_providers": json_rows([{"name": name} for name in sorted(blocked_providers)]),
        "blocked_sites": json_rows([{"name": name} for name in sorted(blocked_sites)]),
        **({} if moment is None else {"now": moment}),
    }

    def take(conn: Connection, most: int, reserves: bool) -> list[RowMapping]:
        given = parameters | {"limit": most, "reserves": int(reserves)}
        if kept is not None:
            given |= room_parameters(room_of(conn, kept, now=moment))
        rows = EVIDENCE.take_many(conn, statement, most=most, worker_id=worker_id, leases=leases, parameters=given)
        if kept is not None:
            count_calls(conn, kept, [(row["site_id"], row["provider"]) for row in rows], now=moment)
        return rows

    def work(conn: Connection) -> list[ClaimedRow]:
        if kept is not None:
            lock_limits(conn, kept)
        rows = take(conn, limit, True)
        claimed = [_claimed(row) for row in rows]
        if rows and not rows[0]["probes"]:
            return claimed
        routes = [route for route in probes_due(conn, now=moment) if route not in blocked_providers]
        for route in routes:
            if len(claimed) == limit:
                break
            full = Room() if kept is None else room_of(conn, kept, now=moment)
            if full.routes.get(route) == 0:
                continue
            taken = probe(
                conn,
                route,
                worker_id=worker_id,
                leases=leases,
                probe_seconds=probe_seconds or seconds,
                blocked_sites={*blocked_sites, *(name for name, free in full.sites.items() if free == 0)},
                now=moment,
            )
            claimed = [_claimed(row, permit) for row, permit in taken] + claimed
            if kept is not None:
                count_calls(conn, kept, [(row["site_id"], route) for row, _ in taken], now=moment)
        if routes and len(claimed) < limit:  # places were kept for probes that had nothing to ask
            claimed += [_claimed(row) for row in take(conn, limit - len(claimed), False)]
        return claimed

    return writing(engine, work)


def claim_none(conn: Connection) -> None:
    """Run the claim's statement, without limits, for no row: it is then built, compiled and planned. Changes nothing."""
    statement = _statement(conn.dialect.name, is_fixed=False, is_bounded=False)
    none = json_rows([])
    given = {"limit": 0, "spare": 0, "reserves": 0, "preferred": "", "blocked_providers": none, "blocked_sites": none}
    EVIDENCE.take_many(conn, statement, most=0, worker_id="", leases=EvidenceLeases(), parameters=given)


def _claimed(row: RowMapping, permit: Permit | None = None) -> ClaimedRow:
    named = {name: row[name] for name in ("site_id", "provider", "awaited_since_at", "renewed_at")}
    return ClaimedRow(key=key_of(row), claim=claim_of(row), permit=permit, **named)


@functools.cache
def _statement(dialect_name: str, *, is_fixed: bool, is_bounded: bool) -> ReturningUpdate[Any]:
    """Build the claim's statement, once in a process for each database: it takes longer than most claims."""
    bind: Dialect = (sqlite if dialect_name == "sqlite" else postgresql).dialect()
    now = bindparam("now", type_=Float) if is_fixed else None
    probes = probes_waiting(clock(bind, now)).label("probes")
    return EVIDENCE.taking_many(bind, _picked(bind, now, is_bounded=is_bounded), now=now).returning(probes)


def _picked(bind: Bind, now: Moment, *, is_bounded: bool) -> CTE:
    """Return (row_id, n): the rows to lease, best first. On PostgreSQL they are locked, and locked ones skipped."""
    ranked = ranked_due(bind, now, is_bounded=is_bounded).subquery("ranked")
    kept = bindparam("reserves", type_=Integer) * probes_waiting(clock(bind, now))  # places for rows that may probe
    places = bindparam("limit", type_=Integer) - kept
    best = (
        select(evidence.c.request_id.label("row_id"))
        .join(ranked, ranked.c.request_id == evidence.c.request_id)
        .where(EVIDENCE.is_due(bind, now))
        .order_by(ranked.c.place)
        .limit(case((places > 0, places), else_=0))
    )
    if is_sqlite(bind):
        chosen = best.add_columns(ranked.c.place).subquery("chosen")
    else:
        chosen = best.add_columns(ranked.c.place).with_for_update(of=evidence, skip_locked=True).subquery("chosen")
    return select(chosen.c.row_id, func.row_number().over(order_by=chosen.c.place).label("n")).cte("picked")


def ranked_due(bind: Bind, now: Moment, *, is_bounded: bool) -> Select[tuple[str, int]]:
    """Return (request_id, place): candidates by how many leases their site would have, then by due order."""
    groups = due_groups(bind, now)
    found = _candidates(bind, groups, now)
    live = (
        select(evidence.c.site_id, func.count().label("leases"))
        .where(is_leased(evidence), evidence.c.lease_expires_at > clock(bind, now))
        .group_by(evidence.c.site_id)
        .subquery("live")
    )
    is_preferred = case((found.c.event_id == bindparam("preferred", type_=String), 0), else_=1)
    due_order = (found.c.next_attempt_at, is_preferred, found.c.created_at, found.c.request_id)
    own_turn = func.row_number().over(partition_by=found.c.site_id, order_by=due_order)
    turn = own_turn + func.coalesce(live.c.leases, 0)
    turns: Subquery = (
        select(*found.c, turn.label("turn"), own_turn.label("own_turn"), is_preferred.label("is_preferred"))
        .outerjoin_from(found, live, live.c.site_id == found.c.site_id)
        .subquery("turns")
    )
    if is_bounded:
        turns = _within_room(bind, turns)
    order = (turns.c.turn, turns.c.next_attempt_at, turns.c.is_preferred, turns.c.created_at, turns.c.request_id)
    return select(turns.c.request_id, func.row_number().over(order_by=order).label("place"))


def _within_room(bind: Bind, turns: Subquery) -> Subquery:
    """Return those candidates that their site, and then their route, has room for."""
    room = row_source(bind, "room", {"kind": String, "name": String, "free": Integer}, "room")

    def free(kind: str, name: ColumnElement[str], others: ColumnElement[int]) -> ColumnElement[int]:
        named = select(room.c.free).where(room.c.kind == literal_column(f"'{kind}'"), room.c.name == name)
        return func.coalesce(named.scalar_subquery(), others)

    of_site = free("site", turns.c.site_id, bindparam("other_sites", type_=Integer))
    order = (turns.c.turn, turns.c.next_attempt_at, turns.c.is_preferred, turns.c.created_at, turns.c.request_id)
    place = func.row_number().over(partition_by=turns.c.provider, order_by=order).label("route_turn")
    fitting = select(*turns.c, place).where(turns.c.own_turn <= of_site).subquery("fitting")
    of_route = free("provider", fitting.c.provider, literal_column(str(UNBOUNDED), Integer))
    return select(*fitting.c).where(fitting.c.route_turn <= of_route).subquery("within_room")


def _candidates(bind: Bind, groups: CTE, now: Moment) -> Subquery:
    """Return the first rows of each group in due order: all that a batch could need, or fewer where groups are many.

    Every group with something due gives at least one row, so even then they fill the batch.
    """
    e = evidence.alias("e")
    limit, spare = bindparam("limit", type_=Integer), bindparam("spare", type_=Integer)
    number = func.count()
    needed = case((number * limit <= MOST_CANDIDATES, limit), (number < limit, limit - number + 1), else_=1)
    places = select(needed + spare // func.nullif(number, 0)).select_from(groups).scalar_subquery()
    first = (
        select(e.c.request_id, e.c.event_id, e.c.site_id, e.c.provider, e.c.next_attempt_at, e.c.created_at)
        .where(
            is_waiting(e),
            e.c.site_id == groups.c.site_id,
            e.c.provider == groups.c.provider,
            e.c.next_attempt_at <= clock(bind, now),
            *may_be_claimed(bind, e),
        )
        .order_by(e.c.next_attempt_at, e.c.created_at, e.c.request_id)
        .limit(places)
    )
    if not is_sqlite(bind):
        each = first.correlate(groups).lateral("each")
        return select(*each.c).select_from(groups.join(each, true())).subquery("found")
    ids = first.with_only_columns(e.c.request_id).correlate(groups).scalar_subquery()
    f = evidence.alias("f")
    return (
        select(f.c.request_id, f.c.event_id, f.c.site_id, f.c.provider, f.c.next_attempt_at, f.c.created_at)
        .select_from(groups.join(f, f.c.request_id.in_(ids)))
        .subquery("found")
    )
