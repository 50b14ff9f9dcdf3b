"""Step `keep_measures`: what a process counted reaches the database once, also when that was away meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import Keyring, change_event
from tests.fakes import counting
from tests.intake_builders import submit
from worker.domain.errors import Unavailable
from worker.domain.measure import ATTEMPTS, DELIVERY, EVIDENCE, EXPIRED, LOST, Series
from worker.domain.turn import ACCEPTED
from worker.flow.collect_evidence import collect_evidence
from worker.flow.keep_measures import keep_measures
from worker.flow.meters import Meters
from worker.flow.services import Services
from worker.store.engine import open_engine, reading
from worker.store.measures import read_measures


def kept(services: Services) -> dict[tuple[str, str, str], float]:
    """Return the attempts in the database, by work, outcome and code."""
    with reading(services.engine) as conn:
        found = read_measures(conn)
    return {(one.subject, one.outcome, one.part): value for one, value in found.items() if one.measure == ATTEMPTS}


def test_each_attempt_is_counted_once(services: Services, keys: Keyring) -> None:
    """Three locales are approved: nothing is written until the measures are kept, and then three, however often."""
    submit(services, keys, change_event(target_locales=["de", "ja", "sv"]))
    collect_evidence(services, "event-1", ready=lambda _: None)
    assert kept(services) == {}
    assert keep_measures(services) == 1
    assert keep_measures(services) == 0
    assert kept(services) == {(EVIDENCE, "succeeded", ""): 3.0}


def test_nothing_counted_asks_nothing(services: Services) -> None:
    """An idle process does not touch the database."""
    with counting(services.engine) as counted:
        keep_measures(services)
    assert (counted.statements, counted.commits) == ([], 0)


def test_counts_outlive_a_database_that_is_away(services: Services, tmp_path: Path) -> None:
    """The refused counts are part of the next, and counted once."""
    away = open_engine(f"sqlite:///{tmp_path / 'away' / 'empty.db'}")  # without tables
    services.meters.attempts(EVIDENCE, "failed", "evidence.timeout", times=2)
    with pytest.raises(Unavailable):
        keep_measures(replace(services, engine=away))
    away.dispose()
    services.meters.attempts(EVIDENCE, "failed", "evidence.timeout")
    keep_measures(services)
    assert kept(services) == {(EVIDENCE, "failed", "evidence.timeout"): 3.0}


def test_visits_and_expired_leases_are_attempts_too() -> None:
    """A settlement counts as it says, a visit whose lease was lost by then as that; expired leases count by their number."""
    meters = Meters()
    meters.visit(ACCEPTED)
    meters.visit(replace(ACCEPTED, status="retry_wait", code="cms.send_window_missed", is_attempt_returned=True))
    meters.visit(None)
    meters.expired(evidence=2, deliveries=0)
    of = {(one.subject, one.outcome, one.part): value for one, value in meters.take().items()}
    assert of == {
        (DELIVERY, "succeeded", ""): 1.0,
        (DELIVERY, "released", "cms.send_window_missed"): 1.0,
        (DELIVERY, LOST, ""): 1.0,
        (EVIDENCE, EXPIRED, "lease_expired"): 2.0,
    }
    assert meters.take() == {}


def test_memory_is_bounded_whatever_codes_come() -> None:
    """A provider that names a new code each time fills nothing up."""
    meters = Meters()
    for number in range(1000):
        meters.attempts(EVIDENCE, "failed", f"evidence.code-{number}")
    counts = meters.take()
    assert len(counts) == 101
    assert counts[Series(measure=ATTEMPTS, subject=EVIDENCE, outcome="failed", part="other")] == 900.0
