"""How many statements and commits a release costs, from the message to the stored delivery, on one worker.

The provider answers at once; BEGIN, COMMIT and SET are not counted. The bounds are the product's promise, so a change
that needs one more statement has to save one elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builders import Keyring, change_event
from tests.fakes import RecordingQueue, counting
from tests.intake_builders import LOCALES, Rows, submit
from tests.store.rows import contents
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.services import Services
from worker.store.schema import approvals, deliveries
from worker.store.warming import warm_up


@pytest.fixture
def live(services: Services) -> Services:
    """Services of a fresh process that go by the database's own clock, which costs a statement."""
    return replace(services, now=lambda: None)


def release(services: Services, keys: Keyring, locales: list[str]) -> Collected:
    """Take an event from its submission to its stored delivery, as the tasks do."""
    assert submit(services, keys, change_event(target_locales=locales)).state == "accepted"
    return collect_evidence(services, "event-1", ready=lambda event_id: prepare_delivery(services, event_id))


def test_one_locale_from_claim_to_stored_approval(live: Services, keys: Keyring, rows: Rows) -> None:
    """Claim to stored approval is at most 8 statements and 2 commits, in a process that never did it before."""
    submit(live, keys, change_event(target_locales=["de"]))
    stored: list[int] = []

    def look(name: str) -> None:
        if name == "collect.settled":
            stored.append(len(counted.statements))
            assert counted.commits <= 2

    with counting(live.engine) as counted:
        collect_evidence(replace(live, checkpoint=look), "event-1", ready=lambda _: None)
    assert len(rows(approvals)) == 1
    assert len(stored) == 1
    assert stored[0] <= 8


def test_one_locale_on_the_whole_path(live: Services, keys: Keyring, rows: Rows) -> None:
    """The whole path of one locale is at most 20 statements and 4 commits."""
    with counting(live.engine) as counted:
        assert release(live, keys, ["de"]) == Collected(claimed=1, approved=1)
    assert len(rows(deliveries)) == 1
    assert (len(counted.statements) <= 20, counted.commits <= 4) == (True, True), counted


def test_24_locales_on_the_whole_path(live: Services, keys: Keyring, queue: RecordingQueue, rows: Rows) -> None:
    """The whole path of 24 locales is at most 40 statements and 12 commits."""
    with counting(live.engine) as counted:
        assert release(live, keys, LOCALES) == Collected(claimed=24, approved=24)
    assert (len(rows(approvals)), len(rows(deliveries))) == (24, 1)
    assert (len(counted.statements) <= 40, counted.commits <= 12) == (True, True), counted
    assert queue.sent == [("evidence.collect", {"event_id": "event-1"}), ("delivery.publish", {"event_id": "event-1"})]


def test_what_a_worker_warms_up_with_is_what_locales_need(live: Services, keys: Keyring) -> None:
    """Every statement that a starting worker runs for no row is one of the path, word for word; none changes anything."""
    assert submit(live, keys, change_event(target_locales=["de", "fr"])).state == "accepted"
    before = contents(live.engine)
    with counting(live.engine) as warmed:
        warm_up(live.engine)
    assert contents(live.engine) == before
    with counting(live.engine) as counted:
        collect_evidence(live, "event-1", ready=lambda event_id: prepare_delivery(live, event_id))
    assert len(warmed.statements) == 16
    assert set(warmed.statements) <= set(counted.statements)
