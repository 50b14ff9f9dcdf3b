"""Lists of events on both databases: every filter, pages that join, and a bound on what one statement looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, insert, text

from tests.builders import NOW
from tests.fakes import counting
from worker.store.engine import is_sqlite, reading, writing
from worker.store.event_lists import WINDOW, EventFilter, list_events
from worker.store.schema import deliveries, events, evidence, plan_jobs

EVENTS = 2 * WINDOW + 10


def row(number: int, **changes: Any) -> dict[str, Any]:
    """Return an event that came `number` seconds after the first."""
    return {
        "event_id": f"e-{number:05}",
        "site_id": "site-1",
        "website_version": "1",
        "source_id": f"s-{number}",
        "source_sequence": 1,
        "plan_id": f"p-{number}",
        "event_sha256": "0" * 64,
        "document": "{}",
        "state": "delivered",
        "created_at": NOW + number,
        "updated_at": NOW + number,
        **changes,
    }


@pytest.fixture
def full(engine: Engine) -> Engine:
    """More events than two statements look at; the oldest are of another site, open, in other locales."""

    def work(conn: Connection) -> None:
        rare = {3: {"site_id": "rare"}, 4: {"state": "open"}, 5: {"website_version": "rare"}}
        conn.execute(insert(events), [row(number, **rare.get(number, {})) for number in range(EVENTS)])
        planned = [{"plan_id": f"p-{one}", "job_id": f"j-{one}", "target_locale": "de"} for one in (6, 7, EVENTS - 1)]
        conn.execute(insert(plan_jobs), planned)
        lease = {
            "attempts": 1, "max_attempts": 5, "next_attempt_at": 1.0, "created_at": 1.0, "updated_at": 1.0,
            "status": "failed",
        }  # fmt: skip
        asked = {
            "request_id": "r-1", "event_id": "e-00008", "plan_id": "p", "job_id": "j", "result_sha256": "0" * 64,
            "evidence_revision": "1", "last_error_code": "evidence.rare",
        }  # fmt: skip
        conn.execute(insert(evidence).values(**lease, **asked))
        sent = {
            "delivery_id": "d-1", "event_id": "e-00009", "site_id": "site-1", "source_id": "s", "source_sequence": 1,
            "plan_id": "p", "payload": "{}", "payload_sha256": "0" * 64, "signature": "", "kid": "k", "in_doubt": False,
            "lookups": 0, "last_error_code": "cms.rare",
        }  # fmt: skip
        conn.execute(insert(deliveries).values(**lease, **sent))

    writing(engine, work)
    return engine


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (EventFilter(site_id="rare"), [3]),
        (EventFilter(state="open"), [4]),
        (EventFilter(website_version="rare"), [5]),
        (EventFilter(target_locale="de"), [EVENTS - 1, 7, 6]),
        (EventFilter(target_locale="de", most_age_seconds=100.0), [EVENTS - 1]),
        (EventFilter(target_locale="de", least_age_seconds=100.0), [7, 6]),
        (EventFilter(code="evidence.rare"), [8]),
        (EventFilter(code="cms.rare"), [9]),
        (EventFilter(code="cms.rare", site_id="rare"), []),
        (EventFilter(state="gone"), []),
    ],
)
def test_each_filter_finds_its_events_however_few(full: Engine, wanted: EventFilter, expected: list[int]) -> None:
    """Newest first, in no more statements than there are windows, and one that completes what was found."""
    with reading(full) as conn, counting(full) as counted:
        found = list_events(conn, wanted, limit=50, now=NOW + EVENTS)
    assert [one.event_id for one in found] == [f"e-{number:05}" for number in expected]
    assert len(counted.statements) <= EVENTS // WINDOW + 1 + 1


def test_pages_of_a_filter_join(full: Engine) -> None:
    """Without gap or repeat, also where a page ends within a window."""
    wanted, seen, before = EventFilter(state="delivered", most_age_seconds=120.0), [], None
    with reading(full) as conn:
        while page := list_events(conn, wanted, limit=50, before=before, now=NOW + EVENTS):
            seen += [one.event_id for one in page]
            before = (page[-1].created_at, page[-1].event_id)
    assert seen == [f"e-{number:05}" for number in reversed(range(EVENTS - 120, EVENTS))]


def test_the_walk_uses_its_index(full: Engine) -> None:
    """No statement reads the table of events through, or sorts it."""
    asked: list[tuple[str, Any]] = []
    listener: Callable[..., None] = lambda _c, _cu, sql, parameters, *_: asked.append((sql, parameters))  # noqa: E731
    event.listen(full, "before_cursor_execute", listener)
    with reading(full) as conn:
        list_events(conn, EventFilter(code="cms.rare"), limit=5, before=(NOW + 100.0, "e-00100"), now=NOW)
        list_events(conn, limit=5, before=(NOW + 100.0, "e-00100"), now=NOW)
    event.remove(full, "before_cursor_execute", listener)
    assert len(asked) == 4
    for sql, parameters in asked[::2]:  # those between complete what was found, by its ids
        said = plan(full, sql, parameters)
        assert "events_by_creation" in said, said
        assert "Seq Scan on events" not in said, said


def plan(engine: Engine, sql: str, parameters: Any) -> str:
    """Return how the database would execute a statement, if reading a table through were very dear."""

    def work(conn: Connection) -> str:
        if not is_sqlite(engine):
            conn.execute(text("SET LOCAL enable_seqscan = off"))
        how = "EXPLAIN QUERY PLAN " if is_sqlite(engine) else "EXPLAIN "
        return "".join(f"{found[-1]}\n" for found in conn.exec_driver_sql(how + sql, parameters))

    return writing(engine, work)
