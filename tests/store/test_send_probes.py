"""Which delivery tries a closed CMS: the one with the fewest attempts, found without reading what was delivered."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, insert, text

from tests.store.due_rows import NOW
from tests.store.plans import rows_read
from tests.store.rows import HASH
from worker.domain.turn import Promise, Wait
from worker.store.engine import writing
from worker.store.schema import breakers, deliveries
from worker.store.send_probes import find_gate
from worker.store.standings import Terms

MANY = 6000
TERMS = Terms(
    delivery_id="mine-0",
    site_id="site-1",
    source_id="mine-0",
    approval_ids=(),
    approvals_code=None,
    worker_id="w-1",
    lease_seconds=300.0,
    send_seconds=30.0,
    is_guided=False,
    promise=Promise(has_lookup=True, is_idempotent=False),
    jitter=0.0,
)


def put(engine: Engine, name: str, number: int = 1, **changed: Any) -> None:
    """Insert deliveries of a site whose CMS is closed; due and unsent, where nothing else is said."""
    row = {
        "site_id": "site-1",
        "source_sequence": 1,
        "plan_id": "plan-1",
        "payload": "{}",
        "payload_sha256": HASH,
        "signature": "s",
        "kid": "k",
        "status": "retry_wait",
        "attempts": 2,
        "max_attempts": 5,
        "next_attempt_at": NOW - 100,
        "created_at": NOW - 100,
        "updated_at": NOW - 100,
        "in_doubt": False,
        "lookups": 0,
    }
    names = [f"{name}-{n}" for n in range(number)]
    with engine.begin() as conn:
        conn.execute(
            insert(deliveries),
            [row | {"delivery_id": one, "event_id": one, "source_id": one} | changed for one in names],
        )


def close(engine: Engine) -> None:
    """Let the breaker of the site's CMS be open, and its time be over."""
    state = {"is_open": True, "generation": 3, "failures": 5, "pause_seconds": 60.0, "open_until_at": NOW - 1}
    with engine.begin() as conn:
        conn.execute(insert(breakers).values(kind="cms", name="site-1", updated_at=NOW - 60, **state))


def gate(conn: Connection) -> int | bool | Wait:
    return find_gate(conn, TERMS, attempts=2, now=NOW)


def test_a_send_gives_way_to_a_look_up_and_to_fewer_attempts(engine: Engine) -> None:
    """To one of the same site alone; where there is none, it tries the CMS itself."""
    close(engine)
    put(engine, "mine")
    put(engine, "other", site_id="site-2", attempts=0)
    assert writing(engine, gate) == 3
    put(engine, "fewer", attempts=1)
    assert writing(engine, gate) == Wait(reason="breaker", first="fewer-0")
    put(engine, "doubt", in_doubt=True, sent_at=NOW - 50, doubt_since_at=NOW - 50)
    assert writing(engine, gate) == Wait(reason="breaker")


def test_what_was_delivered_costs_nothing(postgres_engine: Engine) -> None:
    """With thousands of deliveries that ended, a few rows are read to find who tries the CMS."""
    close(postgres_engine)
    put(postgres_engine, "done", MANY, status="succeeded", attempts=1)
    put(postgres_engine, "mine")
    put(postgres_engine, "fewer", attempts=1)
    with postgres_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("ANALYZE deliveries, breakers"))
    for begins in ("SELECT EXISTS", "WITH"):
        assert rows_read(postgres_engine, gate, begins=begins) < MANY / 100
