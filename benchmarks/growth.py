"""Part `growth`: claims, sweep, listing and status on databases of very different size, each asked in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from sqlalchemy import Engine

from benchmarks.our_services import services_on
from benchmarks.rounds import summary
from benchmarks.servers import Servers
from benchmarks.sides import Kept
from worker.domain.policy import SitePolicy
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.due_evidence import claim_due
from worker.store.engine import open_engine, reading
from worker.store.event_lists import list_events
from worker.store.schema_version import migrate
from worker.store.views import find_event_view

LOCALES: Final = 24
SITES: Final = 10
BATCH: Final = 50
ROOM: Final = 20  # wakes of one sweep, so that small and large have the same to do
STILL_DUE: Final = 1000  # rows due beside those that are done
GIVEN_BACK: Final = """
UPDATE evidence SET status = 'pending', attempts = 0, lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL,
    next_attempt_at = created_at WHERE status = 'leased'
"""
HASH: Final = "encode(sha256((%s)::text::bytea), 'hex')"
EVENTS: Final = f"""
INSERT INTO events (event_id, site_id, website_version, source_id, source_sequence, plan_id, event_sha256, document, state,
    created_at, updated_at)
SELECT 'event-' || i, 'site-' || i %% {SITES}, '2026.11', 'text-' || i, 1, 'plan-' || i, {HASH % "i"}, '{{}}', %(event)s,
    %(at)s + i * 0.001, %(at)s + i * 0.001
FROM generate_series(%(first)s::int, %(last)s::int) AS i
"""
JOBS: Final = f"""
INSERT INTO jobs (job_id, site_id, target_locale, current_result_sha256, created_at, updated_at)
SELECT 'job-' || i || '-' || k, 'site-' || i %% {SITES}, 'l' || k, {HASH % "i || '-' || k"}, %(at)s, %(at)s
FROM generate_series(%(first)s::int, %(last)s::int) AS i, generate_series(1, {LOCALES}) AS k
"""
PLANS: Final = f"""
INSERT INTO plan_jobs (plan_id, job_id, target_locale)
SELECT 'plan-' || i, 'job-' || i || '-' || k, 'l' || k
FROM generate_series(%(first)s::int, %(last)s::int) AS i, generate_series(1, {LOCALES}) AS k
"""
ROWS: Final = f"""
INSERT INTO evidence (request_id, event_id, plan_id, job_id, result_sha256, evidence_revision, status, attempts,
    max_attempts, next_attempt_at, created_at, updated_at, site_id, provider)
SELECT 'evidence-' || i || '-' || k, 'event-' || i, 'plan-' || i, 'job-' || i || '-' || k, {HASH % "i || '-' || k"}, 'r1',
    %(status)s, %(attempts)s, 5, %(at)s + i * 0.001, %(at)s + i * 0.001, %(at)s, 'site-' || i %% {SITES}, 'default'
FROM generate_series(%(first)s::int, %(last)s::int) AS i, generate_series(1, {LOCALES}) AS k
"""
APPROVALS: Final = f"""
INSERT INTO approvals (approval_id, job_id, site_id, result_sha256, target_sha256, request_id, policy_sha256, approved_at,
    expires_at, document, signature, kid)
SELECT 'approval-' || i || '-' || k, 'job-' || i || '-' || k, 'site-' || i %% {SITES}, {HASH % "i || '-' || k"},
    {HASH % "i"}, 'evidence-' || i || '-' || k, %(policy)s, %(at)s, %(at)s + 2592000, '{{}}', 'a..b', 'approval-1'
FROM generate_series(%(first)s::int, %(last)s::int) AS i, generate_series(1, {LOCALES}) AS k
"""
DELIVERIES: Final = f"""
INSERT INTO deliveries (delivery_id, event_id, site_id, source_id, source_sequence, plan_id, payload, payload_sha256,
    signature, kid, status, attempts, max_attempts, next_attempt_at, created_at, updated_at, in_doubt, lookups,
    acknowledged_at)
SELECT 'delivery-' || i, 'event-' || i, 'site-' || i %% {SITES}, 'text-' || i, 1, 'plan-' || i, '{{}}', {HASH % "i"},
    'a..b', 'publication-1', 'succeeded', 1, 5, %(at)s, %(at)s, %(at)s, false, 0, %(at)s
