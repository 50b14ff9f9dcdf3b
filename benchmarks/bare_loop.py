"""The limit: the same work as a bare claim loop on PostgreSQL. No broker, no re-verification, nothing recovered.

`python -m benchmarks.bare_loop lockstep` claims 50, waits for all, settles 50. `flow` keeps 128 calls open, claims into
free places and settles what finished within 2 ms of each other.
"""

from __future__ import annotations

import sys
import time
import uuid
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Final

import psycopg

from benchmarks.answers import Reviewer
from benchmarks.peer_documents import LEASE_SECONDS, Approval, Notary, connect

IDLE_SECONDS: Final = 0.002
COMPANY_SECONDS: Final = 0.002
CLAIM: Final = f"""
WITH picked AS (
    SELECT request_id FROM work WHERE state = 'pending' AND attempts < max_attempts
    ORDER BY position LIMIT %s FOR UPDATE SKIP LOCKED
)
UPDATE work SET state = 'leased', attempts = attempts + 1, owner = %s, token = gen_random_uuid()::text,
    expires_at = clock_timestamp() + interval '{LEASE_SECONDS} seconds'
FROM picked WHERE work.request_id = picked.request_id
RETURNING work.request_id, work.event_id, work.document, work.token
"""
SETTLE: Final = """
WITH ended AS (
    UPDATE work SET state = 'succeeded', owner = NULL, token = NULL, expires_at = NULL
    FROM unnest(%s::text[], %s::text[]) AS e (request_id, token)
    WHERE work.request_id = e.request_id AND work.token = e.token AND work.state = 'leased'
        AND work.expires_at > clock_timestamp()
    RETURNING work.request_id
)
INSERT INTO approvals
SELECT a.* FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::text[])
    AS a (approval_id, request_id, event_id, locale, document, signature, receipt)
JOIN ended ON ended.request_id = a.request_id
"""
READY: Final = """
SELECT a.event_id, a.locale, a.approval_id, w.document::json ->> 'target_text'
FROM approvals a JOIN work w ON w.request_id = a.request_id
WHERE a.event_id = ANY (%s) AND NOT EXISTS (SELECT FROM deliveries d WHERE d.event_id = a.event_id)
    AND NOT EXISTS (SELECT FROM work o WHERE o.event_id = a.event_id AND o.state <> 'succeeded')
"""
DELIVER: Final = """
INSERT INTO deliveries (event_id, delivery_id, payload, signature)
SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) ON CONFLICT DO NOTHING
"""
Row = tuple[Any, ...]


def main(places: int, batch: int, *, lockstep: bool) -> None:
    """Claim, call, settle and deliver until the process is stopped."""
    conn, notary, reviewer, owner = connect(), Notary(), Reviewer(), str(uuid.uuid4())
    pool = ThreadPoolExecutor(places)
    waiting: dict[Future[Approval], str] = {}  # the lease's token by open call

    def call(row: Row) -> Approval:
        request_id, event_id, document, _ = row
        return notary.approve(request_id, event_id, document, reviewer.review(request_id, document))

    while True:
        free = min(batch, places - len(waiting))
        rows: list[Row] = []
        if free and not (lockstep and waiting):
            rows = conn.execute(CLAIM, (free, owner)).fetchall()
        waiting |= {pool.submit(call, row): row[3] for row in rows}
        if not waiting:
            time.sleep(IDLE_SECONDS)
            continue
        done, _ = wait(waiting, return_when="ALL_COMPLETED" if lockstep else FIRST_COMPLETED)
        if not lockstep and len(done) < len(waiting):
            time.sleep(COMPANY_SECONDS)
            done = {future for future in waiting if future.done()}
        settle(conn, notary, [(future.result(), waiting.pop(future)) for future in done])


def settle(conn: psycopg.Connection[Row], notary: Notary, ended: list[tuple[Approval, str]]) -> None:
    """Store approvals under their leases in one transaction, and deliver the events that became ready."""
    approvals = sorted((one for one, _ in ended), key=lambda one: one.request_id)
    ids = [one.request_id for one, _ in ended]
    columns = [list(column) for column in zip(*(one[:7] for one in approvals), strict=True)]
    conn.execute(SETTLE, (ids, [token for _, token in ended], *columns))
    events: dict[str, list[tuple[str, str, str]]] = {}
    for event_id, *entry in conn.execute(READY, ([*{one.event_id for one in approvals}],)).fetchall():
        events.setdefault(event_id, []).append((entry[0], entry[1], entry[2]))
    if events:
        made = [notary.publish(event_id, locales) for event_id, locales in sorted(events.items())]
        conn.execute(DELIVER, [list(column) for column in zip(*made, strict=True)])


if __name__ == "__main__":
    if sys.argv[1] == "flow":
        main(128, 128, lockstep=False)
    main(50, 50, lockstep=True)
