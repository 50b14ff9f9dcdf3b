"""The row that tries a closed review route: found among the longest due of each site, at no cost that grows with the rest."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, insert, text

from tests.store.due_rows import NOW, put
from tests.store.plans import rows_read
from worker.domain.policy import EvidenceLeases
from worker.store.due_evidence import claim_due
from worker.store.engine import writing
from worker.store.evidence_probes import probe
from worker.store.schema import breakers

MANY = 6000


def close(engine: Engine, route: str) -> None:
    """Let a route's breaker be open, and its time be over."""
    state = {"is_open": True, "generation": 1, "failures": 5, "pause_seconds": 60.0, "open_until_at": NOW - 1}
    with engine.begin() as conn:
        conn.execute(insert(breakers).values(kind="provider", name=route, updated_at=NOW - 60, **state))


def try_route(conn: Connection, route: str, blocked_sites: tuple[str, ...] = ()) -> list[str]:
    """Return the request that is leased to try a route, if one is."""
    leases = EvidenceLeases(default_seconds=300.0, by_site={})
    taken = probe(conn, route, worker_id="w-1", leases=leases, probe_seconds=60.0, blocked_sites=blocked_sites, now=NOW)
    return [row["request_id"] for row, _ in taken]


def test_the_fewest_attempts_of_all_sites_try_a_route(engine: Engine) -> None:
    """However old the rows of another site are; a site that may not be asked gives none, nor does another route."""
    put(engine, 3, route="closed", site_id="site-a", attempts=2, next_attempt_at=NOW - 500)
    put(engine, 1, route="closed", site_id="site-b", attempts=1)
    put(engine, 1, route="closed", site_id="site-c")
    put(engine, 1, route="sound", site_id="site-d")
    close(engine, "closed")
    assert writing(engine, lambda conn: try_route(conn, "closed", ("site-c",))) == ["closed-site-b-0"]
    assert writing(engine, lambda conn: try_route(conn, "closed")) == []  # the permit is given


def test_a_route_without_work_keeps_no_other_from_being_tried(engine: Engine) -> None:
    """With one place alone, the route that has something due is tried, whatever the names of those that have nothing."""
    put(engine, 1, route="closed", site_id="site-a")
    close(engine, "a-idle")
    close(engine, "closed")
    (taken,) = claim_due(engine, worker_id="w-1", limit=1, lease_seconds=300, now=NOW)
    assert (taken.key.request_id, taken.permit is None) == ("closed-site-a-0", False)


def test_trying_a_route_reads_nothing_of_the_others(postgres_engine: Engine) -> None:
    """With thousands of rows that ended, and thousands due on another route, a few are read, whether one is due or none."""
    put(postgres_engine, MANY, route="sound", site_id="site-a")
    put(postgres_engine, MANY, route="closed", site_id="site-a", status="succeeded")
    close(postgres_engine, "closed")
    close(postgres_engine, "idle")
    put(postgres_engine, 1, route="closed", site_id="site-b")
    with postgres_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.execute(text("ANALYZE evidence, events, breakers"))
    assert read_by(postgres_engine, "idle") < MANY / 100
    assert read_by(postgres_engine, "closed") < MANY / 100


def read_by(engine: Engine, route: str) -> float:
    """Return how many rows the attempt to lease a row reads."""
    return rows_read(engine, lambda conn: try_route(conn, route), begins="WITH")
