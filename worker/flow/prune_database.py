"""Step: remove what is old and nobody needs, in bounded batches that can be stopped and taken up again.

It takes an engine in place of services: removing needs the database alone. Beside a fleet at work it holds no lock for
longer than a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from sqlalchemy import Connection, Engine

from worker.domain.retention import COMMANDS, REJECTIONS
from worker.store.engine import writing
from worker.store.old_rows import ROWS_AT_ONCE, remove_commands, remove_rejections
from worker.store.prunable import EVENTS_AT_ONCE, find_rows, lock_sources, prunable_events, remove_rows
from worker.store.prunings import Cursor, Pruning, advance, lock_pruning, record_events

Checkpoint = Callable[[str], None]
FIRST: Final[Cursor] = (0.0, "")  # before every event


def prune_database(
    engine: Engine,
    pruning: Pruning,
    *,
    now: float | None = None,
    progress: Callable[[Mapping[str, int]], None] = lambda _removed: None,
    checkpoint: Checkpoint = lambda _name: None,
    batch_events: int = EVENTS_AT_ONCE,
    batch_rows: int = ROWS_AT_ONCE,
) -> Pruning:
    """Remove all that a pruning is about, each batch with its record in one transaction; return how it ended.

    Stopped at any moment, it has removed whole batches, and goes on from there under the same id. Safe to run twice at
    once. One that has ended removes nothing more. Raises `Unavailable`.
    """
    pruning_id = pruning.pruning_id
    while pruning.ended_at is None:
        batch: Callable[..., Pruning] = partial(_of_events, most_events=batch_events, most_rows=batch_rows)
        if pruning.cursor is None:
            batch = _of_no_event
        pruning = writing(engine, partial(batch, pruning_id=pruning_id, now=now))
        checkpoint("prune.batch")
        progress(pruning.removed)
    return pruning


def _of_no_event(conn: Connection, *, pruning_id: str, now: float | None) -> Pruning:
    """Remove one batch of what belongs to no event, and return the pruning after it."""
    held = lock_pruning(conn, pruning_id)
    if held.ended_at is not None or held.cursor is not None:
        return held
    removed = {
        REJECTIONS: remove_rejections(conn, held.retention) if held.retention.has(REJECTIONS) else 0,
        COMMANDS: remove_commands(conn, held.retention) if held.retention.has(COMMANDS) else 0,
    }
    gone = {kind: count for kind, count in removed.items() if count}
    return advance(conn, held, gone, cursor=None if gone else FIRST, now=now)  # none are left: the events are next


def _of_events(conn: Connection, *, pruning_id: str, now: float | None, most_events: int, most_rows: int) -> Pruning:
    """Remove one batch of what hangs from events, and return the pruning after it."""
    held = lock_pruning(conn, pruning_id)
    if held.ended_at is not None:
        return held
    page = prunable_events(conn, held.retention, held.cursor, most=most_events)
    lock_sources(conn, page.event_ids)
    found = find_rows(conn, held.retention, page.event_ids, most_releases=most_rows)
    remove_rows(conn, found)
    counts = found.counts()
    record_events(conn, pruning_id, counts, now=now)
    total: Counter[str] = Counter()
    for of_event in counts.values():
        total.update(of_event)
    if not found.is_whole:
        return advance(conn, held, total, cursor=held.cursor, now=now)
    cursor = page.cursor or held.cursor
    return advance(conn, held, total, cursor=cursor, is_last=page.cursor is None, now=now)
