"""Sweeping: whatever is expired, due or ready is found without any message, once, fairly, and within bounds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table, delete, insert, update

from tests.builders import NOW, Keyring, change_event
from tests.delivery_builders import approve, approved_event, submit
from tests.fakes import Checkpoints, Crash, FixedPolicies, RecordingQueue
from worker.domain.policy import SitePolicy
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.services import Services
from worker.flow.sweep_fleet import Swept, sweep_fleet
from worker.store.engine import reading, writing
from worker.store.recovery import read_recovery
from worker.store.schema import (
    approvals,
    deliveries,
    delivery_permits,
    events,
    evidence,
    setbacks,
    sweeps,
    unprepared_events,
)

Rows = Callable[[Table], list[dict[str, Any]]]
At = Callable[[float], Services]
LATER = NOW + 100
COLLECT, PREPARE, PUBLISH = "evidence.collect", "delivery.prepare", "delivery.publish"


def run(engine: Engine, *statements: Any) -> None:
    """Change rows behind the product's back."""

    def work(conn: Any) -> None:
        for statement in statements:
            conn.execute(statement)

    writing(engine, work)


def wakes(queue: RecordingQueue) -> list[tuple[str, str]]:
    """Return what was sent since the last time: (message, event id)."""
    return [(message, ids["event_id"]) for message, ids in queue.take()]


@pytest.fixture
def due(services: Services, keys: Keyring, queue: RecordingQueue) -> None:
    """An event with two due locales."""
    submit(services, keys, change_event())
    queue.take()


@pytest.fixture
def prepared(services: Services, keys: Keyring, queue: RecordingQueue, engine: Engine) -> None:
    """An event with a delivery that is due, and no evidence left."""
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    run(engine, delete(evidence))
    queue.take()


def test_a_sweep_takes_the_turn_of_an_interval(at: At, due: None, queue: RecordingQueue) -> None:
    """Another one within two seconds returns; at two seconds it is due again."""
    assert sweep_fleet(at(LATER)).is_turn is True
    queue.take()
    assert sweep_fleet(at(LATER + 1.9)) == Swept(is_turn=False)
    assert queue.take() == []
    assert sweep_fleet(at(LATER + 2)).is_turn is True


def test_due_evidence_is_woken_once_for_each_event_and_not_again_within_the_bound(
    at: At, due: None, queue: RecordingQueue, rows: Rows
) -> None:
    """Two due locales, one message; ten seconds later it counts as lost."""
    assert sweep_fleet(at(LATER)).collects == ("event-1",)
    assert wakes(queue) == [(COLLECT, "event-1")]
    assert {row["last_woken_at"] for row in rows(evidence)} == {LATER}
    assert sweep_fleet(at(LATER + 9.9)).collects == ()
    assert wakes(queue) == []
    assert sweep_fleet(at(LATER + 12)).collects == ("event-1",)
    assert wakes(queue) == [(COLLECT, "event-1")]


def test_a_clock_that_was_set_back_stops_no_sweep(at: At, due: None, queue: RecordingQueue) -> None:
    """A turn and a wake far in the future count for nothing; those of a clock that differs a little still do."""
    assert sweep_fleet(at(LATER + 3600)).collects == ("event-1",)
    assert sweep_fleet(at(LATER + 3598)) == Swept(is_turn=False)
    queue.take()
    assert sweep_fleet(at(LATER)).collects == ("event-1",)
    assert wakes(queue) == [(COLLECT, "event-1")]


@pytest.mark.parametrize(
    "change",
    [
        update(evidence).values(next_attempt_at=LATER + 0.1),
        update(evidence).values(status="succeeded"),
        update(events).values(state="superseded"),
        update(events).values(state="withdrawn"),
    ],
)
def test_what_is_not_due_or_not_open_is_not_woken(
    at: At, due: None, engine: Engine, queue: RecordingQueue, change: Any
) -> None:
    """Nothing is sent for it."""
    run(engine, change)
    assert sweep_fleet(at(LATER)).collects == ()
    assert wakes(queue) == []


def test_evidence_of_an_event_with_a_delivery_is_not_woken(
    services: Services, keys: Keyring, at: At, queue: RecordingQueue
) -> None:
    """It is advanced by its delivery alone."""
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    queue.take()
    assert sweep_fleet(at(LATER)).collects == ()
    assert wakes(queue) == [(PUBLISH, "event-1")]


