"""Renewals, hand-ins and revocations against whatever else happens at the same moment; by the database's own clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.builders import Keyring, change_event, request_for, results_for, signed_response, signed_submission
from tests.evidence_builders import ScriptedProvider, good
from tests.fake_cms import FakeCms
from tests.intake_builders import Rows
from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceRequest, NotYet
from worker.flow.accept_response import accept_response
from worker.flow.accept_submission import accept_submission
from worker.flow.collect_evidence import collect_evidence
from worker.flow.collecting.slot import Collecting
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.renew_evidence import renew_evidence
from worker.flow.revoke_approval import revoke_approval
from worker.flow.services import Services
from worker.store.schema import approvals, deliveries, events, evidence, operator_requests

ROUNDS = 12


@pytest.fixture
def live(services: Services, keys: Keyring) -> Services:
    """Services that go by the database's clock, with a CMS that takes everything."""
    cms = FakeCms(keys=keys)
    return replace(services, now=lambda: None, cms=lambda _site: cms)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls at the same moment and return what each returned, or the code it was refused with."""
    together = threading.Barrier(len(calls), timeout=30)

    def run(call: Callable[[], Any]) -> Any:
        together.wait()
        try:
            return call()
        except Blocked as refusal:
            return refusal.code

    with ThreadPoolExecutor(len(calls)) as threads:
        return [done.result() for done in [threads.submit(run, call) for call in calls]]


def prepared(services: Services, keys: Keyring, turn: int) -> str:
    """Have an event approved and its delivery prepared; return the event's id."""
    event = change_event(event_id=f"e-{turn}", source_id=f"s-{turn}", target_locales=["de", "fr"])
    assert accept_submission(services, signed_submission(keys, event, results_for(event))).state == "accepted"
    collect(services)
    prepare_delivery(services, f"e-{turn}")
    return f"e-{turn}"


def collect(services: Services) -> None:
    """Collect as a process of its own."""
    collect_evidence(replace(services, collecting=Collecting()), None, ready=lambda _: None)


def test_two_words_at_once_renew_once(live: Services, keys: Keyring, rows: Rows) -> None:
    """Under two ids one of them finds it asked for already; under one id both get the same answer."""
    for turn in range(ROUNDS):
        event_id = prepared(live, keys, turn)
        same = turn % 2 == 0

        def word(number: int, event_id: str = event_id, *, same: bool = same) -> Any:
            request_id = event_id if same else f"{event_id}-{number}"
            return renew_evidence(live, event_id, every=True, request_id=request_id)

        first, second = at_once(lambda: word(1), lambda: word(2))
        if same:
            assert first == second
        else:
            assert [first, second].count("evidence.nothing_to_renew") == 1
        of_event = [row for row in rows(evidence) if row["event_id"] == event_id]
        assert sorted(row["evidence_revision"] for row in of_event) == ["r1", "r1", "r2", "r2"]
    assert len(rows(operator_requests)) == ROUNDS


def test_a_renewal_and_a_send_never_both_count(live: Services, keys: Keyring, rows: Rows) -> None:
    """Either the old delivery is published and none follows, or it is closed unsent; exactly one is ever accepted."""
    cms = live.cms("site-1")
    assert isinstance(cms, FakeCms)
    for turn in range(ROUNDS):
        event_id = prepared(live, keys, turn)
        renew_evidence(live, event_id, every=True, request_id=event_id)
        collect(live)
        at_once(partial(prepare_delivery, live, event_id), partial(publish_delivery, live, event_id))
        of_event = [row for row in rows(deliveries) if row["event_id"] == event_id]
        assert len([row for row in of_event if row["status"] != "failed"]) == 1
        if len(of_event) == 2:
            [closed] = [row for row in of_event if row["status"] == "failed"]
            assert (closed["last_error_code"], closed["sent_at"]) == ("cms.delivery.renewed", None)
            assert publish_delivery(live, event_id).status == "delivered"
        assert [row["state"] for row in rows(events) if row["event_id"] == event_id] == ["delivered"]
        assert len([one for one in cms.ledger.values() if one["event_id"] == event_id]) == 1


def test_preparing_a_renewal_twice_at_once_stores_one_successor(live: Services, keys: Keyring, rows: Rows) -> None:
    """Whoever comes second finds it, or finds the old one closed; never two open deliveries."""
    for turn in range(ROUNDS):
        event_id = prepared(live, keys, turn)
        renew_evidence(live, event_id, every=True, request_id=event_id)
        collect(live)
        at_once(*[partial(prepare_delivery, live, event_id)] * 3)
        of_event = sorted(row["status"] for row in rows(deliveries) if row["event_id"] == event_id)
        assert of_event == ["failed", "pending"]


def test_an_answer_that_comes_as_the_row_is_put_off_is_due_at_once(live: Services, keys: Keyring, rows: Rows) -> None:
    """Whichever of the two commits first, the row does not wait out the provider's hour."""
    for turn in range(ROUNDS):
        event = change_event(event_id=f"e-{turn}", source_id=f"s-{turn}", target_locales=["de"])
        accept_submission(live, signed_submission(keys, event, results_for(event)))
        text = signed_response(keys, request_for(event))
        together = threading.Barrier(2, timeout=30)

        def put_off(_request: EvidenceRequest, together: threading.Barrier = together) -> NotYet:
            together.wait()
            return NotYet(retry_after_seconds=3600.0)

        def push(text: str = text, together: threading.Barrier = together) -> Any:
            together.wait()
            return accept_response(live, text)

        slow = replace(live, providers={"default": ScriptedProvider(put_off)}, collecting=Collecting())
        with ThreadPoolExecutor(2) as threads:
            pushed = threads.submit(push)
            threads.submit(collect_evidence, slow, None, ready=lambda _: None).result()
            assert pushed.result().state == "accepted"
        [row] = [row for row in rows(evidence) if row["event_id"] == f"e-{turn}"]
        assert row["status"] == "retry_wait"
        assert row["next_attempt_at"] <= time.time() + 1
        quick = replace(live, providers={"default": ScriptedProvider(good(keys))}, collecting=Collecting())
        assert collect_evidence(quick, None, ready=lambda _: None).approved == 1


def test_a_revocation_as_it_is_sent_counts_before_or_after(live: Services, keys: Keyring, rows: Rows) -> None:
    """Before the claim it stops the delivery, after it nothing is called back; no half of either."""
    for turn in range(ROUNDS):
        event_id = prepared(live, keys, turn)
        requests = {row["request_id"] for row in rows(evidence) if row["event_id"] == event_id}
        approval_id = next(row["approval_id"] for row in rows(approvals) if row["request_id"] in requests)
        at_once(
            partial(revoke_approval, live, approval_id, reason="r", operator="ada"),
            partial(publish_delivery, live, event_id),
        )
        [row] = [row for row in rows(deliveries) if row["event_id"] == event_id]
        assert (row["status"], row["last_error_code"]) in {
            ("succeeded", None),
            ("failed", "cms.delivery.approval_expired"),
        }
        assert (row["sent_at"] is None) == (row["status"] == "failed")
