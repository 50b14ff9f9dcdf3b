"""Bounds on calls to a site's CMS over the whole fleet, who probes a closed one, and who is woken after a visit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table, update

from tests.builders import NOW, Keyring
from tests.delivery_builders import approved_event, prepared_events
from tests.fake_cms import FakeCms
from tests.fakes import FixedPolicies, RecordingQueue
from worker.domain.errors import Blocked
from worker.domain.policy import Breaker, Limits, SitePolicy
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.store.engine import open_engine, reading, writing
from worker.store.schema import deliveries, limits

Rows = Callable[[Table], list[dict[str, Any]]]
PUBLISH = "delivery.publish"


@pytest.fixture
def cms(keys: Keyring) -> FakeCms:
    return FakeCms(keys=keys)


@pytest.fixture
def fleet(services: Services, cms: FakeCms) -> Services:
    return replace(services, cms=lambda _site_id: cms)


def publish(fleet: Services, names: list[str], now: float) -> list[str]:
    moment = replace(fleet, now=lambda: now)
    return [publish_delivery(moment, name).status for name in names]


def limited(**bounds: float) -> SitePolicy:
    return SitePolicy(delivery_limits=Limits(**bounds))  # type: ignore[arg-type]


def test_a_site_has_no_more_calls_open_than_its_bound(
    fleet: Services, cms: FakeCms, keys: Keyring, policies: FixedPolicies, rows: Rows, queue: RecordingQueue
) -> None:
    """While one send is open another waits with no lease and no attempt; the one that ends wakes it."""
    policies.policy = limited(concurrent_calls=1)
    first, second = prepared_events(fleet, keys, 2, target_locales=["de"])
    queue.take()
    met: list[str] = []
    inside = replace(fleet, cms=lambda _site_id: replace(cms, during_send=None))
    cms.during_send = lambda: met.extend(publish(inside, [second], NOW))
    assert publish(fleet, [first], NOW) == ["delivered"]
    assert met == ["delivery_ready"]
    waiting = {row["event_id"]: row for row in rows(deliveries)}[second]
    assert (waiting["status"], waiting["attempts"], waiting["in_doubt"]) == ("pending", 0, False)
    assert queue.take()[-1] == (PUBLISH, {"event_id": second})
    assert publish(inside, [second], NOW) == ["delivered"]


def test_a_rate_is_never_passed(
    fleet: Services, cms: FakeCms, keys: Keyring, policies: FixedPolicies, rows: Rows
) -> None:
    """Two a second: two at once, and one each half second after; what waits keeps its attempts."""
    policies.policy = limited(calls_per_second=2)
    names = prepared_events(fleet, keys, 6, target_locales=["de"])
    counts = []
    for seconds in (0.0, 0.1, 0.5, 0.9, 1.0):
        publish(fleet, names, NOW + seconds)
        counts.append(len(cms.requests))
    assert counts == [2, 2, 3, 3, 4]
    assert sorted(row["attempts"] for row in rows(deliveries)) == [0, 0, 1, 1, 1, 1]


def test_a_rate_is_reached_without_the_sweeper(
    fleet: Services, cms: FakeCms, keys: Keyring, policies: FixedPolicies, queue: RecordingQueue, rows: Rows
) -> None:
    """Whoever waits for the rate is woken when it allows the next call; each visit wakes one that follows."""
    live = replace(fleet, now=lambda: None)
    policies.policy = limited(calls_per_second=20)
    names = prepared_events(live, keys, 24, target_locales=["de"])
    queue.take()
    arrived = threading.Event()
    todo = [names[0]]

    class Waking(RecordingQueue):
        """Hands each wake to the test's one thread."""

        def wake(self, message: str, **ids: str) -> bool:
            todo.append(ids["event_id"])
            arrived.set()
            return True

    woken = replace(live, queue=Waking())
    while any(row["status"] != "succeeded" for row in rows(deliveries)):
        if todo:
            publish_delivery(woken, todo.pop(0))
        else:
            assert arrived.wait(60), "nobody was woken"
        arrived.clear()
    assert len(cms.requests) == 24


