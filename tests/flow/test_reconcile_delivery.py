"""Reconciling: the one thing that may move a failed delivery, by a signed answer or an operator's word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table, update

from tests.builders import NOW, Keyring
from tests.delivery_builders import approved_event
from tests.fake_cms import FakeCms
from worker.domain.canonical import parse_strict
from worker.domain.errors import Blocked
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.reconcile_delivery import OperatorsWord, reconcile_delivery
from worker.flow.retry_delivery import retry_delivery
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.schema import deliveries, delivery_answers, events

Rows = Callable[[Table], list[dict[str, Any]]]
Everything = Callable[[], object]


@pytest.fixture
def cms(keys: Keyring) -> FakeCms:
    """A CMS that accepted the text and then answered in a way that nobody could verify."""
    return FakeCms(keys=keys, sends=["unverifiable"])


@pytest.fixture
def services(services: Services, cms: FakeCms) -> Services:
    """The services of a step, with that CMS."""
    return replace(services, cms=lambda _site_id: cms)


@pytest.fixture
def unknown(services: Services, keys: Keyring) -> str:
    """A delivery that failed with `cms.outcome_unknown`; its id."""
    approved_event(services, keys)
    advance = prepare_delivery(services, "event-1")
    with pytest.raises(Blocked):
        publish_delivery(services, "event-1")
    assert advance.delivery_id is not None
    return advance.delivery_id


def later(services: Services, seconds: float = 61) -> Services:
    """The same services after the time in which an absent does not count."""
    return replace(services, now=lambda: NOW + seconds)


def refused(call: Callable[[], object]) -> tuple[str, bool]:
    """Return the code that a call raises, and whether trying again can help."""
    with pytest.raises(Blocked) as fault:
        call()
    return fault.value.code, fault.value.retryable


def test_a_signed_accepted_makes_it_delivered(services: Services, rows: Rows, cms: FakeCms, unknown: str) -> None:
    """The text was live all along; the answer is kept, and the event is delivered."""
    cms.ledger[unknown] = {}
    advance = reconcile_delivery(later(services, 5), unknown)
    assert (advance.status, advance.event_id, advance.delivery_id) == ("delivered", "event-1", unknown)
    (row,), (event,), (answer,) = rows(deliveries), rows(events), rows(delivery_answers)
    assert (row["status"], row["in_doubt"], row["last_error_code"]) == ("succeeded", False, None)
    assert (row["acknowledged_at"], event["state"]) == (NOW + 5, "delivered")
    assert (answer["kind"], answer["outcome"], answer["nonce"]) == ("lookup", "accepted", cms.questions[0].nonce)
    assert len(cms.requests) == 1


def test_a_signed_absent_closes_it_and_a_retry_may_follow(
    services: Services, rows: Rows, cms: FakeCms, unknown: str
) -> None:
    """It is certain now that it is not live; nothing is sent until an operator asks for it."""
    assert reconcile_delivery(later(services), unknown).status == "approved"
    (row,), (answer,) = rows(deliveries), rows(delivery_answers)
    assert (row["status"], row["in_doubt"], row["last_error_code"]) == ("failed", False, "cms.delivery.absent")
    assert (answer["outcome"], rows(events)[0]["state"]) == ("absent", "open")
    assert len(cms.requests) == 1
    retry_delivery(services, "event-1")
    assert prepare_delivery(services, "event-1").delivery_id == unknown
    assert publish_delivery(services, "event-1").status == "delivered"


def test_an_absent_that_does_not_count_yet_moves_nothing(
    services: Services, cms: FakeCms, unknown: str, everything: Everything
) -> None:
    """Until the send deadline and thirty seconds are over, the send may still arrive."""
    before = everything()
    call = lambda: reconcile_delivery(later(services, 60), unknown)  # noqa: E731
    assert refused(call) == ("cms.lookup.absent_too_early", True)
    assert everything() == before


@pytest.mark.parametrize("word", ["silent", "unverifiable"])
def test_without_a_signed_answer_nothing_moves(
    services: Services, cms: FakeCms, unknown: str, everything: Everything, word: str
) -> None:
    """An unsigned answer is no answer."""
    before = everything()
    cms.lookups = [word]
    assert refused(lambda: reconcile_delivery(later(services), unknown)) == ("cms.lookup.no_answer", True)
    assert everything() == before


@pytest.mark.parametrize(
    ("outcome", "status", "after", "state"),
    [
        ("accepted", "delivered", ("succeeded", False, None), "delivered"),
        ("closed", "approved", ("failed", False, "cms.delivery.absent"), "open"),
    ],
)
def test_an_operators_word_counts_and_is_kept(
    services: Services,
    rows: Rows,
    cms: FakeCms,
    unknown: str,
    outcome: Any,
    status: str,
    after: tuple[Any, ...],
    state: str,
) -> None:
    """Who said it, why, and about which bytes; the CMS is not asked."""
    word = OperatorsWord(outcome=outcome, operator="mira", reason="looked at the page")
    assert reconcile_delivery(services, unknown, word).status == status
    (row,), (answer,) = rows(deliveries), rows(delivery_answers)
    assert (row["status"], row["in_doubt"], row["last_error_code"]) == after
    assert rows(events)[0]["state"] == state
    assert (answer["kind"], answer["outcome"], answer["signature"]) == ("operator", outcome, None)
    assert parse_strict(answer["document"], max_bytes=10_000) == {
        "schema": "locseal.operators-word.v1",
        "delivery_id": unknown,
        "payload_sha256": row["payload_sha256"],
        "outcome": outcome,
        "operator": "mira",
        "reason": "looked at the page",
        "at": NOW,
    }
    assert cms.questions == []


@pytest.mark.parametrize(
    "change",
    [
        {"status": "pending", "in_doubt": False, "last_error_code": None},
        {"status": "retry_wait"},
        {"last_error_code": "cms.delivery.http_422", "in_doubt": False},
        {"status": "succeeded", "in_doubt": False, "last_error_code": None},
    ],
)
def test_any_other_delivery_is_left_alone(
    services: Services,
    engine: Engine,
    cms: FakeCms,
    unknown: str,
    everything: Everything,
    change: dict[str, Any],
) -> None:
    """Only an unknown outcome is reconciled, whatever the operator says."""
    writing(engine, lambda conn: conn.execute(update(deliveries).values(**change)))
    before = everything()
    word = OperatorsWord(outcome="accepted", operator="mira", reason="")
    assert refused(lambda: reconcile_delivery(services, unknown, word)) == ("cms.delivery.outcome_known", False)
    assert refused(lambda: reconcile_delivery(services, "delivery-x")) == ("cms.delivery.unknown", False)
    assert (everything(), cms.questions) == (before, [])


def test_of_two_words_at_once_the_first_moves_the_row(services: Services, rows: Rows, unknown: str) -> None:
    """The second finds it moved, and appends nothing."""
    first = OperatorsWord(outcome="accepted", operator="mira", reason="seen")
    second = OperatorsWord(outcome="closed", operator="noor", reason="not seen")

    def interrupt(name: str) -> None:
        if name == "reconcile.answered":
            reconcile_delivery(services, unknown, first)

    late = replace(services, checkpoint=interrupt)
    assert refused(lambda: reconcile_delivery(late, unknown, second)) == ("cms.delivery.outcome_known", False)
    assert [row["outcome"] for row in rows(delivery_answers)] == ["accepted"]
    assert rows(deliveries)[0]["status"] == "succeeded"


def test_a_superseded_event_whose_text_is_live_after_all_is_delivered_and_lets_the_newer_one_go(
    services: Services, keys: Keyring, rows: Rows, cms: FakeCms, unknown: str
) -> None:
    """What is live is recorded as published; what waited behind it follows."""
    approved_event(services, keys, event_id="event-2", source_sequence=2, source_text="Second text")
    prepare_delivery(services, "event-2")
    assert publish_delivery(services, "event-2").status == "delivery_ready"
    word = OperatorsWord(outcome="accepted", operator="mira", reason="seen")
    assert reconcile_delivery(services, unknown, word).status == "delivered"
    assert publish_delivery(services, "event-2").status == "delivered"
    assert [row["state"] for row in rows(events)] == ["delivered", "delivered"]
