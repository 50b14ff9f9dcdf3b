"""How soon what was lost from the broker is found again: what each sweep measured, and what waits unwoken right now.

A row that is due is *unwoken* since it fell due or since somebody was last woken for it, whichever came later. A sweep
wakes again what is unwoken for the recovery bound; so with room in the queues nothing stays unwoken for longer than the
bound and one interval of the sweeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Select,
    Table,
    case,
    func,
    literal_column,
    select,
    text,
)

from worker.store.conditions import is_waiting
from worker.store.engine import read_clock
from worker.store.schema import (
    DUE,
    WAKE_ORDER,
    deliveries,
    events,
    evidence,
    run_commands,
    sweep_times,
    unprepared_events,
)
from worker.store.upserts import insert_into

FLEET: Final = "fleet"
LOOKED_AT: Final = 2000  # due rows of a kind, the longest due first, that `read_recovery` looks at


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one look of a sweep found and stamped: the ids that each wake carries, in the order in which they are sent.

    `unwoken_seconds` is how long the one that waited longest for a wake had been unwoken, 0 where nothing was found.
    """

    wakes: tuple[Mapping[str, str], ...] = ()
    unwoken_seconds: float = 0.0


def events_found(event_ids: Iterable[str], unwoken_seconds: float) -> Found:
    """Return what was found where each wake carries an event's id."""
    wakes = tuple({"event_id": event_id} for event_id in event_ids)
    return Found(wakes=wakes, unwoken_seconds=unwoken_seconds if wakes else 0.0)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What is known of recovery at one moment, in seconds; for gauges.

    sweep_age_seconds      since the last whole sweep began; None: there was none
    sweep_took_seconds     how long that sweep took
    sweep_wakes            how many messages it sent
    found_unwoken_seconds  the longest that anything it woke had been unwoken: the recovery that was really measured
    unwoken_seconds        by kind (evidence, delivery, event, run_command): the longest that anything due is unwoken now.
                           Held by a pause or a breaker counts like the rest, since sweeps stamp it too
    """

    sweep_age_seconds: float | None
    sweep_took_seconds: float | None
    sweep_wakes: int
    found_unwoken_seconds: float
    unwoken_seconds: dict[str, float]


def longest_unwoken(at: float, since: Iterable[float]) -> float:
    """Return the longest of these waits, in seconds; 0 for none, and never less (a clock may be set back)."""
    return max(0.0, at - min(since, default=at))


def unwoken_since(rows: FromClause) -> ColumnElement[float]:
    """Return since when a row of a leased table is unwoken, as an expression."""
    woken, due = rows.c.last_woken_at, rows.c.next_attempt_at
    return case((woken > due, woken), else_=due)


def keep_sweep(conn: Connection, *, began_at: float, took_seconds: float, wakes: int, unwoken_seconds: float) -> None:
    """Keep what a whole sweep measured, in place of the one before."""
    said = {
        "began_at": began_at,
        "took_seconds": took_seconds,
        "wakes": wakes,
        "longest_unwoken_seconds": unwoken_seconds,
    }
    row = insert_into(conn, sweep_times).values(name=FLEET, **said)
    conn.execute(row.on_conflict_do_update(index_elements=["name"], set_=said))


def read_recovery(conn: Connection, *, now: float | None = None) -> Recovery:
    """Return the measures of the last sweep and what is unwoken now; five small reads, whatever the number of rows."""
    at = read_clock(conn, now)
    row = conn.execute(select(sweep_times).where(sweep_times.c.name == FLEET)).mappings().one_or_none()
    order = literal_column(WAKE_ORDER, Float)
    due = select(order.label("since")).where(text(DUE), order <= at, deliveries.c.next_attempt_at <= at)
    unprepared = func.coalesce(events.c.last_woken_at, unprepared_events.c.looked_at)
    waiting = {
        "evidence": _oldest_of(evidence, at),
        "delivery": due.order_by(order, deliveries.c.delivery_id).limit(1),
        "event": select(func.min(unprepared)).join_from(
            unprepared_events, events, events.c.event_id == unprepared_events.c.event_id
        ),
        "run_command": _oldest_of(run_commands, at),
    }
    found = {kind: conn.execute(statement).scalar() for kind, statement in waiting.items()}
    return Recovery(
        sweep_age_seconds=None if row is None else max(0.0, at - row["began_at"]),
        sweep_took_seconds=None if row is None else row["took_seconds"],
        sweep_wakes=0 if row is None else row["wakes"],
        found_unwoken_seconds=0.0 if row is None else row["longest_unwoken_seconds"],
        unwoken_seconds={kind: 0.0 if since is None else max(0.0, at - since) for kind, since in found.items()},
    )


def _oldest_of(rows: Table, at: float) -> Select[tuple[float]]:
    """Return since when the longest unwoken row of a table is so, among those that are due for longest."""
    due = (
        select(unwoken_since(rows).label("since"))
        .where(is_waiting(rows), rows.c.next_attempt_at <= at)
        .order_by(rows.c.next_attempt_at)
        .limit(LOOKED_AT)
        .subquery("due")
    )
    return select(func.min(due.c.since))
