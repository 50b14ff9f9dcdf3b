"""Due evidence rows of many sites and routes, each with an open event of its own."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, insert

from tests.store.rows import HASH
from worker.store.schema import events, evidence

NOW = 1_000_000.0


def put(engine: Engine, number: int, *, route: str, site_id: str, **changed: Any) -> None:
    """Insert due rows of one site on one route, each with an open event of its own."""
    names = [f"{route}-{site_id}-{n}" for n in range(number)]
    row = {
        "plan_id": "plan-1",
        "result_sha256": HASH,
        "evidence_revision": "r1",
        "status": "pending",
        "attempts": 0,
        "max_attempts": 5,
        "next_attempt_at": NOW - 100,
        "created_at": NOW - 100,
        "updated_at": NOW - 100,
        "site_id": site_id,
        "provider": route,
    }
    about = {"website_version": "v1", "source_sequence": 1, "plan_id": "plan-1", "event_sha256": HASH, "document": "{}"}
    since = {"state": "open", "created_at": 1.0, "updated_at": 1.0}
    with engine.begin() as conn:
        conn.execute(
            insert(evidence),
            [row | {"request_id": name, "event_id": name, "job_id": name} | changed for name in names],
        )
        conn.execute(
            insert(events),
            [about | since | {"event_id": name, "site_id": site_id, "source_id": name} for name in names],
        )
