"""Step: announce that this worker ends, so that what it leaves open is no sign of poison."""

from __future__ import annotations

from worker.flow.services import Services
from worker.store import drains
from worker.store.engine import writing


def announce_drain(services: Services) -> bool:
    """Keep in the database that this worker takes nothing more; false when it had said so before.

    Raises `Unavailable`; saying it later is as good, as long as no lease of this worker has run out.
    """
    within = services.quarantine.within_seconds
    return writing(
        services.engine,
        lambda conn: drains.announce_drain(conn, services.worker_id, now=services.now(), within_seconds=within),
    )
