"""Step: count what a pruning would remove, and remove nothing."""

from __future__ import annotations

import sys
from collections import Counter

from sqlalchemy import Engine

from worker.domain.retention import COMMANDS, REJECTIONS, Retention
from worker.store.engine import reading
from worker.store.old_rows import count_commands, count_rejections
from worker.store.prunable import find_rows, prunable_events


def count_prunable(engine: Engine, wanted: Retention) -> Counter[str]:
    """Return how many rows would go, by kind; the ends of the attempts at them are not counted. Raises `Unavailable`."""
    total: Counter[str] = Counter()
    with reading(engine) as conn:
        total[REJECTIONS] = count_rejections(conn, wanted) if wanted.has(REJECTIONS) else 0
        total[COMMANDS] = count_commands(conn, wanted) if wanted.has(COMMANDS) else 0
    cursor, is_last = None, False
    while not is_last:
        with reading(engine) as conn:
            page = prunable_events(conn, wanted, cursor)
            found = find_rows(conn, wanted, page.event_ids, most_releases=sys.maxsize)
        for counts in found.counts().values():
            total.update(counts)
        cursor, is_last = page.cursor, page.cursor is None
    return +total