FROM generate_series(%(first)s::int, %(last)s::int) AS i
"""


def growth(
    servers: Servers, *, sizes: Sequence[int], repeats: int, kinds: Sequence[str] = ("due", "done")
) -> dict[str, Any]:
    """Return milliseconds of each question by kind of rows (`due`, `done`) and number of evidence rows."""
    names = {(kind, size): f"grown_{kind}_{size}" for kind in kinds for size in sizes}
    engines: dict[tuple[str, int], Engine] = {}
    try:
        for (kind, size), name in names.items():
            servers.create_database(name)
            engines[kind, size] = open_engine(servers.url(name).replace("postgresql://", "postgresql+psycopg://"))
            migrate(engines[kind, size])
            fill(servers.url(name), kind, size)
        asked = {key: questions(servers, engine, servers.url(names[key])) for key, engine in engines.items()}
        times: dict[tuple[str, str, int], list[float]] = {}
        for number in range(repeats + 1):  # the first is not counted: plans and pages are made
            for (kind, size), each in asked.items():
                for question, ask in each.items():
                    seconds = ask()
                    if number:
                        times.setdefault((question, kind, size), []).append(1000 * seconds)
    finally:
        for engine in engines.values():
            engine.dispose()
        for name in names.values():
            servers.drop_database(name)
    return {
        question: {kind: {str(size): summary(times[question, kind, size]) for size in sizes} for kind in kinds}
        for question in ("claim", "sweep", "list", "status")
    }


def fill(url: str, kind: str, size: int) -> None:
    """Write so many evidence rows with their events, plans and jobs: all due, or all done and some more due."""
    policy = SitePolicy(publication="guided").sha256
    events = max(1, size // LOCALES)
    with psycopg.connect(url, autocommit=True) as conn:
        at = time.time() - 86_400
        done = {"event": "delivered", "status": "succeeded", "attempts": 1}
        due = {"event": "open", "status": "pending", "attempts": 0}
        parts = (
            [(due, 1, events)]
            if kind == "due"
            else [(done, 1, events), (due, events + 1, events + STILL_DUE // LOCALES)]
        )
        for state, first, last in parts:
            given = {**state, "first": first, "last": last, "at": at, "policy": policy}
            for statement in (EVENTS, JOBS, PLANS, ROWS, *((APPROVALS, DELIVERIES) if state is done else ())):
                cursor = psycopg.ClientCursor(conn)
                cursor.execute(statement.encode(), given)
        conn.execute("VACUUM ANALYZE")


def questions(servers: Servers, engine: Engine, url: str) -> dict[str, Callable[[], float]]:
    """Return what is asked of one database; each returns the seconds it took and leaves the rows as they were."""
    services = services_on(engine, servers.keys, Kept())
    accepted = services.policies.for_site("").accepted
    conn = psycopg.connect(url, autocommit=True)

    def claim() -> float:
        began = time.perf_counter()
        rows = claim_due(engine, worker_id="bench", limit=BATCH, lease_seconds=300)
        seconds = time.perf_counter() - began
        conn.execute(GIVEN_BACK)
        if len(rows) != BATCH:
            raise SystemExit(f"benchmarks: {len(rows)} rows claimed, expected {BATCH}")
        return seconds

    def sweep() -> float:
        began = time.perf_counter()
        swept = sweep_fleet(services, room=ROOM, visits_room=0, interval_seconds=0.0, recovery_seconds=0.0)
        seconds = time.perf_counter() - began
        if not swept.collects:
            raise SystemExit("benchmarks: the sweep found nothing")
        return seconds

    def listing() -> float:
        began = time.perf_counter()
        with reading(engine) as reader:
            lines = list_events(reader, limit=BATCH)
        seconds = time.perf_counter() - began
        if not lines:
            raise SystemExit("benchmarks: the list is empty")
        return seconds

    def status() -> float:
        began = time.perf_counter()
        with reading(engine) as reader:
            view = find_event_view(reader, "event-7", accepted=accepted, is_guided=True)
        if view is None:
            raise SystemExit("benchmarks: the event is not there")
        return time.perf_counter() - began

    return {"claim": claim, "sweep": sweep, "list": listing, "status": status}