def test_a_ready_event_without_a_delivery_is_woken(
    services: Services, keys: Keyring, at: At, queue: RecordingQueue, engine: Engine
) -> None:
    """The collector died between its commit and its wake; the event is found all the same, once in the bound."""
    approved_event(services, keys)
    approved_event(services, keys, event_id="event-2", source_id="s-2", target_locales=["de"])
    submit(services, keys, change_event(event_id="event-3", source_id="s-3"))
    approve(services, keys, change_event(event_id="event-3", source_id="s-3"), locales=["de"])
    run(engine, delete(evidence))
    queue.take()
    assert sweep_fleet(at(LATER)).prepares == ("event-1", "event-2")
    assert wakes(queue) == [(PREPARE, "event-1"), (PREPARE, "event-2")]
    assert sweep_fleet(at(LATER + 9)).prepares == ()
    assert sweep_fleet(at(LATER + 11)).prepares == ("event-1", "event-2")


def test_expired_approvals_or_another_policy_make_no_event_ready(
    services: Services, keys: Keyring, at: At, policies: FixedPolicies
) -> None:
    """Readiness is asked of the site's current policy, now."""
    approved_event(services, keys)
    assert sweep_fleet(at(NOW + 2_592_000)).prepares == ()
    policies.policy = SitePolicy(approval_ttl_seconds=60)
    assert sweep_fleet(at(NOW + 2_592_002)).prepares == ()


@pytest.mark.parametrize(("code", "in_doubt"), [("cms.delivery.http_422", False), ("cms.outcome_unknown", True)])
def test_a_failed_delivery_is_not_followed_by_itself(
    services: Services,
    keys: Keyring,
    at: At,
    engine: Engine,
    prepared: None,
    code: str,
    *,
    in_doubt: bool,
) -> None:
    """Only approvals that are newer than a delivery which certainly is not live make the event ready again."""
    failed = {"status": "failed", "last_error_code": code, "in_doubt": in_doubt, "created_at": NOW + 1}
    run(engine, update(deliveries).values(**failed))
    assert sweep_fleet(at(LATER)).prepares == ()
    run(engine, update(approvals).values(revoked_at=NOW))
    approve(services, keys, change_event(), approved_at=NOW + 2, revision="r2")
    assert sweep_fleet(at(LATER + 2)).prepares == (() if in_doubt else ("event-1",))


def test_a_due_delivery_is_woken_and_not_again_within_the_bound(at: At, prepared: None, queue: RecordingQueue) -> None:
    """Preparing woke it, so the first ten seconds are the preparer's."""
    assert sweep_fleet(at(NOW + 9.9)).publishes == ()
    assert sweep_fleet(at(NOW + 12)).publishes == ("event-1",)
    assert wakes(queue) == [(PUBLISH, "event-1")]
    assert sweep_fleet(at(NOW + 21)).publishes == ()
    assert sweep_fleet(at(NOW + 23)).publishes == ("event-1",)


def test_a_guided_delivery_is_woken_only_under_a_permit_or_in_doubt(
    at: At, prepared: None, engine: Engine, policies: FixedPolicies, rows: Rows
) -> None:
    """Otherwise it waits for its release run, and takes no wake away from others."""
    policies.policy = SitePolicy(publication="guided")
    assert sweep_fleet(at(LATER)).publishes == ()
    run(engine, update(deliveries).values(in_doubt=True, last_woken_at=None))
    assert sweep_fleet(at(LATER + 2)).publishes == ("event-1",)
    (row,) = rows(deliveries)
    permit = {"delivery_id": row["delivery_id"], "run_id": "rr-1", "attempt_id": "a-1", "granted_at": NOW}
    run(
        engine,
        update(deliveries).values(in_doubt=False, last_woken_at=None),
        insert(delivery_permits).values(**permit),
    )
    assert sweep_fleet(at(LATER + 4)).publishes == ("event-1",)


def leased(**changes: Any) -> dict[str, Any]:
    """Return the columns of a row that a dead worker holds until `LATER`."""
    lease = {"status": "leased", "lease_owner": "w-dead", "lease_token": "f" * 64, "lease_expires_at": LATER}
    return lease | changes


