"""Breakers as rows, one for each review route and each site's CMS that ever failed; rules are in `domain.breaker`.

A side that never failed has no row, and none is written while calls succeed. Rows are locked in key order, after the
locks on evidence or deliveries; a probe is granted in the transaction of its claim.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    exists,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from worker.domain.breaker import PROVIDER, BreakerState, News, Permit, after
from worker.domain.hold import Closure
from worker.domain.policy import Breaker
from worker.store.engine import clock, read_clock
from worker.store.schema import breakers
from worker.store.upserts import insert_into


@dataclass(frozen=True, kw_only=True)
class Told:
    """News about one side, and the policy that they are judged by."""

    news: News
    policy: Breaker


def tell(conn: Connection, told: Iterable[Told], *, now: float | None) -> None:
    """Let news count, in the transaction that settles the calls behind them. Writes only breakers that change."""
    by_key = {(one.news.kind, one.news.name): one for one in told}
    if not by_key:
        return
    at = read_clock(conn, now)
    for kind, name in sorted(key for key, one in by_key.items() if one.news.faults or one.news.retry_after_seconds):
        never = insert_into(conn, breakers).values(kind=kind, name=name, **asdict(BreakerState()), updated_at=at)
        conn.execute(never.on_conflict_do_nothing())
    locked = (
        select(breakers)
        .where(tuple_(breakers.c.kind, breakers.c.name).in_(sorted(by_key)))
        .order_by(breakers.c.kind, breakers.c.name)
        .with_for_update()
    )
    for row in conn.execute(locked).mappings().all():
        one = by_key[row["kind"], row["name"]]
        state = _state(row)
        new = after(state, one.news, one.policy, now=at)
        if new != state:
            is_it = (breakers.c.kind == row["kind"], breakers.c.name == row["name"])
            conn.execute(update(breakers).where(*is_it).values(**asdict(new), updated_at=at))


def probes_due(conn: Connection, *, now: float | None) -> list[str]:
    """Return the routes whose breaker may be probed now; reads one small table and locks nothing."""
    rows = conn.execute(
        select(breakers.c.name)
        .where(breakers.c.kind == PROVIDER, breakers.c.is_open.is_(True), ~is_shut(clock(conn, now)))
        .order_by(breakers.c.name)
    )
    return list(rows.scalars())


def probes_waiting(at: ColumnElement[float]) -> ColumnElement[int]:
    """Return the number of routes that `probes_due` would name."""
    return (
        select(func.count())
        .select_from(breakers)
        .where(breakers.c.kind == literal_column(f"'{PROVIDER}'"), breakers.c.is_open.is_(True), ~is_shut(at))
        .scalar_subquery()
    )


def lock_breaker(conn: Connection, kind: str, name: str) -> BreakerState:
    """Return a breaker, locked until the transaction ends; a closed one where there is no row."""
    row = (
        conn.execute(select(breakers).where(breakers.c.kind == kind, breakers.c.name == name).with_for_update())
        .mappings()
        .one_or_none()
    )
    return BreakerState() if row is None else _state(row)


def grant(conn: Connection, kind: str, name: str, permit: Permit, *, seconds: float, now: float | None) -> None:
    """Give the permit of a breaker that the caller has locked and found ready to be probed."""
    conn.execute(
        update(breakers)
        .where(breakers.c.kind == kind, breakers.c.name == name, breakers.c.generation == permit.generation)
        .values(probe_token=permit.token, probe_expires_at=clock(conn, now) + seconds, updated_at=clock(conn, now))
    )


def closures_of(conn: Connection, sides: Collection[tuple[str, str]]) -> tuple[Closure, ...]:
    """Return the open breakers among these sides (kind and name), in order, for people."""
    rows = conn.execute(
        select(breakers.c.kind, breakers.c.name, breakers.c.open_until_at)
        .where(breakers.c.is_open.is_(True))
        .order_by(breakers.c.kind, breakers.c.name)
    )
    return tuple(
        Closure(kind=row.kind, name=row.name, until_at=row.open_until_at or 0.0)
        for row in rows
        if (row.kind, row.name) in sides
    )


@dataclass(frozen=True, kw_only=True)
class OpenBreaker:
    """One open breaker as people look at it; `state` says whether it waits, may be tried, or is being tried."""

    kind: str  # provider | cms
    name: str
    open_until_at: float | None
    reason: str | None  # the code that opened it
    opened_by: str | None  # the worker
    failures: int
    pause_seconds: float
    probe_expires_at: float | None
    state: str  # closed_until | to_be_probed | probed


def list_breakers(conn: Connection, *, now: float | None) -> tuple[OpenBreaker, ...]:
    """Return the open breakers, by kind and name."""
    at = read_clock(conn, now)
    query = select(breakers).where(breakers.c.is_open.is_(True)).order_by(breakers.c.kind, breakers.c.name)
    return tuple(_open(row, at) for row in conn.execute(query).mappings())


def _open(row: RowMapping, at: float) -> OpenBreaker:
    state = _state(row)
    is_probed = state.probe_token is not None and (state.probe_expires_at or 0.0) > at
    waits = "closed_until" if (state.open_until_at or 0.0) > at else "to_be_probed"
    return OpenBreaker(
        kind=row["kind"],
        name=row["name"],
        open_until_at=state.open_until_at,
        reason=state.reason,
        opened_by=state.opened_by,
        failures=state.failures,
        pause_seconds=state.pause_seconds,
        probe_expires_at=state.probe_expires_at if is_probed else None,
        state="probed" if is_probed else waits,
    )


# --- conditions for claims, settles and sweeps ------------------------------------------------------------------------


def open_names(kind: str) -> Select[tuple[str]]:
    """Return the names of one kind whose breaker is open, probed or not."""
    return select(breakers.c.name).where(breakers.c.kind == literal_column(f"'{kind}'"), breakers.c.is_open.is_(True))


def is_shut(at: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition on `breakers` that nobody may call now: open for longer, or another is probing."""
    is_probed = and_(breakers.c.probe_token.is_not(None), breakers.c.probe_expires_at > at)
    return and_(breakers.c.is_open.is_(True), or_(breakers.c.open_until_at > at, is_probed))


def is_shut_off(kind: str, name: ColumnElement[Any], at: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition that a row of this side would find its breaker shut."""
    return exists().where(breakers.c.kind == kind, breakers.c.name == name, is_shut(at)).correlate_except(breakers)


def is_troubled(kind: str, name: ColumnElement[Any] | None = None) -> ColumnElement[bool]:
    """Return the condition that a side of this kind (of this name) is not wholly sound: failures counted, or open."""
    where = [breakers.c.kind == kind, or_(breakers.c.is_open.is_(True), breakers.c.failures > 0)]
    if name is not None:
        where.append(breakers.c.name == name)
    return exists().where(*where).correlate_except(breakers)


def _state(row: Any) -> BreakerState:
    return BreakerState(**{one.name: row[one.name] for one in fields(BreakerState)})
