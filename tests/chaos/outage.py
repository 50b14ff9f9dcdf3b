"""An hour without the review provider, in simulated time: the sweeper and the collector on a real database.

The clock is passed in, so an hour takes seconds. Nobody but the sweeper wakes anything, and no operator helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from sqlalchemy import func, select

from tests.builders import NOW, change_event, response_for, results_for, signed_submission
from tests.chaos.plan import LOCALES, LOCALES_OF_AN_EVENT, SITES
from tests.fakes import FixedPolicies, RecordingQueue
from tests.keyring import Keyring
from worker.adapters.calls import CallLoop
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.errors import ProviderFailure
from worker.domain.evidence import EvidenceRequest
from worker.domain.receipt import PURPOSES
from worker.flow.accept_submission import accept_submission
from worker.flow.collect_evidence import collect_evidence
from worker.flow.services import Cms, Deadlines, Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.engine import open_engine, reading
from worker.store.schema import evidence
from worker.store.schema_version import migrate

OUTAGE_SECONDS: Final = 3600.0
STEP_SECONDS: Final = 10.0  # of the simulated clock; a fleet sweeps more often
LONGEST_SECONDS: Final = 3600.0  # after it
DOWN: Final = ProviderFailure("evidence.provider.unreachable", retryable=True)


@dataclass
class _Provider:
    keys: Keyring
    is_down: bool = True
    calls: int = 0
    by_request: dict[str, int] = field(default_factory=dict)

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> Mapping[str, Any]:
        """Fail or answer."""
        del deadline_seconds
        self.calls += 1
        self.by_request[request.request_id] = self.by_request.get(request.request_id, 0) + 1
        if self.is_down:
            raise DOWN
        return response_for(self.keys, request)


def simulate_outage(directory: Path, *, locales: int, outage_seconds: float = OUTAGE_SECONDS) -> dict[str, Any]:
    """Return what an outage (of an hour) did to so many locales, each with the five attempts that are the default."""
    keys = Keyring(sites=SITES, providers=("reviewer", "quality-lab"))
    provider = _Provider(keys)
    with _services(directory, keys, provider) as fleet:
        for number in range(locales // LOCALES_OF_AN_EVENT):
            event = change_event(
                event_id=f"event-{number}",
                site_id=SITES[number % len(SITES)],
                source_id=f"source-{number}",
                target_locales=sorted(LOCALES[:LOCALES_OF_AN_EVENT]),
            )
            accept_submission(fleet, signed_submission(keys, event, results_for(event)))
        now = NOW
        while now < NOW + outage_seconds:
            _step(fleet, now)
            now += STEP_SECONDS
        during, most_during = provider.calls, _most_attempts(fleet)
        provider.is_down = False
        while _approved(fleet) < locales and now < NOW + outage_seconds + LONGEST_SECONDS:
            _step(fleet, now)
            now += STEP_SECONDS
        return {
            "locales": locales,
            "outage_seconds": outage_seconds,
            "calls_during": during,
            "most_attempts_during": most_during,
            "approved": _approved(fleet),
            "approved_after_seconds": now - NOW - outage_seconds,
            "most_attempts": _most_attempts(fleet),
            "calls": provider.calls,
        }


@contextmanager
def _services(directory: Path, keys: Keyring, provider: _Provider) -> Iterator[Services]:
    engine = open_engine(f"sqlite:///{directory / 'outage.db'}")
    calls = CallLoop()
    try:
        migrate(engine)
        yield Services(
            engine=engine,
            worker_id="w-outage",
            policies=FixedPolicies(),
            providers={"default": provider},
            verifiers={purpose: JwsVerifier(keys.trust) for purpose in PURPOSES},
            cms=_no_cms,
            keys=keys,
            queue=RecordingQueue(),
            calls=calls,
            deadlines=Deadlines(),
            now=lambda: NOW,
        )
    finally:
        calls.close()
        engine.dispose()


def _no_cms(site_id: str) -> Cms:
    raise AssertionError("nothing is published here")


def _step(fleet: Services, now: float) -> None:
    there = replace(fleet, now=lambda: now)
    if sweep_fleet(there).collects:
        collect_evidence(there, None, ready=lambda _: None)


def _approved(fleet: Services) -> int:
    with reading(fleet.engine) as conn:
        count = select(func.count()).select_from(evidence).where(evidence.c.status == "succeeded")
        return int(conn.execute(count).scalar_one())


def _most_attempts(fleet: Services) -> int:
    with reading(fleet.engine) as conn:
        return int(conn.execute(select(func.max(evidence.c.attempts))).scalar_one())