def test_expired_leases_are_taken_away_and_woken(
    at: At, due: None, engine: Engine, rows: Rows, queue: RecordingQueue
) -> None:
    """At the very second; the attempt counts, and one that was the last fails the row (cases 51, 61)."""
    first, second = (row["request_id"] for row in rows(evidence))
    run(
        engine,
        update(evidence).where(evidence.c.request_id == first).values(**leased(attempts=1)),
        update(evidence).where(evidence.c.request_id == second).values(**leased(attempts=5)),
    )
    assert sweep_fleet(at(LATER - 0.1)).expired_evidence == 0
    swept = sweep_fleet(at(LATER + 2))
    assert (swept.expired_evidence, swept.collects) == (2, ("event-1",))
    found = {
        row["request_id"]: (row["status"], row["attempts"], row["last_error_code"], row["lease_token"])
        for row in rows(evidence)
    }
    assert found == {
        first: ("retry_wait", 1, "lease_expired", None),
        second: ("failed", 5, "lease_expired", None),
    }
    assert [(row["subject"], row["code"], row["lease_owner"]) for row in rows(setbacks)] == [
        ("evidence", "lease_expired", "w-dead"),
        ("evidence", "lease_expired", "w-dead"),
    ]


def test_an_expired_delivery_in_doubt_is_never_failed(
    at: At, prepared: None, engine: Engine, rows: Rows, queue: RecordingQueue
) -> None:
    """Even after its last attempt it is woken, to be looked up."""
    doubt = {"in_doubt": True, "sent_at": NOW, "doubt_since_at": NOW}
    run(engine, update(deliveries).values(**leased(attempts=5, **doubt)))
    swept = sweep_fleet(at(LATER))
    assert (swept.expired_deliveries, swept.publishes) == (1, ("event-1",))
    (row,) = rows(deliveries)
    assert (row["status"], row["in_doubt"], row["last_error_code"], row["next_attempt_at"]) == (
        "retry_wait",
        True,
        "lease_expired",
        LATER,
    )


def many_deliveries(engine: Engine, count: int, rows: Rows) -> None:
    """Put many copies of the one delivery beside it, all due."""
    (row,) = rows(deliveries)
    copies = [
        row | {"delivery_id": f"delivery-{n:04}", "event_id": f"event-{n:04}", "source_id": f"s-{n}"}
        for n in range(count)
    ]
    writing(engine, lambda conn: conn.execute(insert(deliveries), copies))


def test_many_due_deliveries_take_turns(
    at: At, prepared: None, engine: Engine, rows: Rows, queue: RecordingQueue
) -> None:
    """At most a third of the room each sweep, the longest waiting first, each once before any comes again."""
    many_deliveries(engine, 299, rows)
    seen: list[str] = []
    for sweep in range(5):
        swept = sweep_fleet(at(LATER + 2 * sweep))
        assert len(swept.publishes) == (66 if sweep < 4 else 36)
        seen += swept.publishes
    assert len(set(seen)) == len(seen) == 300
    assert len(wakes(queue)) == 300
    assert sweep_fleet(at(LATER + 10)).publishes == tuple(seen[:66])


def test_guided_deliveries_hold_nobody_up(
    at: At, prepared: None, engine: Engine, rows: Rows, policies: FixedPolicies
) -> None:
    """A thousand that wait for a release run stand before one that may go: it is woken in the next sweep."""
    many_deliveries(engine, 1000, rows)
    run(
        engine,
        update(deliveries).where(deliveries.c.event_id != "event-1").values(site_id="site-2", next_attempt_at=NOW - 9),
        update(deliveries).values(last_woken_at=None),
    )
    policies.sites = {"site-2": SitePolicy(publication="guided")}
    assert sweep_fleet(at(LATER)).publishes == ()
    assert sweep_fleet(at(LATER + 2)).publishes == ("event-1",)


