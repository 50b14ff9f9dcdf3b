"""Bounds on open calls hold with any number of workers, on both databases; and no site starves another."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select, update

from tests.builders import NOW
from tests.store.rows import HASH
from worker.domain.attempt import LEASED
from worker.domain.limits import UNBOUNDED, FleetLimits, Room, room_left
from worker.store.due_evidence import ClaimedRow, claim_due
from worker.store.due_groups import seconds_to_refill
from worker.store.engine import open_engine, reading, writing
from worker.store.schema import events, evidence, limits

BOUNDS = FleetLimits(routes={"lab": 7}, sites={"big": 5, "free": None}, other_sites=3)


def put(engine: Engine, counts: dict[tuple[str, str], int]) -> None:
    """Store that many due rows of each (site, route), all of one open event a site."""
    lease = {"status": "pending", "attempts": 0, "max_attempts": 5, "created_at": NOW - 60, "updated_at": NOW - 60}
    rows: list[dict[str, Any]] = [
        {
            "request_id": f"e-{site}-{route}-{n}",
            "event_id": f"event-{site}",
            "plan_id": "plan-1",
            "job_id": f"job-{site}-{route}-{n}",
            "result_sha256": HASH,
            "evidence_revision": "r1",
            "next_attempt_at": NOW - 60 + n / 1000,
            "site_id": site,
            "provider": route,
            **lease,
        }
        for (site, route), count in counts.items()
        for n in range(count)
    ]
    opened = [
        {
            "event_id": f"event-{site}",
            "site_id": site,
            "website_version": "v1",
            "source_id": "home",
            "source_sequence": 1,
            "plan_id": "plan-1",
            "event_sha256": HASH,
            "document": "{}",
            "state": "open",
            "created_at": NOW - 60,
            "updated_at": NOW - 60,
        }
        for site in sorted({site for site, _ in counts})
    ]
    with engine.begin() as conn:
        conn.execute(insert(events), opened)
        conn.execute(insert(evidence), rows)


def claim(engine: Engine, limit: int, bounds: FleetLimits | None = BOUNDS, now: float = NOW) -> list[ClaimedRow]:
    return claim_due(engine, worker_id="w-1", limit=limit, lease_seconds=300.0, now=now, limits=bounds)


def finish(engine: Engine, rows: list[ClaimedRow]) -> None:
    """End these leases as a success would."""
    gone = {"status": "succeeded", "lease_owner": None, "lease_token": None, "lease_expires_at": None}
    ids = [row.key.request_id for row in rows]
    writing(engine, lambda conn: conn.execute(update(evidence).where(evidence.c.request_id.in_(ids)).values(**gone)))


def test_a_claim_takes_no_more_than_there_is_room_for(engine: Engine) -> None:
    """Route, named site and other sites each keep their bound; a site without one is bound by its route alone."""
    put(engine, {("big", "lab"): 20, ("small", "lab"): 20, ("free", "own"): 20})
    first = claim(engine, 50)
    taken = Counter((row.site_id, row.provider) for row in first)
    assert taken["free", "own"] == 20
    assert taken["small", "lab"] + taken["big", "lab"] == 7
    assert taken["small", "lab"] == 3
    assert claim(engine, 50) == []
    finish(engine, [row for row in first if row.site_id == "small"][:2])
    assert [row.site_id for row in claim(engine, 50)].count("small") <= 2


def test_a_row_that_waits_for_room_holds_nothing(engine: Engine) -> None:
    """No lease and no attempt; and a bound that is lifted lets it go at once."""
    put(engine, {("big", "lab"): 20})
    assert len(claim(engine, 50)) == 5
    with reading(engine) as conn:
        waiting = conn.execute(
            select(func.sum(evidence.c.attempts), func.count()).where(evidence.c.status == "pending")
        ).one()
    assert tuple(waiting) == (0, 15)
    assert len(claim(engine, 50, bounds=FleetLimits(sites={"big": 9}))) == 4
    assert len(claim(engine, 50, bounds=FleetLimits())) == 11


def test_a_lease_that_ran_out_makes_room(engine: Engine) -> None:
    """Only live leases are counted."""
    put(engine, {("big", "lab"): 20})
    assert len(claim(engine, 50)) == 5
    assert claim(engine, 50, now=NOW + 299.0) == []
    assert len(claim(engine, 50, now=NOW + 300.0)) == 5


@pytest.mark.timeout(120)
def test_racing_workers_never_go_above_the_bounds(engine: Engine) -> None:
    """Four threads on each of two engines claim and finish 120 rows; after every claim the leases are within bounds."""
    put(engine, {("big", "lab"): 60, ("small", "lab"): 60})
    other = open_engine(engine.url)
    seen: list[dict[str, int]] = []
    faults: list[BaseException] = []
    done = threading.Semaphore(0)

    def work(mine: Engine, name: str) -> None:
        try:
            for _ in range(200):
                rows = claim_due(mine, worker_id=name, limit=4, lease_seconds=300.0, now=NOW, limits=BOUNDS)
                with reading(mine) as conn:
                    live = select(evidence.c.site_id, func.count()).where(evidence.c.status == LEASED)
                    seen.append(dict(conn.execute(live.group_by(evidence.c.site_id)).all()))  # type: ignore[arg-type]
                finish(mine, rows)
                if not rows and not _left(mine):
                    return
        except BaseException as fault:
            faults.append(fault)
        finally:
            done.release()

    threads = [
        threading.Thread(target=work, args=(mine, f"w-{n}-{m}"))
        for m, mine in enumerate((engine, other))
        for n in range(4)
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        other.dispose()
    assert faults == []
    assert max(counts.get("big", 0) for counts in seen) <= 5
    assert max(counts.get("small", 0) for counts in seen) <= 3
    assert max(sum(counts.values()) for counts in seen) <= 7
    assert _left(engine) == 0


def _left(engine: Engine) -> int:
    with reading(engine) as conn:
        return int(conn.execute(select(func.count()).where(evidence.c.status == "pending")).scalar_one())


def test_without_bounds_no_lock_is_made(engine: Engine) -> None:
    """A fleet that bounds nothing pays nothing: no row, no further statement."""
    put(engine, {("big", "lab"): 3})
    assert len(claim(engine, 50, bounds=FleetLimits(sites={"big": None}))) == 3
    with reading(engine) as conn:
        assert conn.execute(select(limits)).all() == []


def test_a_rate_is_never_passed(engine: Engine) -> None:
    """Four a second: four at once, one each quarter of a second after, and never more than a second's worth saved."""
    put(engine, {("big", "lab"): 40, ("big", "own"): 2})
    bounds = FleetLimits(rates={"lab": 4.0})
    taken = [
        Counter(row.provider for row in claim(engine, 50, bounds, now=NOW + seconds))
        for seconds in (0.0, 0.1, 0.25, 0.7, 0.75, 60.0, 60.0)
    ]
    assert [count["lab"] for count in taken] == [4, 0, 1, 1, 1, 4, 0]
    assert sum(count["own"] for count in taken) == 2


