"""Due evidence that a sweep wakes, whatever else is due and held."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, delete, insert

from tests.store.due_rows import NOW, put
from worker.store.due import EVIDENCE_ROWS, stamp_due_evidence
from worker.store.engine import writing
from worker.store.schema import breakers, events, pauses


def sweep(engine: Engine, now: float, room: int = 9) -> list[str]:
    """Return the events that one look wakes."""
    found = writing(engine, lambda conn: stamp_due_evidence(conn, room=room, recovery_seconds=10.0, now=now))
    return [one["event_id"] for one in found.wakes]


@pytest.mark.parametrize("held_by", ["pause", "breaker", "no event"])
def test_what_is_held_hides_nothing_that_is_due_behind_it(engine: Engine, held_by: str) -> None:
    """More held rows than one look reads, all due for longer: the others are woken at once, and again after the bound.

    A route that is closed and may be tried is woken like them.
    """
    put(engine, EVIDENCE_ROWS + 1, route="held", site_id="site-a", next_attempt_at=NOW - 500)
    put(engine, 1, route="sound", site_id="site-b")
    put(engine, 1, route="tried", site_id="site-c")
    closed = {"kind": "provider", "is_open": True, "generation": 1, "failures": 5, "pause_seconds": 60.0}
    with engine.begin() as conn:
        conn.execute(insert(breakers).values(name="tried", open_until_at=NOW - 1, updated_at=NOW, **closed))
        if held_by == "pause":
            conn.execute(insert(pauses).values(scope="site", name="site-a", owner="o", reason="r", paused_at=NOW))
        elif held_by == "no event":
            conn.execute(delete(events).where(events.c.site_id == "site-a"))
        else:
            conn.execute(insert(breakers).values(name="held", open_until_at=NOW + 500, updated_at=NOW, **closed))
    both = ["sound-site-b-0", "tried-site-c-0"]
    assert sorted(sweep(engine, NOW)) == both
    assert sweep(engine, NOW + 2) == []
    assert sorted(sweep(engine, NOW + 10)) == both
    assert len(sweep(engine, NOW + 20, room=1)) == 1