@pytest.mark.parametrize(("room", "sent"), [(5, 5), (1, 1), (0, 0), (-3, 0), (10_000, 200)])
def test_no_more_wakes_than_the_queue_has_room_for(
    at: At, prepared: None, engine: Engine, rows: Rows, queue: RecordingQueue, room: int, sent: int
) -> None:
    """And at most two hundred, whatever there is."""
    (row,) = rows(deliveries)
    (event,) = rows(events)
    many_deliveries(engine, 80, rows)
    more = [
        event | {"event_id": f"e-{n:04}", "source_id": f"e-{n}", "source_sequence": n + 1, "plan_id": row["plan_id"]}
        for n in range(80)
    ]
    asked = {
        "plan_id": "p",
        "job_id": "j",
        "result_sha256": "0" * 64,
        "evidence_revision": "r1",
        "status": "pending",
        "attempts": 0,
        "max_attempts": 5,
        "next_attempt_at": NOW,
        "created_at": NOW,
        "updated_at": NOW,
    }
    waiting = [event | {"event_id": f"w-{n:04}", "source_id": f"w-{n}", "plan_id": "p"} for n in range(200)]
    evidence_rows = [asked | {"request_id": f"q-{n}", "event_id": f"w-{n:04}"} for n in range(200)]

    def fill(conn: Any) -> None:
        conn.execute(insert(events), more + waiting)
        conn.execute(insert(evidence), evidence_rows)

    writing(engine, fill)
    swept = sweep_fleet(at(LATER), room=room)
    assert len(queue.take()) == len(swept.prepares) + len(swept.publishes) + len(swept.collects) == sent
    if sent == 200:
        assert (len(swept.prepares), len(swept.publishes), len(swept.collects)) == (66, 66, 68)


