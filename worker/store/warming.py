"""Running the statements that every locale needs once for no row at all, before the first locale waits for them.

Building and compiling them takes a fifth of a second, and PostgreSQL plans a statement anew until its connection knows
it. Nothing is read that matters, and nothing is changed.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, Engine

from worker.store.approvals import insert_approvals, insert_receipts
from worker.store.due_evidence import claim_none
from worker.store.engine import writing
from worker.store.event_plans import load_plan
from worker.store.readiness import ready_events
from worker.store.requests import load_requests
from worker.store.settlements import succeed_none
from worker.store.surveys import survey

NOBODY: Final = "nobody"  # no id of ours
UNTIL_PREPARED: Final = 2  # uses after which a connection keeps a statement prepared


def warm_up(engine: Engine) -> None:
    """Have one connection of the pool know the statements from a claim to a prepared delivery; raise `Unavailable`."""
    for _use in range(UNTIL_PREPARED):
        writing(engine, _run_all)


def _run_all(conn: Connection) -> None:
    claim_none(conn)
    load_requests(conn, [], now=None)
    survey(conn, {NOBODY: (NOBODY, NOBODY)}, now=None)
    succeed_none(conn)
    insert_receipts(conn, [])
    insert_approvals(conn, [])
    ready_events(conn, [], {}, now=None)
    load_plan(conn, NOBODY, now=None, with_texts=True)
