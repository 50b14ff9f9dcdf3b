"""The product's services inside the benchmark's own process: for seeding, and for steps that are measured alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Engine

from worker.adapters.calls import CallLoop
from worker.adapters.keys import FileKeys
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.limits import FleetLimits
from worker.domain.policy import EvidenceLeases, RoutePolicy, SitePolicy
from worker.flow.services import Cms, Deadlines, Queue, Services


@dataclass(frozen=True)
class OnePolicy:
    """Satisfies `flow.services.Policies`: one guided policy for every site, no bounds."""

    policy: SitePolicy = field(default_factory=lambda: SitePolicy(publication="guided"))

    def for_site(self, _site_id: str) -> SitePolicy:
        """Return the policy."""
        return self.policy

    def for_provider(self, _route: str) -> RoutePolicy:
        """Return the route's defaults."""
        return RoutePolicy()

    def evidence_leases(self) -> EvidenceLeases:
        """Return the one lease."""
        return EvidenceLeases()

    def limits(self) -> FleetLimits:
        """Return no bound."""
        return FleetLimits()


def services_on(engine: Engine, keys: FileKeys, queue: Queue) -> Services:
    """Return services on a database that call nobody outside."""

    def cms(_site_id: str) -> Cms:
        raise AssertionError("nothing is sent")

    return Services(
        engine=engine,
        worker_id="bench",
        policies=OnePolicy(),
        providers={},
        verifiers={"quality": JwsVerifier(keys.trust)},
        cms=cms,
        keys=keys,
        queue=queue,
        calls=CallLoop(),
        deadlines=Deadlines(),
    )