def test_two_sweeps_at_once_wake_once(
    services: Services, at: At, due: None, prepared_other: None, queue: RecordingQueue
) -> None:
    """One of them takes the turn."""
    start = threading.Barrier(4)
    said: list[Swept] = []

    def sweep() -> None:
        start.wait()
        said.append(sweep_fleet(at(LATER)))

    threads = [threading.Thread(target=sweep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.is_turn for one in said) == [False, False, False, True]
    assert sorted(wakes(queue)) == [(PUBLISH, "event-2"), (COLLECT, "event-1")]


@pytest.fixture
def prepared_other(services: Services, keys: Keyring, queue: RecordingQueue) -> None:
    """Another event with a due delivery."""
    approved_event(services, keys, event_id="event-2", source_id="s-2", source_text="Other")
    prepare_delivery(services, "event-2")
    queue.take()


@pytest.mark.parametrize(
    "name", ["sweep.turn", "sweep.expired", f"sweep.{PREPARE}", f"sweep.{PUBLISH}", f"sweep.{COLLECT}"]
)
def test_a_sweep_that_dies_is_made_good_by_the_next_ones(
    at: At,
    due: None,
    prepared_other: None,
    checkpoints: Checkpoints,
    queue: RecordingQueue,
    rows: Rows,
    name: str,
) -> None:
    """Whatever it had stamped is found again after the bound; its turn ends with the interval (case 57)."""
    checkpoints.crash_at = name
    with pytest.raises(Crash):
        sweep_fleet(at(LATER))
    checkpoints.crash_at = None
    for seconds in (2, 4, 11, 13):
        sweep_fleet(at(LATER + seconds))
    assert {(COLLECT, "event-1"), (PUBLISH, "event-2")} <= set(wakes(queue))
    assert {row["swept_at"] for row in rows(sweeps)} == {LATER + 13}


def test_the_walk_over_open_events_goes_round(
    services: Services, keys: Keyring, at: At, engine: Engine, rows: Rows
) -> None:
    """More open events than one sweep looks at are looked at by the following ones, and then from the start."""
    approved_event(services, keys, event_id="m-1")
    (event,) = rows(events)
    for prefix in ("a", "z"):
        more = [
            event | {"event_id": f"{prefix}-{n:05}", "source_id": f"{prefix}-{n}", "plan_id": "unapproved"}
            for n in range(2000)
        ]
        writing(engine, lambda conn, more=more: conn.execute(insert(events), more))
    looks = []
    for n in range(8):
        looks.append(sweep_fleet(replace(services, now=lambda now=LATER + 2 * n: now)).prepares)
        run(engine, delete(unprepared_events))  # what keeps the walk's finds, so that only the walk is seen
    assert looks == [(), ("m-1",), (), (), (), (), (), ("m-1",)]


def many_open(engine: Engine, rows: Rows, count: int) -> None:
    """Put as many open events that are far from ready beside those there are, before and behind them by id."""
    event = rows(events)[0]
    for prefix in ("a", "z"):
        more = [
            event | {"event_id": f"{prefix}-{n:05}", "source_id": f"{prefix}-{n}", "plan_id": "unapproved"}
            for n in range(count // 2)
        ]
        writing(engine, lambda conn, more=more: conn.execute(insert(events), more))


def finish(engine: Engine, event_id: str, at: float) -> None:
    """Let the evidence of an event succeed, as its settle does."""
    done = {"status": "succeeded", "updated_at": at, "next_attempt_at": at}
    run(engine, update(evidence).where(evidence.c.event_id == event_id).values(**done))


def test_a_lost_prepare_is_found_at_once_among_many_open_events(
    services: Services, keys: Keyring, at: At, engine: Engine, rows: Rows, queue: RecordingQueue
) -> None:
    """The walk is rounds away from it, but its last row succeeded since the sweep before; and again after the bound."""
    approved_event(services, keys, event_id="m-1")
    many_open(engine, rows, 6000)
    sweep_fleet(at(LATER))
    queue.take()
    finish(engine, "m-1", LATER + 1)
    assert sweep_fleet(at(LATER + 2)).prepares == ("m-1",)
    assert [sweep_fleet(at(LATER + 2 + seconds)).prepares for seconds in (2, 4, 6, 8)] == [(), (), (), ()]
    assert sweep_fleet(at(LATER + 12)).prepares == ("m-1",)
    with reading(engine) as conn:
        recovery = read_recovery(conn, now=LATER + 13)
    assert (recovery.found_unwoken_seconds, recovery.sweep_wakes) == (10.0, 1)
    assert recovery.unwoken_seconds["event"] == 1.0
    prepare_delivery(at(LATER + 13), "m-1")
    queue.take()
    sweep_fleet(at(LATER + 24))
    assert rows(unprepared_events) == []
    assert wakes(queue) == [(PUBLISH, "m-1")]


def test_a_row_that_committed_late_is_met_by_the_second_look(
    services: Services, keys: Keyring, at: At, engine: Engine, rows: Rows
) -> None:
    """It succeeded before the last look and became visible after it: found within a minute, wherever the walk is."""
    approved_event(services, keys, event_id="m-1")
    many_open(engine, rows, 200)
    run(engine, update(events).where(events.c.event_id == "m-1").values(state="withdrawn"))  # out of every look's sight
    for seconds in range(0, 20, 2):
        sweep_fleet(at(LATER + seconds))
    finish(engine, "m-1", LATER + 5)
    run(
        engine,
        update(events).where(events.c.event_id == "m-1").values(state="open"),
        update(sweeps).where(sweeps.c.name == "readiness").values(cursor="zz"),
    )
    looks = []
    for seconds in range(20, 60, 2):
        looks.append(sweep_fleet(at(LATER + seconds)).prepares)
        run(engine, update(sweeps).where(sweeps.c.name == "readiness").values(cursor="zz"))  # the walk is elsewhere
    assert ("m-1",) in looks


def test_a_sweep_stops_at_the_first_wake_that_is_lost(
    at: At, due: None, prepared_other: None, queue: RecordingQueue, rows: Rows
) -> None:
    """With the broker gone nothing more is stamped: what it would have come to is found by the next sweep at once."""
    queue.is_up = False
    swept = sweep_fleet(at(LATER))
    assert (swept.is_turn, swept.prepares, swept.publishes, swept.collects) == (True, (), (), ())
    assert {row["last_woken_at"] for row in rows(evidence) if row["event_id"] == "event-1"} == {NOW}
    queue.is_up = True
    assert sweep_fleet(at(LATER + 2)).collects == ("event-1",)
    assert sweep_fleet(at(LATER + 12)).publishes == ("event-2",)


def test_a_sweep_keeps_what_it_measured(at: At, due: None, engine: Engine) -> None:
    """How long what it woke had been unwoken, by the last wake or the time it fell due; and when it was."""
    with reading(engine) as conn:
        assert read_recovery(conn, now=LATER).sweep_age_seconds is None
        assert read_recovery(conn, now=LATER).unwoken_seconds["evidence"] == 100.0
    sweep_fleet(at(LATER))
    with reading(engine) as conn:
        kept = read_recovery(conn, now=LATER + 3)
    assert (kept.found_unwoken_seconds, kept.sweep_wakes, kept.unwoken_seconds["evidence"]) == (100.0, 1, 3.0)
    assert kept.sweep_age_seconds is not None
    assert kept.sweep_age_seconds >= 3.0
    assert kept.unwoken_seconds == {"evidence": 3.0, "delivery": 0.0, "event": 0.0, "run_command": 0.0}
    sweep_fleet(at(LATER + 4))
    with reading(engine) as conn:
        assert read_recovery(conn, now=LATER + 4).sweep_wakes == 0
