"""Readiness: an event is ready when every job of its plan is approved and no delivery speaks for it; not before."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, delete, insert, update

from tests.builders import NOW
from worker.store.engine import reading, writing
from worker.store.readiness import ready_events
from worker.store.schema import approvals, deliveries, events, jobs, plan_jobs

ACCEPTED = {"site-1": frozenset({"p" * 64, "q" * 64}), "site-2": frozenset({"z" * 64})}


def put(engine: Engine, table: Any, **values: Any) -> None:
    """Insert one row by hand."""
    writing(engine, lambda conn: conn.execute(insert(table).values(**values)))


def put_event(engine: Engine, event_id: str, *job_ids: str, state: str = "open") -> None:
    """Insert an event whose plan has these jobs."""
    put(
        engine,
        events,
        event_id=event_id,
        site_id="site-1",
        website_version="1",
        source_id=event_id,
        source_sequence=1,
        plan_id=f"plan-{event_id}",
        event_sha256="0" * 64,
        document="{}",
        state=state,
        created_at=NOW,
        updated_at=NOW,
    )
    for job_id in job_ids:
        put(engine, plan_jobs, plan_id=f"plan-{event_id}", job_id=job_id, target_locale=job_id)


def put_job(engine: Engine, job_id: str, *, result: str | None = "r") -> None:
    """Insert a job with a current result."""
    times = {"created_at": NOW, "updated_at": NOW}
    put(engine, jobs, job_id=job_id, site_id="site-1", target_locale=job_id, current_result_sha256=result, **times)


def put_approval(engine: Engine, job_id: str, **changes: Any) -> None:
    """Insert an approval of a job's result that stands, unless changed."""
    row = {
        "approval_id": f"approval-{job_id}",
        "job_id": job_id,
        "site_id": "site-1",
        "result_sha256": "r",
        "target_sha256": "t",
        "request_id": f"evidence-{job_id}",
        "policy_sha256": "p" * 64,
        "approved_at": NOW,
        "expires_at": NOW + 10,
        "document": "{}",
        "signature": "a..b",
        "kid": "k",
    }
    put(engine, approvals, **row | changes)


def put_delivery(engine: Engine, event_id: str, status: str) -> None:
    """Insert a delivery of an event."""
    put(
        engine,
        deliveries,
        delivery_id=f"delivery-{event_id}",
        event_id=event_id,
        site_id="site-1",
        source_id="s",
        source_sequence=1,
        plan_id="p",
        payload="{}",
        payload_sha256="0" * 64,
        signature="a..b",
        kid="k",
        status=status,
        attempts=0,
        max_attempts=5,
        next_attempt_at=NOW,
        created_at=NOW,
        updated_at=NOW,
        in_doubt=False,
        lookups=0,
    )


def ready(engine: Engine, *job_ids: str, now: float | None = NOW, accepted: Any = None) -> tuple[str, ...]:
    """Return the ready events of these jobs."""
    with reading(engine) as conn:
        return ready_events(conn, job_ids, ACCEPTED if accepted is None else accepted, now=now)


@pytest.fixture
def event(engine: Engine) -> str:
    """An event with two approved jobs: ready, until a test takes something away."""
    put_event(engine, "event-1", "a", "b")
    for job_id in ("a", "b"):
        put_job(engine, job_id)
        put_approval(engine, job_id)
    return "event-1"


@pytest.mark.usefixtures("event")
def test_event_is_ready_by_any_of_its_jobs(engine: Engine) -> None:
    """Each job of a ready event leads to it, once, and jobs of no plan lead nowhere."""
    assert ready(engine, "a") == ready(engine, "b") == ready(engine, "a", "b", "unknown") == ("event-1",)
    assert ready(engine, "unknown") == ready(engine) == ()


@pytest.mark.usefixtures("event")
def test_every_event_that_shares_the_job_is_found(engine: Engine) -> None:
    """All events whose plans contain the job are told in order of their ids, but those that lack another job."""
    put_event(engine, "event-0", "a")
    put_event(engine, "event-2", "b", "a")
    put_event(engine, "event-3", "a", "c")
    put_job(engine, "c")
    assert ready(engine, "a") == ("event-0", "event-1", "event-2")
    assert ready(engine, "b") == ("event-1", "event-2")
    assert ready(engine, "c") == ()


@pytest.mark.parametrize("state", ["delivered", "superseded", "withdrawn"])
@pytest.mark.usefixtures("event")
def test_ended_event_is_not_ready(engine: Engine, state: str) -> None:
    """Only an open event is ever ready."""
    writing(engine, lambda conn: conn.execute(update(events).values(state=state)))
    assert ready(engine, "a") == ()


@pytest.mark.parametrize(
    ("status", "is_ready"),
    [("pending", False), ("leased", False), ("retry_wait", False), ("succeeded", False), ("failed", True)],
)
@pytest.mark.usefixtures("event")
def test_delivery_speaks_for_its_event(engine: Engine, status: str, is_ready: bool) -> None:
    """An open or acknowledged delivery makes its event unready; a failed one does not, nor one of another event."""
    put_event(engine, "event-2", "x")
    put_delivery(engine, "event-2", "pending")
    put_delivery(engine, "event-1", status)
    assert ready(engine, "a") == (("event-1",) if is_ready else ())


@pytest.mark.parametrize(
    "changes",
    [
        {"expires_at": NOW},
        {"revoked_at": NOW - 5},
        {"result_sha256": "old"},
        {"policy_sha256": "z" * 64},
        {"site_id": "site-2"},
        {"job_id": "other"},
    ],
)
@pytest.mark.usefixtures("event")
def test_job_needs_a_current_approval(engine: Engine, changes: dict[str, Any]) -> None:
    """Expired, revoked, of another result, or under terms the site does not accept: the event is not ready."""
    writing(engine, lambda conn: conn.execute(update(approvals).where(approvals.c.job_id == "b").values(**changes)))
    assert ready(engine, "a", "b") == ()
    put_approval(engine, "b", approval_id="approval-2", request_id="evidence-2", policy_sha256="q" * 64)
    assert ready(engine, "a", "b") == ("event-1",)


@pytest.mark.parametrize("result", [None, "newer"])
@pytest.mark.usefixtures("event")
def test_approval_must_be_of_the_current_result(engine: Engine, result: str | None) -> None:
    """A job whose result was replaced, or is gone, is not approved by what was said of the old one."""
    writing(
        engine, lambda conn: conn.execute(update(jobs).where(jobs.c.job_id == "a").values(current_result_sha256=result))
    )
    assert ready(engine, "b") == ()


@pytest.mark.usefixtures("event")
def test_plan_without_its_jobs_is_never_ready(engine: Engine) -> None:
    """A missing job row, or an event whose plan is gone, is not "nothing lacks"."""
    writing(engine, lambda conn: conn.execute(delete(jobs).where(jobs.c.job_id == "a")))
    assert ready(engine, "b") == ()


@pytest.mark.usefixtures("event")
def test_site_without_a_policy_is_never_ready(engine: Engine) -> None:
    """Events of a site that the caller does not name are not ready."""
    assert ready(engine, "a", accepted={"site-2": frozenset({"p" * 64})}) == ()
    assert ready(engine, "a", accepted={}) == ()


@pytest.mark.usefixtures("event")
def test_database_clock_judges_expiry(engine: Engine) -> None:
    """Without a fixed time the database's own clock says whether the approvals have expired."""
    assert ready(engine, "a", now=None) == ("event-1",)
    writing(engine, lambda conn: conn.execute(update(approvals).values(expires_at=1_000.0)))
    assert ready(engine, "a", now=None) == ()
