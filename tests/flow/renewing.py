"""A release whose approvals age: one process at a time takes every message, and time passes only where a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.builders import NOW, Keyring, change_event, results_for, signed_submission
from tests.evidence_builders import ScriptedProvider, good
from tests.fake_cms import FakeCms
from tests.fakes import FixedPolicies, RecordingQueue
from worker.domain.errors import Blocked
from worker.domain.policy import SitePolicy
from worker.flow.accept_submission import accept_submission
from worker.flow.collect_evidence import collect_evidence
from worker.flow.collecting.slot import Collecting
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.renew_expiring import renew_expiring
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet

TTL = 1000  # seconds; renewed by itself from 500 before the end
POLICY = SitePolicy(approval_ttl_seconds=TTL)
GUIDED = SitePolicy(approval_ttl_seconds=TTL, publication="guided")


@dataclass
class Fleet:
    """A fleet that goes by a clock of its own."""

    services: Services
    queue: RecordingQueue
    keys: Keyring
    policies: FixedPolicies
    cms: FakeCms
    provider: ScriptedProvider
    now: float = NOW
    blocked: list[str] = field(default_factory=list)  # codes that tasks would have logged

    def born(self) -> Services:
        """Return a fresh process."""
        return replace(
            self.services,
            now=lambda: self.now,
            collecting=Collecting(),
            providers={"default": self.provider},
            cms=lambda _site: self.cms,
        )

    def submit(self, **changes: Any) -> dict[str, Any]:
        """Have an event of two locales accepted."""
        event = change_event(**changes)
        text = signed_submission(self.keys, event, results_for(event))
        assert accept_submission(self.born(), text).state == "accepted"
        return event

    def live(self, *, renews: bool = True) -> None:
        """Sweep, renew, and take every message until none is left."""
        process = self.born()
        sweep_fleet(process, recovery_seconds=0.0)
        if renews:
            renew_expiring(process)
        while self.queue.sent:
            message, ids = self.queue.sent.pop(0)
            self._take(process, message, ids["event_id"])

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and the fleet live once after it."""
        self.now += seconds
        self.live()

    def _take(self, process: Services, message: str, event_id: str) -> None:
        steps: dict[str, Callable[[], object]] = {
            "evidence.collect": lambda: collect_evidence(
                process, event_id, ready=lambda name: process.queue.wake("delivery.prepare", event_id=name) and None
            ),
            "delivery.prepare": lambda: prepare_delivery(process, event_id),
            "delivery.publish": lambda: publish_delivery(process, event_id),
        }
        try:
            steps[message]()
        except Blocked as refusal:
            self.blocked.append(refusal.code)


def new_fleet(services: Services, queue: RecordingQueue, keys: Keyring, policies: FixedPolicies) -> Fleet:
    """Return a fleet with a reviewer that finds everything good and a CMS that takes everything."""
    policies.policy = POLICY
    return Fleet(
        services=services,
        queue=queue,
        keys=keys,
        policies=policies,
        cms=FakeCms(keys=keys),
        provider=ScriptedProvider(good(keys)),
    )
