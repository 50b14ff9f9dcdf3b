"""Events that are ready and not prepared, found again without any message, however many events are open.

An event becomes ready when its last evidence row succeeds. So a look follows the rows that succeeded since the look
before, in the order of their end; what it finds ready and not prepared is kept in `unprepared_events` until it is.
Rows of a transaction that committed late are met by a second look, half a minute behind the first. Beside both a walk
over all open events goes round and round, for what no row tells: a policy that changed, an operator's hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Row,
    String,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    text,
    tuple_,
    update,
)

from worker.domain.turn import OUTCOME_UNKNOWN
from worker.store.approvals import stands
from worker.store.engine import clock, json_rows, read_clock, row_source
from worker.store.readiness import ACCEPTED, accepted_rows, accepted_source, is_ready
from worker.store.recovery import Found, events_found, longest_unwoken
from worker.store.schema import DONE, approvals, deliveries, events, evidence, plan_jobs, sweeps, unprepared_events
from worker.store.upserts import insert_into

WALK: Final = "readiness"
FRESH: Final = "readiness.fresh"
LATE: Final = "readiness.late"
LATE_SECONDS: Final = 40.0  # no transaction lives longer: PostgreSQL ends one that waits or stands still before
FIRST_LOOK_SECONDS: Final = 3600.0  # how far back the first look of an installation goes
EVENT_ROWS: Final = 2000  # open events that one look asks for readiness on its walk
DONE_ROWS: Final = 5000  # rows that succeeded which one look follows
KEPT_ROWS: Final = 2000  # unprepared events that one look asks again

Accepted = Callable[[str], frozenset[str]]  # the policy digests that satisfy a site


def stamp_ready_events(
    conn: Connection, *, room: int, recovery_seconds: float, accepted: Accepted, now: float | None
) -> Found:
    """Return at most `room` open events that are ready, without a delivery and not woken lately, and stamp them.

    Each call goes on where the last one stopped, and looks at a bounded number of rows.
    """
    at = read_clock(conn, now)
    kept = _kept(conn)
    done = [*_follow(conn, FRESH, at, until=at), *_follow(conn, LATE, at, until=at - LATE_SECONDS)]
    looked_at = dict.fromkeys([*kept, *done, *_walk(conn, at)])
    ready = _ready(conn, looked_at, accepted, at)
    _keep(conn, [row.event_id for row in ready], at)
    gone = set(kept) - {row.event_id for row in ready}
    if gone:
        ended = unprepared_events.c.event_id.in_(select(_source(conn).c.id))
        conn.execute(delete(unprepared_events).where(ended), {"named": _named(gone)})
    unwoken = [row for row in ready if _is_long_ago(row.last_woken_at, at, recovery_seconds)][:room]
    wakes = tuple(row.event_id for row in unwoken)
    if wakes:
        conn.execute(
            update(events)
            .where(events.c.event_id.in_(select(_source(conn).c.id)), events.c.state == "open")
            .values(last_woken_at=at),
            {"named": _named(wakes)},
        )
    since = [max(row.ready_at or row.created_at, row.last_woken_at or 0.0) for row in unwoken]
    return events_found(wakes, longest_unwoken(at, since))


def keep_unprepared(conn: Connection, event_id: str, *, now: float | None) -> None:
    """Have sweeps look at an event until it is prepared; for commands whose wake may be lost, in their transaction."""
    _keep(conn, [event_id], read_clock(conn, now))


def _kept(conn: Connection) -> list[str]:
    """Return the events that were found unprepared before, those first that were looked at longest ago."""
    rows = select(unprepared_events.c.event_id).order_by(unprepared_events.c.looked_at, unprepared_events.c.event_id)
    return list(conn.execute(rows.limit(KEPT_ROWS)).scalars())


def _keep(conn: Connection, event_ids: Iterable[str], at: float) -> None:
    named = sorted(event_ids)
    if not named:
        return
    source = _source(conn)
    row = insert_into(conn, unprepared_events).from_select(
        ["event_id", "looked_at"],
        select(source.c.id, literal(at, Float)).where(source.c.id.is_not(None)),  # SQLite takes ON for a join without
    )
    again = row.on_conflict_do_update(index_elements=["event_id"], set_={"looked_at": at})
    conn.execute(again, {"named": _named(named)})


def _follow(conn: Connection, name: str, at: float, *, until: float) -> list[str]:
    """Return the events whose rows succeeded since this look's last one, up to a time, and remember how far it got."""
    since, last_id = _place(conn, name, until)
    rows = conn.execute(
        select(evidence.c.updated_at, evidence.c.request_id, evidence.c.event_id)
        .where(
            text(DONE),
            tuple_(evidence.c.updated_at, evidence.c.request_id)
            > tuple_(literal(since, Float), literal(last_id, String)),
            evidence.c.updated_at <= until,
        )
        .order_by(evidence.c.updated_at, evidence.c.request_id)
        .limit(DONE_ROWS)
    ).all()
    if len(rows) == DONE_ROWS:
        since, last_id = rows[-1].updated_at, rows[-1].request_id
    else:
        since, last_id = until, ""  # what succeeded at this very moment is met again
    conn.execute(update(sweeps).where(sweeps.c.name == name).values(cursor=f"{since!r} {last_id}", swept_at=at))
    return list(dict.fromkeys(row.event_id for row in rows))


