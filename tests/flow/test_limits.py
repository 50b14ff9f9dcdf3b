"""Bounds of the policy file as a collector keeps them: never more calls open, and all work done in the end."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from tests.builders import NOW, Keyring, change_event
from tests.evidence_builders import good, with_provider
from tests.fakes import FixedPolicies
from tests.intake_builders import submit
from worker.domain.evidence import EvidenceRequest
from worker.domain.policy import Limits, RoutePolicy, SitePolicy
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.services import Services

LOCALES = ["de", "es", "fr", "it", "ja", "ko", "nl", "pl"]


@dataclass
class Busy:
    """A provider that answers nobody before `together` calls were open at once, and remembers how many ever were."""

    keys: Keyring
    together: int
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    open: int = 0
    most: int = 0
    asked: list[str] = field(default_factory=list)

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> Any:
        """Answer once enough calls were open at the same time."""
        del deadline_seconds
        self.asked.append(request.request_id)
        self.open += 1
        self.most = max(self.most, self.open)
        if self.most >= self.together:
            self.enough.set()
        await self.enough.wait()
        self.open -= 1
        return good(self.keys)(request)


def collect(services: Services, provider: Busy, policies: FixedPolicies) -> Collected:
    fleet = replace(with_provider(services, provider), policies=policies)
    return collect_evidence(fleet, None, ready=lambda _: None)


def test_a_route_has_no_more_calls_open_than_its_bound(services: Services, keys: Keyring) -> None:
    """Two at a time, one after the other, until all eight are approved by the one collection; no attempt is lost."""
    submit(services, keys, change_event(target_locales=LOCALES))
    provider = Busy(keys, together=2)
    policies = FixedPolicies(routes={"default": RoutePolicy(limits=Limits(concurrent_calls=2))})
    assert collect(services, provider, policies) == Collected(claimed=8, approved=8)
    assert (provider.most, len(set(provider.asked)), len(provider.asked)) == (2, 8, 8)


def test_a_site_has_no_more_calls_open_than_its_bound(services: Services, keys: Keyring) -> None:
    """The default policy bounds every site alone."""
    submit(services, keys, change_event(target_locales=LOCALES))
    provider = Busy(keys, together=3)
    policies = FixedPolicies(policy=SitePolicy(review_limits=Limits(concurrent_calls=3)))
    assert collect(services, provider, policies) == Collected(claimed=8, approved=8)
    assert provider.most == 3


def test_a_rate_is_reached_by_one_collection(services: Services, keys: Keyring) -> None:
    """Six a second and eight locales that are answered at once: the collector sleeps until the rate lets it go on."""
    live = replace(services, now=lambda: None)
    submit(live, keys, change_event(target_locales=LOCALES))
    provider = Busy(keys, together=1)
    policies = FixedPolicies(routes={"default": RoutePolicy(limits=Limits(calls_per_second=6))})
    assert collect(live, provider, policies) == Collected(claimed=8, approved=8)


def test_a_rate_of_a_site_is_reached_by_one_collection(services: Services, keys: Keyring) -> None:
    """Likewise, for a bound that every site has for itself."""
    live = replace(services, now=lambda: None)
    submit(live, keys, change_event(target_locales=LOCALES))
    policies = FixedPolicies(policy=SitePolicy(review_limits=Limits(calls_per_second=6)))
    assert collect(live, Busy(keys, together=1), policies) == Collected(claimed=8, approved=8)


def test_an_answer_before_the_rate_allows_the_next_call_ends_no_waiting(services: Services, keys: Keyring) -> None:
    """One a second and three locales that are answered at once: what is claimed in vain in between changes nothing."""
    live = replace(services, now=lambda: None)
    submit(live, keys, change_event(target_locales=LOCALES[:3]))
    policies = FixedPolicies(routes={"default": RoutePolicy(limits=Limits(calls_per_second=1))})
    assert collect(live, Busy(keys, together=1), policies) == Collected(claimed=3, approved=3)


def test_a_wait_for_a_rate_that_is_over_at_once_is_not_given_up(services: Services, keys: Keyring) -> None:
    """However much time passes between two looks at the clock: nothing that the rate allows by then is left behind."""
    clock = itertools.count(NOW, 0.7)
    read: list[float] = [NOW]

    def monotonic() -> float:
        read[0] = next(clock)
        return read[0]

    ticking = replace(services, monotonic=monotonic, now=lambda: read[0])
    submit(ticking, keys, change_event(target_locales=LOCALES[:2]))
    policies = FixedPolicies(routes={"default": RoutePolicy(limits=Limits(calls_per_second=0.11))})
    assert collect(ticking, Busy(keys, together=1), policies) == Collected(claimed=2, approved=2)


def test_a_slow_rate_is_left_to_the_sweeper(services: Services, keys: Keyring) -> None:
    """One call in a quarter of an hour keeps no thread waiting; what is left is due, with no attempt."""
    live = replace(services, now=lambda: None)
    submit(live, keys, change_event(target_locales=LOCALES))
    policies = FixedPolicies(routes={"default": RoutePolicy(limits=Limits(calls_per_second=0.001))})
    assert collect(live, Busy(keys, together=1), policies) == Collected(claimed=1, approved=1)
