"""How soon work is found whose message was lost: the recovery bound, measured."""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import text

from tests.builders import change_event, results_for, submission
from tests.chaos.arena import Arena
from tests.chaos.plan import LOCALES, SITES
from worker.cli.local_fleet import wait_for
from worker.domain.hold import Pause
from worker.store.engine import reading, writing
from worker.store.pauses import pause, resume

SECONDS: Final = 120.0


def measure_bound(here: Arena, *, trials: int) -> list[float]:
    """Return how many seconds passed each time until a quiet fleet began with work that no message speaks of.

    An event is accepted while everything is paused, so its wake finds nothing to do; Redis is emptied, and the pause
    taken away without a word to anybody. The time runs from then until the first of its locales is claimed.
    """
    return [_trial(here, number) for number in range(trials)]


def _trial(here: Arena, number: int) -> float:
    engine = here.stage.engine
    event_id = f"bound-{number}"
    held = Pause(scope="all", name="", owner="chaos", reason="measuring", until_at=None)
    writing(engine, lambda conn: pause(conn, held, now=None))
    event = change_event(site_id=SITES[0], event_id=event_id, source_id=event_id, target_locales=LOCALES[:5])
    here.stage.submit(here.stage.sign(submission(event, results_for(event))))

    def rows(condition: str) -> int:
        statement = text(f"SELECT count(*) FROM evidence WHERE event_id = :event_id AND {condition}")
        with reading(engine) as conn:
            return int(conn.execute(statement, {"event_id": event_id}).scalar_one())

    wait_for(lambda: rows("status = 'pending'") == 5, None, "the event", SECONDS)
    client = here.fleet.broker_client()
    wait_for(lambda: client.hlen("unacked") == 0, None, "the end of its intake, which sends the wake", SECONDS)
    wait_for(lambda: client.llen("evidence") == client.hlen("unacked") == 0, None, "the wake", SECONDS)
    client.flushall()
    writing(engine, lambda conn: resume(conn, "all", "", now=None))
    began = time.monotonic()
    wait_for(lambda: rows("status <> 'pending'") > 0, None, "the claim", SECONDS)
    found = time.monotonic() - began
    wait_for(lambda: rows("status = 'succeeded'") == 5, None, "the approvals", SECONDS)
    return found
