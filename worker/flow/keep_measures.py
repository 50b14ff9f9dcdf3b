"""Step: add what this process counted and timed to what the fleet did, every few seconds, off the way of the work."""

from __future__ import annotations

from worker.domain.errors import Unavailable
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.measures import add_measures


def keep_measures(services: Services) -> int:
    """Add the counts to the database and return how many series they were; nothing is written for none.

    Raises `Unavailable` with the counts still in memory, for the next time. Safe to run twice at once: each takes its
    own. A commit whose answer was lost is counted twice.
    """
    counts = services.meters.take()
    if not counts:
        return 0
    try:
        writing(services.engine, lambda conn: add_measures(conn, counts))
    except Unavailable:
        services.meters.give_back(counts)
        raise
    return len(counts)
