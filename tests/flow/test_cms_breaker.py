"""An outage of a site's CMS burns no attempts: its breaker, the probe, and look-ups before sends, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table

from tests.builders import NOW, Keyring
from tests.delivery_builders import prepared_events
from tests.fake_cms import FakeCms
from worker.domain.breaker import CMS, BreakerState
from worker.domain.errors import Blocked
from worker.domain.hold import Closure
from worker.domain.waiting import waiting_sentence
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.breakers import lock_breaker
from worker.store.engine import reading, writing
from worker.store.schema import breakers, deliveries
from worker.store.views import find_event_view

Rows = Callable[[Table], list[dict[str, Any]]]
DOWN = ["down"] * 100


@pytest.fixture
def cms(keys: Keyring) -> FakeCms:
    return FakeCms(keys=keys)


@pytest.fixture
def fleet(services: Services, cms: FakeCms) -> Services:
    return replace(services, cms=lambda _site_id: cms)


def publish(fleet: Services, names: list[str], now: float) -> list[str]:
    """Give each event one visit; return where they stand."""
    moment = replace(fleet, now=lambda: now)
    return [publish_delivery(moment, name).status for name in names]


def state(engine: Engine) -> BreakerState:
    return writing(engine, lambda conn: lock_breaker(conn, CMS, "site-1"))


def by_event(rows: Rows) -> dict[str, dict[str, Any]]:
    return {row["event_id"]: row for row in rows(deliveries)}


def test_an_outage_of_an_hour_burns_no_attempts(
    fleet: Services, cms: FakeCms, keys: Keyring, rows: Rows, engine: Engine
) -> None:
    """Eight deliveries: five fail once, then one probe a time; all are delivered after it, at most two attempts each."""
    names = prepared_events(fleet, keys, 8)
    cms.sends = list(DOWN)
    for step in range(60):
        publish(fleet, names, NOW + 60.0 * step)
    opened = state(engine)
    assert (opened.is_open, opened.pause_seconds, opened.reason) == (True, 60.0, "cms.delivery.unreachable")
    assert sorted(row["attempts"] for row in rows(deliveries)) == [0, 0, 0, 1, 1, 1, 1, 1]
    assert 100 - len(cms.sends) <= 5 + 60
    cms.sends = []
    assert set(publish(fleet, names, NOW + 3700.0)) | set(publish(fleet, names, NOW + 3800.0)) == {"delivered"}
    assert max(row["attempts"] for row in rows(deliveries)) == 2
    assert len(cms.ledger) == 8


def test_a_delivery_in_doubt_probes_by_its_look_up(
    fleet: Services, cms: FakeCms, keys: Keyring, rows: Rows, engine: Engine
) -> None:
    """A send gives way to a look-up that is due; the look-up's fault leaves it due at once, when the breaker lets it."""
    names = prepared_events(fleet, keys, 6)
    cms.sends = ["lost", *["down"] * 4]
    publish(fleet, names[:5], NOW)
    assert state(engine).is_open
    cms.lookups = ["down"]
    publish(fleet, [names[5]], NOW + 10.0)
    assert (by_event(rows)[names[5]]["attempts"], len(cms.questions)) == (0, 0)
    publish(fleet, [names[0]], NOW + 10.0)
    assert (len(cms.questions), state(engine).pause_seconds) == (1, 10.0)
    doubtful = by_event(rows)[names[0]]
    assert (doubtful["in_doubt"], doubtful["attempts"], doubtful["next_attempt_at"]) == (True, 1, NOW + 10.0)
    assert publish(fleet, [names[0]], NOW + 19.9) == ["delivery_ready"]
    assert len(cms.questions) == 1
    assert publish(fleet, [names[0], names[5]], NOW + 20.0) == ["delivered", "delivered"]
    assert state(engine) == BreakerState(generation=3)


def test_a_probe_that_may_have_arrived_stays_in_doubt(
    fleet: Services, cms: FakeCms, keys: Keyring, rows: Rows, engine: Engine
) -> None:
    """Its attempt is returned, its doubt is not: the next call about it is a look-up."""
    names = prepared_events(fleet, keys, 6)
    cms.sends = [*["down"] * 5, "timeout"]
    publish(fleet, names, NOW)
    publish(fleet, [names[5]], NOW + 5.0)
    row = by_event(rows)[names[5]]
    assert (row["status"], row["in_doubt"], row["attempts"]) == ("retry_wait", True, 0)
    publish(fleet, [names[5]], NOW + 200.0)
    assert len(cms.questions) == 1


def test_refusals_and_healthy_work_write_no_breaker(fleet: Services, cms: FakeCms, keys: Keyring, rows: Rows) -> None:
    """Neither an acceptance nor a definite refusal is a fault of the other side."""
    names = prepared_events(fleet, keys, 7)
    cms.sends = ["accept", "refuse", "refuse", "refuse", "refuse", "refuse", "stale"]
    for name in names:
        with suppress(Blocked):  # what a refused delivery says of itself
            publish(fleet, [name], NOW)
    assert sorted(row["status"] for row in rows(deliveries)) == [*["failed"] * 6, "succeeded"]
    assert rows(breakers) == []


def test_a_retry_after_holds_all_deliveries_of_the_site(
    fleet: Services, cms: FakeCms, keys: Keyring, rows: Rows, engine: Engine
) -> None:
    """One 429 that names two minutes: the other is not sent before; sentence and sweep respect it."""
    names = prepared_events(fleet, keys, 2)
    cms.sends = ["not_now"]
    assert publish(fleet, names, NOW) == ["delivery_ready", "delivery_ready"]
    assert (len(cms.requests), by_event(rows)[names[1]]["attempts"]) == (1, 0)
    assert state(engine).open_until_at == NOW + 120.0
    with reading(engine) as conn:
        view = find_event_view(
            conn,
            names[1],
            accepted=fleet.policies.for_site("site-1").accepted,
            is_guided=False,
            review_deadline_seconds=60.0,
            now=NOW + 1.0,
        )
    assert view is not None
    assert view.facts.closures == (Closure(kind="cms", name="site-1", until_at=NOW + 120.0),)
    assert "; CMS closed until " in waiting_sentence(view.facts)
    assert sweep_fleet(replace(fleet, now=lambda: NOW + 100.0)).publishes == ()
    assert publish(fleet, names[1:], NOW + 120.0) == ["delivered"]
