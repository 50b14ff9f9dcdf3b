"""What a worker's watch over itself sees as work that it could take, and what it does not; on both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update

from tests.builders import NOW, Keyring, change_event
from tests.delivery_builders import approved_event
from tests.fake_cms import FakeCms
from tests.fakes import FixedPolicies, RecordingQueue
from tests.intake_builders import submit
from worker.domain.hold import Pause
from worker.domain.policy import Limits, RoutePolicy, SitePolicy
from worker.domain.stall import WorkKind
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.seek_work import seek_work
from worker.flow.services import Services
from worker.store.due_evidence import claim_due
from worker.store.engine import writing
from worker.store.pauses import pause
from worker.store.run_commands import insert_command
from worker.store.schema import breakers, deliveries, events, evidence

At = Callable[[float], Services]
ALL: tuple[WorkKind, ...] = ("evidence", "delivery", "runs")
LATE = NOW + 60
NOTHING: frozenset[WorkKind] = frozenset()


def seen(services: Services, *kinds: WorkKind, now: float = LATE) -> frozenset[WorkKind]:
    """Return what a watch sees that calls work overdue after 10 seconds."""
    return seek_work(replace(services, now=lambda: now), kinds or ALL, overdue_seconds=10.0)


def change(engine: Engine, statement: Any) -> None:
    writing(engine, lambda conn: conn.execute(statement))


@pytest.fixture
def due(services: Services, keys: Keyring, queue: RecordingQueue) -> Services:
    """Services with two evidence rows that are due since `NOW`."""
    submit(services, keys, change_event(target_locales=["de", "fr"]))
    queue.take()
    return services


def test_due_evidence_is_seen_and_asked_for(due: Services, queue: RecordingQueue) -> None:
    """Rows that have waited for longer than a recovery takes are seen, and one wake is sent for them."""
    assert seen(due) == {"evidence"}
    assert queue.take() == [("evidence.collect", {"event_id": "event-1"})]


def test_what_has_only_just_fallen_due_is_no_sign(due: Services, queue: RecordingQueue) -> None:
    """Before that time the sweeper may still be on its way; nothing is seen and nobody is woken."""
    assert seen(due, now=NOW + 9.9) == NOTHING
    assert queue.take() == []


def test_a_worker_sees_only_what_it_takes(due: Services, queue: RecordingQueue) -> None:
    """A worker of deliveries and runs does not mind evidence that waits."""
    assert seen(due, "delivery", "runs") == NOTHING
    assert queue.take() == []


def test_while_the_broker_takes_nothing_nothing_is_seen(due: Services, queue: RecordingQueue) -> None:
    """Without Redis nobody can be asked, so no worker is to blame."""
    queue.is_up = False
    assert seen(due) == NOTHING


@pytest.mark.parametrize(
    "wanted",
    [
        Pause(scope="all", name="", owner="ops", reason="index rebuild"),
        Pause(scope="site", name="site-1", owner="ops", reason="launch", until_at=NOW + 600),
        Pause(scope="provider", name="default", owner="ops", reason="contract", until_at=NOW + 600),
    ],
    ids=lambda one: one.scope,
)
def test_a_pause_is_no_stall(due: Services, engine: Engine, wanted: Pause) -> None:
    """What an operator holds back is not seen; when the pause is over, it is."""
    writing(engine, lambda conn: pause(conn, wanted, now=NOW))
    assert seen(due) == NOTHING
    if wanted.until_at is not None:
        assert seen(due, now=wanted.until_at + 11) == {"evidence"}


@pytest.mark.parametrize("until", [NOW + 3600, NOW - 1])
def test_an_open_breaker_is_no_stall(due: Services, engine: Engine, until: float) -> None:
    """Nothing is seen of a route that is closed for now, nor of one that waits for its probe."""
    row = {"kind": "provider", "name": "default", "is_open": True, "generation": 1, "failures": 5, "pause_seconds": 5.0}
    values = {**row, "open_until_at": until, "reason": "evidence.provider.unreachable", "updated_at": NOW}
    change(engine, insert(breakers).values(**values))
    assert seen(due) == NOTHING


@pytest.mark.parametrize(
    "bounded",
    [
        FixedPolicies(routes={"default": RoutePolicy(limits=Limits(concurrent_calls=1))}),
        FixedPolicies(policy=SitePolicy(review_limits=Limits(concurrent_calls=1))),
    ],
    ids=["route", "site"],
)
def test_a_full_limit_is_no_stall(due: Services, engine: Engine, bounded: FixedPolicies) -> None:
    """While another worker uses the one place there is, the other row is not seen; without the bound it is."""
    claim_due(engine, worker_id="w-other", limit=1, lease_seconds=300, now=NOW + 50)
    assert seen(replace(due, policies=bounded)) == NOTHING
    assert seen(due) == {"evidence"}
    assert seen(replace(due, policies=bounded), now=NOW + 400) == {"evidence"}


def test_rows_that_no_claim_takes_are_no_stall(due: Services, engine: Engine) -> None:
    """Leased, damaged, and of an event that has ended: the claim passes them over, and so does the watch."""
    change(engine, update(evidence).where(evidence.c.request_id.like("%")).values(attempts=99))
    assert seen(due) == NOTHING
    change(engine, update(evidence).values(attempts=0))
    assert seen(due) == {"evidence"}
    change(engine, update(events).values(state="superseded"))
    assert seen(due) == NOTHING


@pytest.fixture
def prepared(services: Services, keys: Keyring, queue: RecordingQueue) -> Services:
    """Services with a CMS and a prepared delivery that is due since `NOW`."""
    approved_event(services, keys)
    cms = FakeCms(keys=keys)
    publishing = replace(services, cms=lambda _site_id: cms)
    prepare_delivery(publishing, "event-1")
    queue.take()
    return publishing


def test_a_due_delivery_is_seen_and_asked_for(prepared: Services, queue: RecordingQueue) -> None:
    """A prepared delivery that nobody sends is seen by a worker that sends."""
    assert seen(prepared) == {"delivery"}
    assert queue.take() == [("delivery.publish", {"event_id": "event-1"})]


def test_a_delivery_that_is_held_back_is_no_stall(prepared: Services, engine: Engine) -> None:
    """Paused, without a permit on a guided site, or its CMS closed: not seen. In doubt it is, pause or not."""
    guided = replace(prepared, policies=FixedPolicies(policy=SitePolicy(publication="guided")))
    assert seen(guided) == NOTHING
    everything = Pause(scope="all", name="", owner="ops", reason="index rebuild")
    writing(engine, lambda conn: pause(conn, everything, now=NOW))
    assert seen(prepared) == NOTHING
    change(engine, update(deliveries).values(in_doubt=True))
    assert seen(guided) == {"delivery"}
    row = {"kind": "cms", "name": "site-1", "is_open": True, "generation": 1, "failures": 5, "pause_seconds": 5.0}
    values = {**row, "open_until_at": NOW + 3600, "reason": "cms.delivery.unreachable", "updated_at": NOW}
    change(engine, insert(breakers).values(**values))
    assert seen(guided) == NOTHING


def test_a_due_visit_of_a_run_is_seen_and_asked_for(services: Services, engine: Engine, queue: RecordingQueue) -> None:
    """A command of a release run that nobody takes is seen by a worker that visits runs."""
    ids = {"run_id": "rr-20260102T030405Z-0123456789ab", "step_id": "preflight", "attempt_id": "attempt-1"}
    writing(engine, lambda conn: insert_command(conn, **ids, site_id="site-1", is_mutating=False, now=NOW))
    assert seen(services, now=NOW + 5) == NOTHING
    assert seen(services) == {"runs"}
    assert queue.take() == [("run.step", ids)]


def test_every_claim_is_told_to_the_watch(prepared: Services) -> None:
    """A claim that came to its end is told, also where it found nothing; a visit to a delivery likewise."""
    told: list[WorkKind] = []
    watched = replace(prepared, claimed=told.append)
    collect_evidence(watched, None, ready=lambda _: None)
    publish_delivery(watched, "event-1")
    assert told == ["evidence", "delivery"]
