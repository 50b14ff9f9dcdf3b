"""What people watch is counted exactly while it is little, and up to a bound, along indexes, when it is very much."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert, text

from worker.domain.errors import Unavailable
from worker.store import gauges
from worker.store.engine import is_sqlite, reading
from worker.store.reader import open_reader
from worker.store.schema import (
    approvals,
    breakers,
    deliveries,
    events,
    evidence,
    limits,
    pauses,
    plan_jobs,
    rejections,
    release_runs,
    run_commands,
)

NOW = 1_000_000.0
LEASE = {"attempts": 0, "max_attempts": 5, "created_at": NOW, "updated_at": NOW}


def evidence_row(n: int, **values: Any) -> dict[str, Any]:
    """Return a row of its own event and job, due since `n` seconds."""
    whole = {
        "request_id": f"evidence-{n:06}",
        "event_id": f"event-{n}",
        "plan_id": f"plan-{n}",
        "job_id": f"job-{n}",
        "result_sha256": "a" * 64,
        "evidence_revision": "r1",
        "status": "pending",
        "next_attempt_at": NOW - n,
        "lease_expires_at": None,
        "last_error_code": None,
        "site_id": "site-1",
        "provider": "default",
        **LEASE,
    }
    return {**whole, **values}


def delivery_row(n: int, **values: Any) -> dict[str, Any]:
    """Return a prepared delivery, due since `n` seconds."""
    whole = {
        "delivery_id": f"delivery-{n:06}",
        "event_id": f"event-{n}",
        "site_id": "site-1",
        "source_id": f"source-{n}",
        "source_sequence": 1,
        "plan_id": f"plan-{n}",
        "payload": "{}",
        "payload_sha256": "a" * 64,
        "signature": "s",
        "kid": "k",
        "status": "pending",
        "next_attempt_at": NOW - n,
        "lease_expires_at": None,
        "last_error_code": None,
        "last_woken_at": None,
        "in_doubt": False,
        "lookups": 0,
        **LEASE,
    }
    return {**whole, **values}


def event_row(n: int, state: str) -> dict[str, Any]:
    return {
        "event_id": f"event-{n}",
        "site_id": "site-1",
        "website_version": "v1",
        "source_id": f"source-{n}",
        "source_sequence": 1,
        "plan_id": f"plan-{n}",
        "event_sha256": "a" * 64,
        "document": "{}",
        "state": state,
        "created_at": NOW,
        "updated_at": NOW,
    }


def approval_row(n: int, **values: Any) -> dict[str, Any]:
    whole = {
        "approval_id": f"approval-{n:06}",
        "job_id": f"job-{n}",
        "site_id": "site-1",
        "result_sha256": "a" * 64,
        "target_sha256": "a" * 64,
        "request_id": f"evidence-{n:06}",
        "policy_sha256": "a" * 64,
        "approved_at": NOW,
        "expires_at": NOW + 3600 + n,
        "revoked_at": None,
        "document": "{}",
        "signature": "s",
        "kid": "k",
    }
    return {**whole, **values}


def fill(engine: Engine, table: Any, rows: list[dict[str, Any]]) -> None:
    with engine.begin() as conn:
        conn.execute(insert(table), rows)


def test_due_work_by_queue_and_site(engine: Engine) -> None:
    """Rows that wait and are due, with the oldest time; not what is leased, over, or due later."""
    fill(
        engine,
        evidence,
        [
            *(evidence_row(n) for n in range(1, 4)),
            evidence_row(4, site_id="site-2", provider="lawyers", status="retry_wait"),
            evidence_row(5, site_id="site-2"),
            evidence_row(6, site_id="site-3", next_attempt_at=NOW + 1),
            evidence_row(7, status="leased", lease_expires_at=NOW + 1),
            evidence_row(8, status="succeeded"),
        ],
    )
    fill(
        engine, deliveries, [delivery_row(1), delivery_row(9, last_woken_at=NOW - 2), delivery_row(3, status="failed")]
    )
    command = {"attempt_id": "a", "run_id": "r", "step_id": "s", "site_id": "site-4", "status": "pending"}
    fill(engine, run_commands, [{**command, "next_attempt_at": NOW - 30, **LEASE}])
    with reading(engine) as conn:
        found, is_capped = gauges.due_work(conn, now=NOW)
    assert sorted((one.queue, one.site_id, one.rows, one.oldest_at) for one in found) == [
        ("delivery", "site-1", 2, NOW - 9),
        ("evidence", "site-1", 3, NOW - 3),
        ("evidence", "site-2", 1, NOW - 5),
        ("evidence", "site-2", 1, NOW - 4),
        ("runs", "site-4", 1, NOW - 30),
    ]
    assert not is_capped


def test_leases_live_and_expired(engine: Engine) -> None:
    """By queue, and by route for evidence; an expired one is one that nobody took away yet."""
    rows = [evidence_row(n, status="leased", lease_expires_at=NOW + n - 2) for n in range(1, 5)]
    fill(engine, evidence, [*rows, evidence_row(9, status="leased", lease_expires_at=NOW + 9, provider="lawyers")])
    fill(engine, deliveries, [delivery_row(1, status="leased", lease_expires_at=NOW - 1)])
    with reading(engine) as conn:
        found, _ = gauges.leases(conn, now=NOW)
    assert sorted((one.queue, one.route or "", one.live, one.expired) for one in found) == [
        ("delivery", "", 0, 1),
        ("evidence", "default", 2, 2),
        ("evidence", "lawyers", 1, 0),
    ]


def test_deliveries_by_state(engine: Engine) -> None:
    """What is over is not counted, but for an unknown outcome, which waits for a person."""
    fill(
        engine,
        deliveries,
        [
            delivery_row(1),
            delivery_row(2, status="retry_wait"),
            delivery_row(3, status="retry_wait", in_doubt=True),
            delivery_row(4, status="leased", in_doubt=True, lease_expires_at=NOW),
            delivery_row(5, status="failed", in_doubt=True, last_error_code="cms.outcome_unknown"),
            delivery_row(6, status="failed", last_error_code="superseded"),
            delivery_row(7, status="succeeded"),
        ],
    )
    with reading(engine) as conn:
        found = gauges.open_deliveries(conn)
    assert found.counts == {"prepared": 2, "in_doubt": 1, "sending": 1, "outcome_unknown": 1}
    assert not found.is_capped


def test_events_runs_and_rejections(engine: Engine) -> None:
    """Open events, runs by each status, and documents refused of late."""
    fill(engine, events, [event_row(1, "open"), event_row(2, "delivered"), event_row(3, "open")])
    statuses = ["running", "running", "attention", "completed"]
    fill(
        engine,
        release_runs,
        [{"run_id": f"r{n}", "document": b"{}", "record_digest": "d", "status": s} for n, s in enumerate(statuses)],
    )
    refused = {"size_bytes": 1, "message": "release.submit", "code": "submission.invalid", "path": "", "times": 3}
    fill(
        engine,
        rejections,
        [{**refused, "document_sha256": f"{n}", "first_at": 0.0, "last_at": NOW - 100 * n} for n in range(1, 5)],
    )
    with reading(engine) as conn:
        assert gauges.open_events(conn).counts == {"open": 2}
        runs = gauges.runs_by_status(conn).counts
        assert runs == {"planned": 0, "running": 2, "attention": 1, "blocked": 0, "completed": 1}
        assert gauges.recent_rejections(conn, now=NOW, within=250).counts == {"rejections": 2}


def test_approvals_that_end_within_a_day(engine: Engine) -> None:
    """Of an open event and of ended ones apart; not the revoked, the ended and the later ones."""
    fill(engine, events, [event_row(1, "open"), event_row(2, "delivered")])
    fill(engine, plan_jobs, [{"plan_id": f"plan-{n}", "job_id": f"job-{n}", "target_locale": "de"} for n in (1, 2)])
    fill(
        engine,
        approvals,
        [
            approval_row(1),
            approval_row(2),
            approval_row(3, job_id="job-1", revoked_at=NOW),
            approval_row(4, job_id="job-1", expires_at=NOW - 1),
            approval_row(5, job_id="job-1", expires_at=NOW + 86_401),
        ],
    )
    with reading(engine) as conn:
        assert gauges.expiring(conn, now=NOW).counts == {"open": 1, "ended": 1}


def test_what_holds_the_fleet_back(engine: Engine) -> None:
    """Pauses in force by scope, breakers by state (of routes by name), and waits of rates."""
    said = {"owner": "ops", "reason": "why", "paused_at": NOW - 9}
    fill(
        engine,
        pauses,
        [
            {"scope": "site", "name": "a", "until_at": None, **said},
            {"scope": "site", "name": "b", "until_at": NOW + 1, **said},
            {"scope": "all", "name": "", "until_at": NOW - 1, **said},
        ],
    )
    state = {"generation": 1, "pause_seconds": 5.0, "updated_at": NOW}
    fill(
        engine,
        breakers,
        [
            {"kind": "cms", "name": "site-1", "is_open": True, "failures": 5, **state},
            {"kind": "cms", "name": "site-2", "is_open": True, "failures": 5, **state},
            {"kind": "cms", "name": "site-3", "is_open": False, "failures": 0, **state},
            {"kind": "provider", "name": "lawyers", "is_open": False, "failures": 2, **state},
        ],
    )
    fill(engine, limits, [{"kind": "provider", "name": "lawyers", "next_call_at": NOW + 4}])
    with reading(engine) as conn:
        assert gauges.pauses_by_scope(conn, now=NOW) == {"site": 2}
        assert gauges.breaker_states(conn) == {
            ("cms", "", "open"): 2,
            ("cms", "", "closed"): 1,
            ("provider", "lawyers", "troubled"): 1,
        }
        assert gauges.rate_waits(conn, now=NOW) == {"lawyers": 4.0}


@pytest.fixture
def crowded(postgres_engine: Engine) -> Engine:
    """PostgreSQL with far more rows of everything than a count may read, and with statistics that say so."""
    with postgres_engine.begin() as conn:
        for table, row in (
            ("evidence", evidence_row(0)),
            ("deliveries", delivery_row(0)),
            ("approvals", approval_row(0)),
            ("events", event_row(0, "open")),
        ):
            given = {name: value for name, value in row.items() if value is not None}
            numbered = {"request_id", "event_id", "job_id", "plan_id", "delivery_id", "source_id", "approval_id"}
            values = [f"'{name}-' || n" if name in numbered else f":{name}" for name in given]
            conn.execute(
                text(
                    f"INSERT INTO {table} ({', '.join(given)}) SELECT {', '.join(values)} FROM generate_series(1, 6000) n"
                ),
                {name: value for name, value in given.items() if name not in numbered},
            )
        conn.execute(
            text(
                "UPDATE evidence SET site_id = 'site-' || (substr(request_id, 12)::int % 40), status = "
                "CASE WHEN substr(request_id, 12)::int % 2 = 0 THEN 'succeeded' ELSE status END"
            )
        )
    with postgres_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("ANALYZE evidence, deliveries, approvals, events"))
    return postgres_engine


def rows_read(plan: dict[str, Any]) -> int:
    """Return how many rows the tables and indexes of a plan gave or threw away, all loops together."""
    own = 0
    if "Relation Name" in plan:
        own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return int(own) + sum(rows_read(one) for one in plan.get("Plans", []))


def scans(plan: dict[str, Any]) -> Iterator[str]:
    """Yield the tables that a plan reads from one end to the other."""
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for one in plan.get("Plans", []):
        yield from scans(one)


def test_no_count_reads_more_than_its_bound(crowded: Engine) -> None:
    """With thousands of rows, each count stops at 50, says so, and reads no table from end to end."""
    most = 50
    asked: list[tuple[str, Any]] = []

    def look(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    event.listen(crowded, "before_cursor_execute", look)
    try:
        with reading(crowded) as conn:
            due, is_capped = gauges.due_work(conn, now=NOW + 1, most=most)
            counted = [
                gauges.open_events(conn, most=most),
                gauges.open_deliveries(conn, most=most),
                gauges.expiring(conn, now=NOW, most=most),
            ]
            gauges.leases(conn, now=NOW, most=most)
    finally:
        event.remove(crowded, "before_cursor_execute", look)
    assert is_capped
    assert sum(one.rows for one in due if one.queue == "evidence") <= 2 * most
    assert {one.site_id for one in due if one.queue == "evidence"} == {f"site-{n}" for n in range(1, 40, 2)}
    assert [(one.is_capped, sum(one.counts.values())) for one in counted] == [(True, most)] * 3
    with crowded.connect() as conn:
        for statement, parameters in asked:
            found = conn.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar_one()
            [whole] = json.loads(found) if isinstance(found, str) else found
            big = {"evidence", "deliveries", "approvals", "events", "plan_jobs"}
            assert not big & set(scans(whole["Plan"])), statement
            assert rows_read(whole["Plan"]) <= 6 * most, statement


def test_a_statement_that_takes_too_long_is_cut_off(engine: Engine) -> None:
    """The reader's own bound, on both databases; the next statement has its whole time again."""
    reader = open_reader(engine.url.render_as_string(hide_password=False), statement_seconds=0.2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    try:
        with pytest.raises(Unavailable) as refused, reading(reader) as conn:
            conn.execute(text(endless if is_sqlite(engine) else "SELECT pg_sleep(60)"))
        assert refused.value.code == "database.unavailable"
        with reading(reader) as conn:
            assert alive(conn)
    finally:
        reader.dispose()


def alive(conn: Connection) -> bool:
    return bool(conn.execute(text("SELECT count(*) = 0 FROM evidence")).scalar_one())