def test_a_rate_below_one_a_second(engine: Engine) -> None:
    """One in ten seconds."""
    put(engine, {("big", "lab"): 5})
    bounds = FleetLimits(rates={"lab": 0.1})
    taken = [len(claim(engine, 50, bounds, now=NOW + seconds)) for seconds in (0.0, 9.9, 10.0, 19.0, 100.0)]
    assert taken == [1, 0, 1, 0, 1]


@pytest.mark.timeout(60)
def test_racing_workers_share_one_rate(engine: Engine) -> None:
    """Eight threads on two engines at the same moment begin four calls together."""
    put(engine, {("big", "lab"): 40})
    other = open_engine(engine.url)
    begun: list[int] = []

    def work(mine: Engine) -> None:
        begun.extend(len(claim(mine, 3, FleetLimits(rates={"lab": 4.0}))) for _ in range(5))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in (engine, other) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.dispose()
    assert (len(begun), sum(begun)) == (40, 4)


def test_the_room_that_is_left() -> None:
    """Counted by route and by site, never below none."""
    assert room_left(BOUNDS, [("big", "lab", 4), ("small", "own", 5), ("free", "lab", 9)]) == Room(
        routes={"lab": 0}, sites={"big": 1, "small": 0, "free": UNBOUNDED}, other_sites=3
    )


def test_a_flood_of_one_site_does_not_delay_another(engine: Engine) -> None:
    """10,000 due locales of A, all due before the one of B: B is in the very next claim, whatever A has open."""
    put(engine, {("a", "lab"): 10_000})
    assert len(claim(engine, 10, bounds=None)) == 10
    put(engine, {("b", "lab"): 1})
    order = [row.site_id for _ in range(5) for row in claim(engine, 10, bounds=None)]
    waits = {"b": order.index("b") + 1, "a": order.index("a") + 1}
    assert waits == {"b": 1, "a": 2}  # in claims of rows: the first of all
    assert order.count("b") == 1
    assert len(order) == 50


def test_a_rate_of_each_site_is_never_passed(engine: Engine) -> None:
    """A named site has its own; every other site has the default's for itself, also where no row was made for it yet."""
    put(engine, {("big", "lab"): 30, ("small", "lab"): 30, ("tiny", "own"): 30})
    bounds = FleetLimits(site_rates={"big": 4.0}, other_sites_rate=2.0)
    taken = [
        Counter(row.site_id for row in claim(engine, 50, bounds, now=NOW + seconds))
        for seconds in (0.0, 0.1, 0.25, 0.5, 60.0)
    ]
    assert [count["big"] for count in taken] == [4, 0, 1, 1, 4]
    assert [count["small"] for count in taken] == [2, 0, 0, 1, 2]
    assert [count["tiny"] for count in taken] == [2, 0, 0, 1, 2]


def test_how_long_a_rate_keeps_due_rows_back(engine: Engine) -> None:
    """Until the first group that only waits for a rate may begin; not at all where nothing due waits for one."""
    bounds = FleetLimits(rates={"lab": 4.0}, site_rates={"big": 10.0}, other_sites_rate=None)
    put(engine, {("big", "lab"): 6, ("small", "own"): 2})
    with reading(engine) as conn:
        assert seconds_to_refill(conn, bounds, now=NOW) is None
    claim(engine, 50, bounds)
    with reading(engine) as conn:
        assert seconds_to_refill(conn, bounds, now=NOW) == pytest.approx(0.25, abs=1e-5)
        assert seconds_to_refill(conn, bounds, now=NOW + 0.2) == pytest.approx(0.05, abs=1e-5)
    assert len(claim(engine, 50, bounds, now=NOW + 0.25)) == 1
    assert len(claim(engine, 50, bounds, now=NOW + 9.0)) == 1
    with reading(engine) as conn:
        assert seconds_to_refill(conn, bounds, now=NOW + 9.0) is None


@pytest.mark.timeout(60)
def test_racing_workers_share_the_rate_of_a_site(engine: Engine) -> None:
    """Eight threads on two engines, and a site that the policy does not name: four calls begin together."""
    put(engine, {("big", "lab"): 40})
    other = open_engine(engine.url)
    begun: list[int] = []

    def work(mine: Engine) -> None:
        begun.extend(len(claim(mine, 3, FleetLimits(other_sites_rate=4.0))) for _ in range(5))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in (engine, other) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.dispose()
    assert (len(begun), sum(begun)) == (40, 4)
