"""`locseal quarantine` as people call it: what is listed, and what a release makes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from tests.builders import change_event
from tests.cli.conftest import Home
from tests.delivery_builders import approved_event
from tests.fake_cms import FakeCms
from tests.fakes import Crash
from tests.intake_builders import submit
from worker.domain.errors import Blocked
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.due_evidence import claim_due
from worker.store.engine import reading
from worker.store.schema import deliveries, evidence

HOUR = 3600.0
BEGAN = time.time() - 10 * HOUR  # the commands go by the database's own clock


def poison(services: Services) -> None:
    """Let three leases of all due evidence run out."""
    for n in range(3):
        now = BEGAN + n * HOUR
        claim_due(services.engine, worker_id=f"w-{n}", limit=9, lease_seconds=60, now=now)
        sweep_fleet(replace(services, now=lambda now=now: now + 60))


def test_nothing_is_quarantined(locseal: Callable[..., Any], home: Home) -> None:
    """It says so; and there is nothing to release."""
    assert locseal("quarantine", "list").out == "nothing is quarantined\n"
    refused = locseal("quarantine", "release", "evidence-x", "--json")
    assert refused.code == 1
    assert "quarantine.unknown" in refused.out + refused.err


def test_evidence_is_listed_and_released(locseal: Callable[..., Any], home: Home) -> None:
    """The list names the suspect, the workers and the command; the release makes a new revision, once."""
    submit(replace(home.services, now=lambda: BEGAN), home.keys, change_event(target_locales=["de"]))
    poison(home.services)
    (listed,) = locseal("quarantine", "list", "--json").json["quarantined"]
    assert (listed["kind"], listed["event_id"], listed["step"]) == ("evidence", "event-1", "evidence.collect")
    assert listed["doing"] == "the review by default"
    assert [one["worker_id"] for one in listed["expiries"]] == ["w-0", "w-1", "w-2"]
    assert listed["release"] == f"locseal quarantine release {listed['row_id']}"
    shown = locseal("quarantine", "list", "--site", "site-1").out
    assert "evidence.collect: the review by default" in shown
    assert locseal("quarantine", "list", "--site", "site-2").out == "nothing is quarantined\n"
    done = locseal("quarantine", "release", listed["row_id"])
    assert (done.code, done.out) == (0, "asked about again under revision r2\nnext: locseal releases show event-1\n")
    assert locseal("quarantine", "release", listed["row_id"]).code == 1
    with reading(home.engine) as conn:
        rows = conn.execute(select(evidence.c.evidence_revision, evidence.c.status).order_by(evidence.c.created_at))
        assert [tuple(row) for row in rows] == [("r1", "failed"), ("r2", "pending")]


def test_a_delivery_is_not_released_without_the_cms_s_word(
    locseal: Callable[..., Any], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its CMS does not answer: refused, with everything as it was."""
    monkeypatch.setenv("LOCSEAL_CMS", '{"default": {"url": "https://127.0.0.1:1"}}')
    fleet = replace(home.services, cms=lambda _site: FakeCms(keys=home.keys))
    approved_event(replace(fleet, now=lambda: BEGAN), home.keys)
    prepare_delivery(replace(fleet, now=lambda: BEGAN), "event-1")

    def crash(name: str) -> None:
        if name == "publish.claimed":
            raise Crash

    for n in range(3):
        with pytest.raises(Crash):
            publish_delivery(replace(fleet, now=lambda n=n: BEGAN + n * HOUR, checkpoint=crash), "event-1")
    with pytest.raises(Blocked):
        publish_delivery(replace(fleet, now=lambda: BEGAN + 3 * HOUR), "event-1")
    (listed,) = locseal("quarantine", "list", "--json").json["quarantined"]
    assert (listed["kind"], listed["doing"]) == ("delivery", "look-up")
    refused = locseal("quarantine", "release", listed["row_id"])
    assert (refused.code, "cms.lookup.no_answer" in refused.err) == (1, True)
    with reading(home.engine) as conn:
        row = conn.execute(select(deliveries.c.status, deliveries.c.in_doubt)).one()
    assert tuple(row) == ("failed", True)
