"""Prunings as rows: each removal on whose word, of what, how far it has come and how much is gone. Removes nothing.

A pruning holds its own row's lock while it removes a batch. One that was stopped is taken up again under its id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, insert, select, update

from worker.domain.retention import Retention
from worker.store.engine import clock, read_clock
from worker.store.operator_requests import once
from worker.store.schema import pruned_events, prunings

Cursor = tuple[float, str]


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """One pruning. `cursor` is the last event it has looked at; `ended_at` is None while it can be taken up again."""

    pruning_id: str
    owner: str
    retention: Retention
    removed: Mapping[str, int]
    cursor: Cursor | None
    started_at: float
    updated_at: float
    ended_at: float | None


def begin_pruning(
    conn: Connection, pruning_id: str, owner: str, wanted: Retention, *, age_seconds: float, now: float | None
) -> Pruning:
    """Begin a pruning, or take up the one of this id; its first word about what is old enough stays.

    Raises `operator.request_id.collision` where the id was used for anything else.
    """
    kept = {"kinds": ",".join(wanted.kinds), "states": ",".join(wanted.states), "site_id": wanted.site_id}

    def work() -> dict[str, str]:
        at = read_clock(conn, now)
        row = {"pruning_id": pruning_id, "owner": owner, "before_at": wanted.before_at, "removed": "{}", **kept}
        conn.execute(insert(prunings).values(**row, started_at=at, updated_at=at))
        return {"pruning_id": pruning_id}

    once(conn, pruning_id, "prune", {**kept, "age_seconds": age_seconds}, work, now=now)
    return lock_pruning(conn, pruning_id)


def lock_pruning(conn: Connection, pruning_id: str) -> Pruning:
    """Return a pruning that was begun, with its row locked until the transaction ends."""
    row = conn.execute(select(prunings).where(prunings.c.pruning_id == pruning_id).with_for_update()).mappings().one()
    return _pruning(row)


def wait_for_batches(conn: Connection) -> None:
    """Wait for every batch that is being removed, and let none begin until the transaction ends."""
    going = select(prunings.c.pruning_id).where(prunings.c.ended_at.is_(None)).order_by(prunings.c.pruning_id)
    conn.execute(going.with_for_update()).all()


def advance(
    conn: Connection,
    pruning: Pruning,
    removed: Mapping[str, int],
    *,
    cursor: Cursor | None,
    is_last: bool = False,
    now: float | None,
) -> Pruning:
    """Count what a batch removed, in its transaction, and return the pruning as it stands then. Needs its lock."""
    total = {kind: pruning.removed.get(kind, 0) + removed.get(kind, 0) for kind in {**pruning.removed, **removed}}
    at = read_clock(conn, now)
    cursor_at, cursor_id = cursor or (None, None)
    said = {"removed": json.dumps(total, sort_keys=True), "cursor_at": cursor_at, "cursor_id": cursor_id}
    conn.execute(
        update(prunings)
        .where(prunings.c.pruning_id == pruning.pruning_id)
        .values(**said, updated_at=at, ended_at=at if is_last else None)
    )
    return lock_pruning(conn, pruning.pruning_id)


def record_events(
    conn: Connection, pruning_id: str, removed: Mapping[str, Mapping[str, int]], *, now: float | None
) -> None:
    """Keep what was removed of each event, by kind. Rows of the same pruning and event add up."""
    before = {
        row.event_id: json.loads(row.removed)
        for row in conn.execute(
            select(pruned_events.c.event_id, pruned_events.c.removed).where(
                pruned_events.c.pruning_id == pruning_id, pruned_events.c.event_id.in_(sorted(removed))
            )
        )
    }
    for event_id, counts in sorted(removed.items()):
        earlier = before.get(event_id, {})
        total = {kind: earlier.get(kind, 0) + counts.get(kind, 0) for kind in {**earlier, **counts}}
        is_it = (pruned_events.c.pruning_id == pruning_id, pruned_events.c.event_id == event_id)
        said = {"removed": json.dumps(total, sort_keys=True), "pruned_at": clock(conn, now)}
        if event_id in before:
            conn.execute(update(pruned_events).where(*is_it).values(**said))
        else:
            conn.execute(insert(pruned_events).values(pruning_id=pruning_id, event_id=event_id, **said))


def list_prunings(conn: Connection, *, limit: int) -> tuple[Pruning, ...]:
    """Return the newest prunings, newest first."""
    newest = select(prunings).order_by(prunings.c.started_at.desc(), prunings.c.pruning_id.desc()).limit(limit)
    return tuple(_pruning(row) for row in conn.execute(newest).mappings())


def _pruning(row: RowMapping) -> Pruning:
    return Pruning(
        pruning_id=row["pruning_id"],
        owner=row["owner"],
        retention=Retention(
            before_at=row["before_at"],
            kinds=tuple(row["kinds"].split(",")),
            states=tuple(row["states"].split(",")),
            site_id=row["site_id"],
        ),
        removed=json.loads(row["removed"]),
        cursor=None if row["cursor_id"] is None else (row["cursor_at"], row["cursor_id"]),
        started_at=row["started_at"],
        updated_at=row["updated_at"],
        ended_at=row["ended_at"],
    )
