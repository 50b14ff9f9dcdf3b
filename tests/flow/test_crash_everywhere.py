"""Crash at every checkpoint of a release, then go on: the same end, and nothing done twice to the outside.

The whole flow runs on a real database: submit, collect, prepare, publish, with a sweep to find what the crash left.
Every message that the dead process had sent or was about to send is lost with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import Table

from tests.builders import NOW, Keyring, change_event, results_for, signed_submission
from tests.fake_cms import FakeCms
from tests.fakes import Checkpoints, Crash, RecordingQueue
from worker.flow.accept_submission import accept_submission
from worker.flow.advance_event import advance_event
from worker.flow.collect_evidence import collect_evidence
from worker.flow.collecting.slot import Collecting
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.schema import approvals, deliveries, events, evidence

Rows = Callable[[Table], list[dict[str, Any]]]
LOCALES = ["de", "fr-CA", "it"]


@dataclass
class Fleet:
    """One process at a time: it takes messages until none is left; a dead one is followed by another."""

    services: Services
    queue: RecordingQueue
    text: str
    now: float = NOW
    is_accepted: bool = False

    def born(self) -> Services:
        """Return a fresh process: nothing but the database and the outside has a memory."""
        return replace(self.services, now=lambda: self.now, collecting=Collecting())

    def live(self) -> None:
        """Submit until it is accepted, sweep, and take every message."""
        process = self.born()
        if not self.is_accepted:
            self.is_accepted = accept_submission(process, self.text).state == "accepted"
        sweep_fleet(process)
        while self.queue.sent:
            message, ids = self.queue.sent.pop(0)
            event_id = ids["event_id"]
            if message == "evidence.collect":
                collect_evidence(process, event_id, ready=lambda ready_id: self.prepare(process, ready_id))
            elif message == "delivery.prepare":
                prepare_delivery(process, event_id)
            else:
                publish_delivery(process, event_id)

    def prepare(self, process: Services, event_id: str) -> None:
        """Do what the task does with an event that became ready."""
        prepare_delivery(process, event_id)


@pytest.fixture
def cms(keys: Keyring) -> FakeCms:
    """A CMS that behaves."""
    return FakeCms(keys=keys)


@pytest.fixture
def fleet(services: Services, keys: Keyring, queue: RecordingQueue, cms: FakeCms) -> Fleet:
    """A fleet before its first submission."""
    event = change_event(target_locales=LOCALES)
    return Fleet(
        services=replace(services, cms=lambda _site_id: cms),
        queue=queue,
        text=signed_submission(keys, event, results_for(event)),
    )


STRAIGHT = [
    "submit.verified",
    "submit.written",
    "submit.committed",
    "submit.woken",
    "sweep.turn",
    "sweep.expired",
    "sweep.run.step",
    "sweep.delivery.prepare",
    "sweep.delivery.publish",
    "sweep.evidence.collect",
    "collect.claimed",
    "collect.answered",
    "collect.signed",
    "collect.settled",
    "collect.ready",
    "prepare.signed",
    "prepare.committed",
    "publish.claimed",
    "publish.answered",
    "publish.settled",
]
IN_DOUBT = ["publish.looked_up", "publish.asked"]


def released(fleet: Fleet, rows: Rows, cms: FakeCms) -> None:
    """Hold the end of a release: N approvals, one delivery, one publication at the CMS, nothing left to do."""
    assert advance_event(fleet.born(), "event-1").status == "delivered"
    assert [row["state"] for row in rows(events)] == ["delivered"]
    assert len(rows(approvals)) == len({row["job_id"] for row in rows(approvals)}) == len(LOCALES)
    assert [row["status"] for row in rows(evidence)] == ["succeeded"] * len(LOCALES)
    (delivery,) = rows(deliveries)
    assert (delivery["status"], delivery["in_doubt"], delivery["lease_token"]) == ("succeeded", False, None)
    assert list(cms.ledger) == [delivery["delivery_id"]]
    assert [entry["locale"] for entry in cms.ledger[delivery["delivery_id"]]["localizations"]] == LOCALES
    assert len(set(cms.requests)) == 1


def test_every_checkpoint_of_a_release_is_crashed_at(
    fleet: Fleet, rows: Rows, cms: FakeCms, checkpoints: Checkpoints
) -> None:
    """The lists above are the checkpoints that a release passes, so that none is forgotten."""
    cms.sends = ["timeout"]
    fleet.live()
    assert set(checkpoints.passed) == set(STRAIGHT)
    fleet.now += 61
    fleet.live()
    assert set(checkpoints.passed) == {*STRAIGHT, *IN_DOUBT}
    released(fleet, rows, cms)


def crash_and_recover(fleet: Fleet, checkpoints: Checkpoints, name: str) -> None:
    """Live until the process dies at a checkpoint, lose its messages, and let others live on."""
    checkpoints.crash_at = name
    with pytest.raises(Crash):
        for _ in range(3):
            fleet.live()
            fleet.now += 61
    checkpoints.crash_at = None
    fleet.queue.take()
    for _ in range(4):
        fleet.now += 301
        fleet.live()


@pytest.mark.parametrize("name", STRAIGHT)
def test_a_crash_anywhere_ends_the_same(
    fleet: Fleet, rows: Rows, cms: FakeCms, checkpoints: Checkpoints, name: str
) -> None:
    """One send whenever the crash came: what was accepted is found by asking, not by sending again (case 69)."""
    crash_and_recover(fleet, checkpoints, name)
    released(fleet, rows, cms)
    assert len(cms.requests) == 1


@pytest.mark.parametrize("word", ["timeout", "lost"])
@pytest.mark.parametrize("name", ["publish.claimed", "publish.answered", "publish.settled", *IN_DOUBT])
def test_a_crash_beside_a_lost_answer_ends_the_same(
    fleet: Fleet, rows: Rows, cms: FakeCms, checkpoints: Checkpoints, name: str, word: str
) -> None:
    """The CMS never got the bytes, or its answer never came: the same bytes, accepted once."""
    cms.sends = [word]
    crash_and_recover(fleet, checkpoints, name)
    released(fleet, rows, cms)
    assert len(cms.requests) == (2 if word == "timeout" else 1)
