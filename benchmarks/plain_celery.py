"""The bar: the same work in plain Celery on Redis with hand-written SQL. No leases recovered, nothing verified again.

`celery -A benchmarks.plain_celery worker`. Two ways, both started by messages alone: `review`, one task per locale,
straightforward; `review_event`, one task per event around batched SQL and a pool of threads for the provider's calls.
"""

from __future__ import annotations

import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from celery import Celery

from benchmarks.answers import Reviewer
from benchmarks.peer_documents import LEASE_SECONDS, Approval, Notary, connect

app = Celery("plain", broker=os.environ.get("BENCH_BROKER"))
app.conf.update(
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=4,
    worker_send_task_events=False,
    worker_disable_rate_limits=True,
    task_default_queue=os.environ.get("BENCH_QUEUE", "plain"),
)
CLAIM_ONE: Final = f"""
UPDATE work SET state = 'leased', attempts = attempts + 1, owner = %s, token = gen_random_uuid()::text,
    expires_at = clock_timestamp() + interval '{LEASE_SECONDS} seconds'
WHERE request_id = %s AND state = 'pending' AND attempts < max_attempts
RETURNING event_id, document, token
"""
SETTLE_ONE: Final = """
UPDATE work SET state = 'succeeded', owner = NULL, token = NULL, expires_at = NULL
WHERE request_id = %s AND token = %s AND state = 'leased' AND expires_at > clock_timestamp()
"""
APPROVE_ONE: Final = """
INSERT INTO approvals (approval_id, request_id, event_id, locale, document, signature, receipt)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
OPEN: Final = "SELECT count(*) FROM work WHERE event_id = %s AND state <> 'succeeded'"
TEXTS: Final = """
SELECT a.locale, a.approval_id, w.document::json ->> 'target_text'
FROM approvals a JOIN work w ON w.request_id = a.request_id WHERE a.event_id = %s
"""
DELIVER: Final = """
INSERT INTO deliveries (event_id, delivery_id, payload, signature) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
CLAIM_EVENT: Final = f"""
UPDATE work SET state = 'leased', attempts = attempts + 1, owner = %s, token = gen_random_uuid()::text,
    expires_at = clock_timestamp() + interval '{LEASE_SECONDS} seconds'
WHERE event_id = %s AND state = 'pending' AND attempts < max_attempts
RETURNING request_id, event_id, document, token
"""
SETTLE_EVENT: Final = """
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
RETURNING locale
"""
Row = tuple[Any, ...]


@dataclass
class Kit:
    """What a process works with; made by its first task, so that no connection crosses a fork."""

    notary: Notary = field(default_factory=Notary)
    reviewer: Reviewer = field(default_factory=Reviewer)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(128))
    owner: str = field(default_factory=lambda: str(uuid.uuid4()))
    local: threading.local = field(default_factory=threading.local)

    def conn(self) -> psycopg.Connection[Row]:
        """Return the connection of this thread."""
        if not hasattr(self.local, "conn"):
            self.local.conn = connect()
        conn: psycopg.Connection[Row] = self.local.conn
        return conn

    def approve(self, row: Row) -> Approval:
        """Ask the reviewer about one row and return its signed approval."""
        request_id, event_id, document = row[:3]
        return self.notary.approve(request_id, event_id, document, self.reviewer.review(request_id, document))


_kits: dict[int, Kit] = {}
_making = threading.Lock()


def kit() -> Kit:
    """Return the kit of this process."""
    with _making:
        if os.getpid() not in _kits:
            _kits[os.getpid()] = Kit()
        return _kits[os.getpid()]


@app.task  # type: ignore[untyped-decorator]
def review(request_id: str) -> None:
    """Lease, ask, approve and settle one locale; the last of an event makes its delivery."""
    here = kit()
    conn = here.conn()
    leased = conn.execute(CLAIM_ONE, (here.owner, request_id)).fetchone()
    if leased is None:
        return
    event_id, document, token = leased
    approval = here.approve((request_id, event_id, document))
    with conn.transaction():
        if conn.execute(SETTLE_ONE, (request_id, token)).rowcount:
            conn.execute(APPROVE_ONE, approval[:7])
    if conn.execute(OPEN, (event_id,)).fetchone() == (0,):
        texts = [(row[0], row[1], row[2]) for row in conn.execute(TEXTS, (event_id,)).fetchall()]
        conn.execute(DELIVER, here.notary.publish(event_id, texts))


@app.task  # type: ignore[untyped-decorator]
def review_event(event_id: str) -> None:
    """Lease all locales of an event at once, ask for all at once, and store approvals and delivery in one transaction."""
    here = kit()
    conn = here.conn()
    rows = conn.execute(CLAIM_EVENT, (here.owner, event_id)).fetchall()
    if not rows:
        return
    tokens = {row[0]: row[3] for row in rows}
    approvals = sorted(here.pool.map(here.approve, rows), key=lambda one: one.request_id)
    ids = [one.request_id for one in approvals]
    columns = [list(column) for column in zip(*(one[:7] for one in approvals), strict=True)]
    delivery = here.notary.publish(event_id, [(one.locale, one.approval_id, one.text) for one in approvals])
    with conn.transaction():
        stored = conn.execute(SETTLE_EVENT, (ids, [tokens[one] for one in ids], *columns)).fetchall()
        if len(stored) == len(rows):  # one task holds all rows of its event
            conn.execute(DELIVER, delivery)