def test_a_look_up_counts_too(
    fleet: Services, cms: FakeCms, keys: Keyring, policies: FixedPolicies, rows: Rows
) -> None:
    """And so does the send that follows its absent, which delays whoever comes next."""
    policies.policy = limited(calls_per_second=1)
    first, second = prepared_events(fleet, keys, 2, target_locales=["de"])
    cms.sends = ["timeout"]
    publish(fleet, [first], NOW)
    cms.lookups = ["absent"]
    publish(fleet, [first], NOW + 200)
    assert (len(cms.questions), len(cms.requests)) == (1, 2)
    assert publish(fleet, [second], NOW + 201.5) == ["delivery_ready"]
    assert publish(fleet, [second], NOW + 202.5) == ["delivered"]


def test_sites_without_bounds_write_nothing(fleet: Services, keys: Keyring, rows: Rows) -> None:
    """No row of a limit."""
    assert publish(fleet, prepared_events(fleet, keys, 1, target_locales=["de"]), NOW) == ["delivered"]
    assert rows(limits) == []


def test_racing_workers_share_one_rate(
    fleet: Services, cms: FakeCms, keys: Keyring, policies: FixedPolicies, engine: Engine
) -> None:
    """Four threads on two engines publish twelve deliveries at one moment: three are sent."""
    policies.policy = limited(calls_per_second=3)
    names = prepared_events(fleet, keys, 12, target_locales=["de"])
    other = open_engine(engine.url)

    def work(mine: Engine, part: list[str]) -> None:
        for name in part:
            with suppress(Blocked):  # another was quicker
                publish_delivery(replace(fleet, engine=mine), name)

    threads = [threading.Thread(target=work, args=(mine, names[n::4])) for n, mine in enumerate([engine, other] * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.dispose()
    assert len(cms.requests) == 3


# --- the probe of a closed CMS ----------------------------------------------------------------------------------------


def test_the_send_with_the_fewest_attempts_probes(
    fleet: Services, cms: FakeCms, keys: Keyring, rows: Rows, policies: FixedPolicies
) -> None:
    """Whoever comes first, the one that never failed tries; and where it may not be sent, whoever came does."""
    policies.policy = SitePolicy(delivery_breaker=Breaker(opens_after_failures=2, open_seconds=5))
    names = prepared_events(fleet, keys, 3, target_locales=["de"])
    cms.sends = ["down", "down"]
    publish(fleet, names[:2], NOW)
    cms.sends = ["down"]
    publish(fleet, [names[0]], NOW + 20)
    tried = {row["event_id"]: (row["attempts"], row["last_error_code"]) for row in rows(deliveries)}
    assert tried[names[2]] == (0, "cms.delivery.unreachable")  # a failed probe counts no attempt
    assert tried[names[0]] == (1, "cms.delivery.unreachable")
    with_damage = update(deliveries).where(deliveries.c.event_id == names[2]).values(payload="{}")
    writing(fleet.engine, lambda conn: conn.execute(with_damage))
    assert publish(fleet, [names[0]], NOW + 60) == ["delivered"]


# --- whoever follows --------------------------------------------------------------------------------------------------


def test_a_settled_delivery_wakes_the_next_of_its_source(
    fleet: Services, cms: FakeCms, keys: Keyring, queue: RecordingQueue
) -> None:
    """A newer text that waited for an older one's outcome is woken at once, and not before."""
    approved_event(fleet, keys, event_id="old", source_sequence=7)
    prepare_delivery(fleet, "old")
    cms.sends = ["lost"]
    publish(fleet, ["old"], NOW)
    approved_event(fleet, keys, event_id="new", source_sequence=8, source_text="Newer")
    prepare_delivery(fleet, "new")
    queue.take()
    assert publish(fleet, ["new"], NOW) == ["delivery_ready"]
    assert queue.take() == []
    assert publish(fleet, ["old"], NOW + 60) == ["delivered"]
    assert queue.take() == [(PUBLISH, {"event_id": "new"})]
    assert publish(fleet, ["new"], NOW + 60) == ["delivered"]
    assert queue.take() == []
    with reading(fleet.engine):
        assert cms.live == {"home.hero": 8}