def _place(conn: Connection, name: str, until: float) -> tuple[float, str]:
    """Return where a look stopped; one in the future counts for nothing, since the clock was set back."""
    conn.execute(insert_into(conn, sweeps).values(name=name, swept_at=0.0).on_conflict_do_nothing())
    cursor = conn.execute(select(sweeps.c.cursor).where(sweeps.c.name == name)).scalar_one()
    if cursor is None:
        return until - FIRST_LOOK_SECONDS, ""
    since, _, last_id = cursor.partition(" ")
    return (float(since), last_id) if float(since) <= until else (until, "")


def _walk(conn: Connection, at: float) -> list[str]:
    """Return the next open events by id, and remember how far the walk got."""
    conn.execute(insert_into(conn, sweeps).values(name=WALK, swept_at=0.0).on_conflict_do_nothing())
    cursor = conn.execute(select(sweeps.c.cursor).where(sweeps.c.name == WALK)).scalar_one() or ""
    window = select(events.c.event_id).where(text("state = 'open'"), events.c.event_id > cursor)
    found = conn.execute(window.order_by(events.c.event_id).limit(EVENT_ROWS)).scalars().all()
    follows = found[-1] if len(found) == EVENT_ROWS else ""
    conn.execute(update(sweeps).where(sweeps.c.name == WALK).values(cursor=follows, swept_at=at))
    return list(found)


def _ready(
    conn: Connection, event_ids: Iterable[str], accepted: Accepted, at: float
) -> Sequence[Row[Any, Any, Any, Any]]:
    """Return those events that are ready, in order, with when they were last woken and when their evidence last moved."""
    named = _named(event_ids)
    source = _source(conn)
    sites = conn.execute(
        select(events.c.site_id).join(source, source.c.id == events.c.event_id).distinct(), {"named": named}
    ).scalars()
    moved_at = select(func.max(evidence.c.updated_at)).where(evidence.c.event_id == events.c.event_id)
    ready = (
        select(
            events.c.event_id,
            events.c.created_at,
            events.c.last_woken_at,
            moved_at.scalar_subquery().label("ready_at"),
        )
        .where(
            events.c.event_id.in_(select(source.c.id)),
            is_ready(conn, accepted_source(conn), now=at),
            ~_waits_for_operator(clock(conn, at)),
        )
        .order_by(events.c.event_id)
    )
    digests = {site_id: accepted(site_id) for site_id in sites}
    return conn.execute(ready, {"named": named, ACCEPTED: accepted_rows(digests)}).all()


def _waits_for_operator(at: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition on `events` that a failed delivery is not followed by itself: no approval is newer."""
    newer = exists().where(
        plan_jobs.c.plan_id == events.c.plan_id,
        approvals.c.job_id == plan_jobs.c.job_id,
        approvals.c.approved_at >= deliveries.c.created_at,
        stands(at),
    )
    return (
        exists()
        .where(
            deliveries.c.event_id == events.c.event_id,
            deliveries.c.status == "failed",
            or_(
                deliveries.c.in_doubt.is_(True),
                deliveries.c.last_error_code == OUTCOME_UNKNOWN,
                ~newer.correlate(events, deliveries),
            ),
        )
        .correlate(events)
    )


def _is_long_ago(woken_at: float | None, at: float, seconds: float) -> bool:
    """Tell whether a stamp is older than so many seconds, or as far in the future: the clock was set back."""
    return woken_at is None or math.fabs(at - woken_at) >= seconds


def _source(conn: Connection) -> FromClause:
    return row_source(conn, "named", {"id": String}, "named")


def _named(ids: Iterable[str]) -> str:
    return json_rows([{"id": one} for one in ids])
