"""An outage of a review provider burns no attempts: the breaker in the database, on both of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select

from tests.builders import NOW, Keyring, change_event
from tests.evidence_builders import good, with_provider
from tests.intake_builders import Rows, submit
from worker.domain.breaker import PROVIDER, BreakerState, Permit
from worker.domain.errors import ProviderFailure
from worker.domain.evidence import EvidenceRequest
from worker.domain.hold import Closure
from worker.domain.policy import Breaker, RoutePolicy
from worker.domain.review import Collected
from worker.domain.waiting import waiting_sentence
from worker.flow.collect_evidence import collect_evidence
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.breakers import lock_breaker
from worker.store.due_evidence import claim_due
from worker.store.engine import reading, writing
from worker.store.schema import breakers, evidence, setbacks
from worker.store.views import find_event_view

DOWN = ProviderFailure("evidence.provider.unreachable", retryable=True)
LOCALES = ["de", "es", "fr", "it", "ja", "ko", "nl", "pl"]


@dataclass
class Provider:
    """A provider that is down while `fault` is set, and counts its calls."""

    keys: Keyring
    fault: Exception | None = DOWN
    calls: list[str] = field(default_factory=list)

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> Any:
        """Fail or answer."""
        del deadline_seconds
        self.calls.append(request.request_id)
        if self.fault is not None:
            raise self.fault
        return good(self.keys)(request)


@pytest.fixture
def provider(keys: Keyring) -> Provider:
    return Provider(keys)


@pytest.fixture
def fleet(services: Services, provider: Provider) -> Services:
    return with_provider(services, provider, concurrent_calls=5, batch_rows=5)


def collect(fleet: Services, now: float) -> Collected:
    return collect_evidence(replace(fleet, now=lambda: now), None, ready=lambda _: None)


def state(engine: Engine) -> BreakerState:
    return writing(engine, lambda conn: lock_breaker(conn, PROVIDER, "default"))


def most_attempts(engine: Engine) -> int:
    with reading(engine) as conn:
        return int(conn.execute(select(func.max(evidence.c.attempts))).scalar_one())


def test_while_it_is_open_nothing_is_claimed(
    fleet: Services, provider: Provider, keys: Keyring, engine: Engine
) -> None:
    """Five faults open it for five seconds: the other rows keep all their attempts and are not called."""
    submit(fleet, keys, change_event(target_locales=LOCALES))
    collect(fleet, NOW)
    assert len(provider.calls) == 5
    opened = state(engine)
    assert (opened.is_open, opened.open_until_at, opened.opened_by) == (True, NOW + 5.0, "w-test")
    assert opened.reason == "evidence.provider.unreachable"
    assert collect(fleet, NOW + 4.9) == Collected()
    assert len(provider.calls) == 5


def test_one_probe_a_time_of_the_row_with_the_fewest_attempts(
    fleet: Services, provider: Provider, keys: Keyring, rows: Rows, engine: Engine
) -> None:
    """When its time comes one row that was never tried is; its fault counts no attempt and doubles the pause."""
    submit(fleet, keys, change_event(target_locales=LOCALES))
    collect(fleet, NOW)
    tried = set(provider.calls)
    assert collect(fleet, NOW + 5.0) == Collected(claimed=1)
    assert len(provider.calls) == 6
    assert provider.calls[5] not in tried
    assert (state(engine).is_open, state(engine).open_until_at) == (True, NOW + 15.0)
    assert sorted(row["attempts"] for row in rows(evidence)) == [0, 0, 0, 1, 1, 1, 1, 1]
    assert [row["outcome"] for row in rows(setbacks)][5:] == ["released"]
    assert collect(fleet, NOW + 14.9) == Collected()


def test_success_closes_for_everyone(fleet: Services, provider: Provider, keys: Keyring, engine: Engine) -> None:
    """The probe is answered: everything that is due goes on at once, in the same collection."""
    submit(fleet, keys, change_event(target_locales=LOCALES))
    collect(fleet, NOW)
    provider.fault = None
    assert collect(fleet, NOW + 10.0) == Collected(claimed=8, approved=8)
    assert state(engine) == BreakerState(generation=2)
    with reading(engine) as conn:
        assert conn.execute(select(func.count()).where(evidence.c.status == "succeeded")).scalar_one() == 8


def test_a_refusal_never_opens_it(fleet: Services, provider: Provider, keys: Keyring, rows: Rows) -> None:
    """Eight refusals are eight answers: no row is written."""
    provider.fault = ProviderFailure("evidence.provider.status_422", retryable=False)
    submit(fleet, keys, change_event(target_locales=LOCALES))
    assert collect(fleet, NOW).failed == 8
    assert rows(breakers) == []


def test_an_answer_between_faults_starts_the_count_again(
    fleet: Services, provider: Provider, keys: Keyring, engine: Engine
) -> None:
    """Four faults, an answer, four faults: closed all the time."""
    for n, fault in enumerate((DOWN, None, DOWN)):
        provider.fault = fault
        submit(fleet, keys, change_event(event_id=f"event-{n}", source_id=f"s-{n}", target_locales=LOCALES[:4]))
        collect(fleet, NOW)
    assert (state(engine).is_open, state(engine).failures) == (False, 4)


def test_healthy_work_writes_no_breaker(fleet: Services, provider: Provider, keys: Keyring, rows: Rows) -> None:
    """Success alone leaves the table empty."""
    provider.fault = None
    submit(fleet, keys, change_event(target_locales=LOCALES))
    assert collect(fleet, NOW).approved == 8
    assert rows(breakers) == []


def test_a_retry_after_opens_it_for_everyone(
    fleet: Services, provider: Provider, keys: Keyring, engine: Engine
) -> None:
    """One 429 that names two minutes: nobody calls before."""
    provider.fault = ProviderFailure("evidence.provider.status_429", retryable=True, retry_after_seconds=120.0)
    submit(fleet, keys, change_event(target_locales=["de"]))
    collect(fleet, NOW)
    submit(fleet, keys, change_event(event_id="event-2", source_id="b", target_locales=["fr"]))
    provider.fault = None
    assert collect(fleet, NOW + 119.0) == Collected()
    assert state(engine).open_until_at == NOW + 120.0
    assert collect(fleet, NOW + 120.0).approved >= 1


def test_what_waits_says_so_and_is_not_woken(
    fleet: Services, provider: Provider, keys: Keyring, engine: Engine
) -> None:
    """The sentence names the time; a sweep wakes nothing before it, and does within the recovery bound after it."""
    submit(fleet, keys, change_event(target_locales=LOCALES))
    collect(fleet, NOW)
    with reading(engine) as conn:
        accepted = fleet.policies.for_site("site-1").accepted
        view = find_event_view(
            conn, "event-1", accepted=accepted, is_guided=False, review_deadline_seconds=60.0, now=NOW + 1.0
        )
    assert view is not None
    assert view.facts.closures == (Closure(kind="provider", name="default", until_at=NOW + 5.0),)
    assert "; provider closed until " in waiting_sentence(view.facts)
    assert "due now" not in waiting_sentence(view.facts)
    assert sweep_fleet(replace(fleet, now=lambda: NOW + 4.0)).collects == ()
    assert sweep_fleet(replace(fleet, now=lambda: NOW + 14.0)).collects == ("event-1",)


def test_a_dead_holder_gives_way(fleet: Services, keys: Keyring, engine: Engine, provider: Provider) -> None:
    """A worker that died with the permit keeps it until it runs out; then the next claim gets it, and only one does."""
    submit(fleet, keys, change_event(target_locales=LOCALES))
    collect(fleet, NOW)

    def claim(now: float) -> list[Permit | None]:
        rows = claim_due(engine, worker_id="w-2", limit=5, lease_seconds=300.0, probe_seconds=60.0, now=now)
        return [row.permit for row in rows]

    first = claim(NOW + 5.0)
    assert len(first) == 1
    assert first[0] is not None
    assert claim(NOW + 64.9) == []
    second = claim(NOW + 65.0)
    assert len(second) == 1
    assert second[0] is not None
    assert second[0].token != first[0].token
    assert claim(NOW + 65.0) == []
    assert state(engine).probe_token == second[0].token


def test_without_due_work_nothing_runs(fleet: Services, engine: Engine, provider: Provider) -> None:
    """An open breaker alone asks nobody and gives no permit."""
    opened = BreakerState(is_open=True, generation=1, pause_seconds=5.0, open_until_at=NOW - 1.0)
    row = {"kind": PROVIDER, "name": "default", "updated_at": NOW, **vars(opened)}
    writing(engine, lambda conn: conn.execute(insert(breakers).values(**row)))
    assert collect(fleet, NOW) == Collected()
    assert provider.calls == []
    assert state(engine) == opened


def test_other_routes_and_small_batches_go_on(
    fleet: Services, engine: Engine, provider: Provider, keys: Keyring
) -> None:
    """A place kept for a probe that has nothing to ask goes to other work, even where it is the only one."""
    provider.fault = None
    opened = BreakerState(is_open=True, generation=1, pause_seconds=5.0, open_until_at=NOW - 1.0)
    row = {"kind": PROVIDER, "name": "lawyers", "updated_at": NOW, **vars(opened)}
    writing(engine, lambda conn: conn.execute(insert(breakers).values(**row)))
    submit(fleet, keys, change_event(target_locales=LOCALES))
    assert collect(replace(fleet, batch_rows=1), NOW).approved == 8


def test_an_hour_of_outage_burns_no_attempts(
    services: Services, provider: Provider, keys: Keyring, engine: Engine, rows: Rows
) -> None:
    """200 locales with five attempts: all approved after it without an operator, at most three attempts each."""
    fleet = with_provider(services, provider)
    for n in range(25):
        submit(fleet, keys, change_event(event_id=f"event-{n}", source_id=f"s-{n}", target_locales=LOCALES))
    collect(fleet, NOW)
    at_first = len(provider.calls)
    assert at_first <= 50 + 4  # those under way at once, and one for each answer short of the five that open it
    for now in _seconds(3600.0):
        collect(fleet, now)
    during = len(provider.calls)
    assert during - at_first <= 62  # probes after 15, 30, 60, 105 and 165 s, then one a minute
    assert most_attempts(engine) == 1
    provider.fault = None
    for step in range(12):
        collect(fleet, NOW + 3600.0 + 10.0 * step)
    found = rows(evidence)
    assert [row["status"] for row in found] == ["succeeded"] * 200
    assert max(row["attempts"] for row in found) <= 3
    assert len(provider.calls) == during + 200


def test_the_bounds_are_the_routes_policy(fleet: Services, keys: Keyring, engine: Engine) -> None:
    """A route may open after one fault and stay open for longer."""
    breaker = Breaker(opens_after_failures=1, open_seconds=40.0)
    policies = replace(fleet.policies, routes={"default": RoutePolicy(breaker=breaker)})  # type: ignore[type-var]
    submit(fleet, keys, change_event(target_locales=["de"]))
    collect(replace(fleet, policies=policies), NOW)
    assert state(engine).open_until_at == NOW + 40.0


def _seconds(length: float) -> Iterator[float]:
    now = NOW
    while now < NOW + length:
        yield now
        now += 15.0
