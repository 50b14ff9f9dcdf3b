"""What is due, expired or ready, found again without any message (SPEC section 9). Wakes are stamped, never sent, here.

Every look is bounded and follows a partial index, so a sweep costs the same with a million rows. Two sweeps at once
are harmless: one of them takes the turn, and a stamp names the rows that it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Float,
    Row,
    Select,
    String,
    Subquery,
    and_,
    literal_column,
    or_,
    select,
    text,
    update,
)

from worker.domain.breaker import CMS, PROVIDER
from worker.store.breakers import is_shut_off
from worker.store.conditions import is_being_renewed, is_waiting
from worker.store.deliveries import is_spoken_for
from worker.store.due_groups import due_groups, first_of_each, share_of
from worker.store.engine import clock, json_rows, row_source
from worker.store.pauses import is_paused
from worker.store.permits import has_permit
from worker.store.recovery import Found, events_found, longest_unwoken, unwoken_since
from worker.store.revisions import close_ended
from worker.store.schema import (
    DUE,
    WAKE_ORDER,
    deliveries,
    events,
    evidence,
    sweeps,
)
from worker.store.upserts import insert_into

FLEET: Final = "fleet"
EVIDENCE_ROWS: Final = 2000  # due rows one sweep looks at
DELIVERY_ROWS: Final = 1000
NOBODY: Final = json_rows([])


def take_turn_to_sweep(conn: Connection, *, interval_seconds: float, now: float | None, name: str = FLEET) -> bool:
    """Take this interval's turn to sweep, or to do what is called `name`; false when somebody has it.

    A turn that was taken in the future counts for nothing: the clock was set back, and the sweep must not stop so long.
    """
    at = clock(conn, now)
    never = insert_into(conn, sweeps).values(name=name, swept_at=0.0).on_conflict_do_nothing()
    conn.execute(never)
    taken = (
        update(sweeps)
        .where(sweeps.c.name == name, _not_lately(sweeps.c.swept_at, at, interval_seconds))
        .values(swept_at=at)
        .returning(sweeps.c.name)
    )
    return conn.execute(taken).one_or_none() is not None


def stamp_due_evidence(conn: Connection, *, room: int, recovery_seconds: float, now: float | None) -> Found:
    """Return at most `room` open events with due evidence that were not woken lately, and stamp their due rows.

    Rows that nobody may claim (of an event that has a delivery, paused, or of a
    route that is closed) are stamped and passed over; those of an event that
    ended are closed.
    """
    at = clock(conn, now)
    is_due = and_(text(DUE.replace("status", "evidence.status")), evidence.c.next_attempt_at <= at)
    rows = _look(conn, _first_due(at, recovery_seconds), at)
    if len(rows) == EVIDENCE_ROWS and sum(bool(row.is_wanted) for row in rows) < room:
        rows += _look(conn, _due_behind(conn, at, recovery_seconds), at)
    wakes = tuple(dict.fromkeys(row.event_id for row in rows if row.is_wanted))[:room]
    named = row_source(conn, "named", {"id": String}, "named")
    passed = [row.request_id for row in rows if not row.is_wanted]
    if passed:
        close_ended(conn, passed, now=now)
    for column, ids in ((evidence.c.event_id, wakes), (evidence.c.request_id, passed)):
        # Rows that a claim or a settle holds are left out: nobody waits for a sweep, and a sweep for nobody.
        stamped = (
            select(evidence.c.request_id)
            .where(column.in_(select(named.c.id)), is_due)
            .with_for_update(of=evidence, skip_locked=True)
        )
        if ids:
            conn.execute(
                update(evidence).where(evidence.c.request_id.in_(stamped)).values(last_woken_at=at),
                {"named": _named(ids)},
            )
    woken = frozenset(wakes)
    since = [row.since for row in rows if row.is_wanted and row.event_id in woken]
    return events_found(wakes, longest_unwoken(rows[0].at, since) if rows else 0.0)


def _look(conn: Connection, looked_at: Subquery, at: ColumnElement[float]) -> list[Row[Any]]:
    """Return these due rows, each with whether its event may be woken for it and what time it is."""
    # Scalars, not EXISTS: PostgreSQL would read the whole of both tables into a hash for these few rows.
    state = select(events.c.state).where(events.c.event_id == looked_at.c.event_id).scalar_subquery()
    spoken_for = (
        select(deliveries.c.delivery_id)
        .where(deliveries.c.event_id == looked_at.c.event_id, is_spoken_for(), ~is_being_renewed())
        .scalar_subquery()
    )
    held = or_(
        is_paused(looked_at.c.site_id, looked_at.c.provider, at), is_shut_off(PROVIDER, looked_at.c.provider, at)
    )
    is_wanted = and_(state == "open", spoken_for.is_(None), ~held).label("is_wanted")
    return list(
        conn.execute(
            select(looked_at, is_wanted, at.label("at")), {"blocked_sites": NOBODY, "blocked_providers": NOBODY}
        )
    )


def _due_rows(at: ColumnElement[float]) -> Select[Any]:
    """Return due rows in the order in which they are looked at, with what a look needs of each."""
    return (
        select(
            evidence.c.request_id,
            evidence.c.event_id,
            evidence.c.site_id,
            evidence.c.provider,
            unwoken_since(evidence).label("since"),
        )
        .where(is_waiting(evidence), evidence.c.next_attempt_at <= at)
        .order_by(evidence.c.next_attempt_at, evidence.c.created_at, evidence.c.request_id)
        .limit(EVIDENCE_ROWS)
    )


def _first_due(at: ColumnElement[float], recovery_seconds: float) -> Subquery:
    """Return the rows that are due for longest and were not woken lately, held or not."""
    return _due_rows(at).where(_not_lately(evidence.c.last_woken_at, at, recovery_seconds)).subquery("looked_at")


def _due_behind(conn: Connection, at: ColumnElement[float], recovery_seconds: float) -> Subquery:
    """Return the like of those sites and routes that nothing keeps back, however many rows of others are due before.

    What a pause or a closed route holds may be more than a whole round of sweeps looks at.
    """
    e = evidence.alias("e")
    groups = due_groups(conn, at, with_probes=True)
    first = (
        select(e.c.request_id)
        .where(
            is_waiting(e),
            e.c.site_id == groups.c.site_id,
            e.c.provider == groups.c.provider,
            e.c.next_attempt_at <= at,
            _not_lately(e.c.last_woken_at, at, recovery_seconds),
        )
        .order_by(e.c.next_attempt_at, e.c.created_at, e.c.request_id)
        .limit(share_of(EVIDENCE_ROWS, groups))
    )
    behind = first_of_each(conn, groups, first).cte("behind")
    return _due_rows(at).join(behind, behind.c.request_id == evidence.c.request_id).subquery("looked_at")


def stamp_due_deliveries(
    conn: Connection,
    *,
    room: int,
    recovery_seconds: float,
    is_guided: Callable[[str], bool],
    now: float | None,
) -> Found:
    """Return at most `room` events whose delivery is due and was not woken lately, and stamp those deliveries.

    The longest waiting come first. Passed over, and stamped, unless in doubt: what is paused, and a guided site's
    delivery that no release run permits; in any case what belongs to a CMS that is closed.
    """
    at = clock(conn, now)
    order = literal_column(WAKE_ORDER, Float)
    rows = conn.execute(
        select(
            deliveries.c.delivery_id,
            deliveries.c.event_id,
            deliveries.c.site_id,
            or_(deliveries.c.in_doubt.is_(True), has_permit(at)).label("is_permitted"),
            or_(
                and_(deliveries.c.in_doubt.is_(False), is_paused(deliveries.c.site_id, None, at)),
                is_shut_off(CMS, deliveries.c.site_id, at),
            ).label("is_held"),
            order.label("since"),
            at.label("at"),
        )
        .where(
            text(DUE),
            order <= at,
            deliveries.c.next_attempt_at <= at,
            _not_lately(deliveries.c.last_woken_at, at, recovery_seconds),
        )
        .order_by(order, deliveries.c.delivery_id)
        .limit(DELIVERY_ROWS)
    ).all()
    wakes: list[str] = []
    since: list[float] = []
    seen: list[str] = []
    for row in rows:
        is_wanted = not row.is_held and (bool(row.is_permitted) or not is_guided(row.site_id))
        if is_wanted and len(wakes) >= room:
            break
        seen.append(row.delivery_id)
        if is_wanted:
            wakes.append(row.event_id)
            since.append(row.since)
    named = row_source(conn, "named", {"id": String}, "named")
    stamped = (
        select(deliveries.c.delivery_id)
        .where(deliveries.c.delivery_id.in_(select(named.c.id)), text(DUE))
        .with_for_update(skip_locked=True)
    )
    if seen:
        conn.execute(
            update(deliveries).where(deliveries.c.delivery_id.in_(stamped)).values(last_woken_at=at),
            {"named": _named(seen)},
        )
    return events_found(wakes, longest_unwoken(rows[0].at, since) if rows else 0.0)


def _not_lately(column: Column[float], at: ColumnElement[float], seconds: float) -> ColumnElement[bool]:
    """Return the condition that a stamp is older than so many seconds, or as far in the future: the clock was set back."""
    return or_(column.is_(None), column <= at - seconds, column > at + seconds)


def _named(ids: Iterable[str]) -> str:
    return json_rows([{"id": one} for one in ids])
