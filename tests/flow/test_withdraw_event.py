"""Withdrawing events: what ends, what refuses, what is kept for an event that is still to come (SPEC section 3)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, update

from tests.builders import NOW, Keyring, change_event, results_for, signed_submission, signed_withdrawal, withdrawal
from tests.fakes import RecordingQueue
from tests.intake_builders import Everything, Rows, asked, change_row, deliver, later, states, submit
from worker.domain.acceptance import Acceptance
from worker.domain.canonical import sha256_hex
from worker.flow.accept_submission import accept_submission
from worker.flow.services import Services
from worker.flow.withdraw_event import withdraw_event
from worker.store.engine import writing
from worker.store.schema import deliveries, events, evidence, public_keys, rejections, submissions, withdrawals


def withdraw(services: Services, keys: Keyring, event: dict[str, Any]) -> Acceptance:
    """Send the withdrawal of an event."""
    return withdraw_event(services, signed_withdrawal(keys, event))


def test_unpublished_event_is_withdrawn_with_all_that_waits(
    services: Services, keys: Keyring, engine: Engine, queue: RecordingQueue, rows: Rows
) -> None:
    """The event ends: due evidence and the unsent delivery fail, a leased row stays; the document is kept."""
    event = change_event()
    submit(services, keys, event)
    first, second = rows(evidence)
    change_row(engine, second, status="leased", attempts=1, lease_owner="w", lease_token="t", lease_expires_at=NOW + 9)
    deliver(engine, event)
    queue.take()
    text = signed_withdrawal(keys, event)
    answer = withdraw_event(services, text)
    assert answer == Acceptance(document_sha256=sha256_hex(text), state="accepted", event_id="event-1")
    assert states(rows) == {"event-1": "withdrawn"}
    found = {row["request_id"]: (row["status"], row["last_error_code"]) for row in rows(evidence)}
    assert found == {
        first["request_id"]: ("failed", "evidence.withdrawn"),
        second["request_id"]: ("leased", None),
    }
    assert [(row["status"], row["last_error_code"]) for row in rows(deliveries)] == [("failed", "withdrawn")]
    assert rows(withdrawals) == [
        {
            "event_id": "event-1",
            "site_id": "site-1",
            "document_sha256": sha256_hex(text),
            "received_at": NOW,
            "applied_at": NOW,
        }
    ]
    kept = {row["document_sha256"]: (row["kind"], row["body"], row["kid"]) for row in rows(submissions)}
    assert kept[sha256_hex(text)] == ("withdrawal", text, "submission-1")
    assert [row["kid"] for row in rows(public_keys)] == ["submission-1"]
    assert queue.take() == []


@pytest.mark.parametrize(
    ("delivery", "code"),
    [
        (
            {"status": "leased", "lease_owner": "w", "lease_token": "t", "lease_expires_at": NOW + 9, "in_doubt": True},
            "withdrawal.in_flight",
        ),
        (
            {"status": "leased", "lease_owner": "w", "lease_token": "t", "lease_expires_at": NOW - 9, "in_doubt": True},
            "withdrawal.in_flight",
        ),
        ({"status": "retry_wait", "last_error_code": "cms.timeout", "in_doubt": True}, "withdrawal.in_flight"),
        ({"status": "failed", "last_error_code": "cms.outcome_unknown", "in_doubt": True}, "withdrawal.in_flight"),
        ({"status": "failed", "last_error_code": "cms.outcome_unknown"}, "withdrawal.in_flight"),
        ({"status": "succeeded", "acknowledged_at": NOW}, "withdrawal.published"),
    ],
)
def test_withdrawal_that_comes_too_late_is_refused(
    services: Services,
    keys: Keyring,
    engine: Engine,
    rows: Rows,
    everything: Everything,
    delivery: dict[str, Any],
    code: str,
) -> None:
    """What is at the CMS, or may be, is not withdrawn: the rejection is all that is written."""
    submit(services, keys, change_event())
    deliver(engine, change_event(), **delivery)
    before = everything()
    answer = withdraw(services, keys, change_event())
    assert (answer.state, answer.code, answer.path) == ("rejected", code, "event_id")
    after = everything()
    del after["rejections"], before["rejections"]
    assert after == before
    assert [(row["message"], row["code"]) for row in rows(rejections)] == [("release.withdraw", code)]


def test_refused_withdrawal_may_succeed_later(services: Services, keys: Keyring, engine: Engine, rows: Rows) -> None:
    """The same bytes are accepted once the delivery is known not to be at the CMS."""
    submit(services, keys, change_event())
    deliver(engine, change_event(), status="retry_wait", last_error_code="cms.timeout", in_doubt=True)
    assert withdraw(services, keys, change_event()).code == "withdrawal.in_flight"
    writing(engine, lambda conn: conn.execute(update(deliveries).values(in_doubt=False)))
    assert withdraw(services, keys, change_event()).state == "accepted"
    assert states(rows) == {"event-1": "withdrawn"} and rows(deliveries)[0]["status"] == "failed"


def test_delivered_event_is_not_withdrawn(services: Services, keys: Keyring, engine: Engine, rows: Rows) -> None:
    """A delivered event stays delivered."""
    submit(services, keys, change_event())
    writing(engine, lambda conn: conn.execute(update(events).values(state="delivered")))
    assert withdraw(services, keys, change_event()).code == "withdrawal.published"
    assert states(rows) == {"event-1": "delivered"}


def test_a_document_accepted_as_one_thing_is_no_other(
    services: Services, keys: Keyring, everything: Everything, rows: Rows
) -> None:
    """A submission sent as a withdrawal, or a withdrawal as a submission, is rejected and changes nothing."""
    event = change_event()
    submission = signed_submission(keys, event, results_for(event))
    other = change_event(event_id="event-2", source_sequence=2)
    retraction = signed_withdrawal(keys, other)
    assert accept_submission(services, submission).state == "accepted"
    assert withdraw_event(services, retraction).state == "accepted"
    before = everything()
    assert withdraw_event(services, submission).state == "rejected"
    assert accept_submission(services, retraction).state == "rejected"
    assert states(rows) == {"event-1": "open"}
    changed = {name for name, held in everything().items() if held != before[name]}
    assert changed == {"rejections"}


def test_repeats_are_idempotent(services: Services, keys: Keyring, everything: Everything, rows: Rows) -> None:
    """The same bytes change nothing; another document with the same word is kept, and changes nothing else."""
    submit(services, keys, change_event())
    first = withdraw(services, keys, change_event())
    before = everything()
    assert withdraw(services, keys, change_event()) == first
    assert everything() == before
    spaced = signed_withdrawal(keys, change_event()).replace('{"document"', '{ "document"')
    assert withdraw_event(services, spaced).state == "accepted"
    after = everything()
    assert len(after.pop("submissions")) == len(before.pop("submissions")) + 1
    assert after == before


def test_withdrawn_event_stays_withdrawn_when_results_or_newer_events_come(
    services: Services, keys: Keyring, queue: RecordingQueue, rows: Rows
) -> None:
    """Nothing brings a withdrawn event back: later results are kept but not asked about, a newer event passes by."""
    submit(services, keys, change_event(), [])
    withdraw(services, keys, change_event())
    assert submit(services, keys, change_event()).state == "accepted"
    assert rows(evidence) == [] and queue.take() == []
    submit(services, keys, later())
    assert states(rows) == {"event-1": "withdrawn", "event-2": "open"}
    assert asked(rows) == {("event-2", "r1", "pending", None)}


def test_superseded_event_may_still_be_withdrawn(services: Services, keys: Keyring, rows: Rows) -> None:
    """Withdrawing wins over being superseded, in whatever order they come."""
    submit(services, keys, change_event())
    submit(services, keys, later())
    assert withdraw(services, keys, change_event()).state == "accepted"
    assert states(rows) == {"event-1": "withdrawn", "event-2": "open"}


def test_withdrawal_and_event_at_once_end_withdrawn(services: Services, keys: Keyring, rows: Rows) -> None:
    """However the two race, the event is withdrawn in the end: neither misses the other."""
    for number in range(12):
        event = change_event(event_id=f"event-{number}", source_id=f"s-{number}")
        jobs: list[tuple[Callable[[Services, str], Acceptance], str]] = [
            (accept_submission, signed_submission(keys, event, results_for(event))),
            (withdraw_event, signed_withdrawal(keys, event)),
        ]
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda job: job[0](services, job[1]), jobs))
        assert [answer.state for answer in answers] == ["accepted", "accepted"]
    assert set(states(rows).values()) == {"withdrawn"} and len(states(rows)) == 12
    assert {row["applied_at"] for row in rows(withdrawals)} == {NOW}
    assert {row["status"] for row in rows(evidence)} <= {"failed"}


def signed(keys: Keyring, document: dict[str, Any], purpose: str = "submission") -> str:
    """Sign any document."""
    return keys.sign(purpose, document).to_text()


@pytest.mark.parametrize(
    ("make", "code", "path"),
    [
        (lambda _keys: "x", "withdrawal.invalid", ""),
        (lambda keys: signed_withdrawal(keys, change_event()) + " " * 65_536, "withdrawal.invalid", ""),
        (lambda keys: signed(keys, withdrawal(change_event()) | {"why": "x"}), "withdrawal.invalid", "why"),
        (lambda keys: signed(keys, withdrawal(change_event(event_id="a b"))), "withdrawal.invalid", "event_id"),
        (
            lambda keys: signed(keys, withdrawal(change_event()), "approval"),
            "withdrawal.signature.invalid",
            "signature",
        ),
        (
            lambda keys: signed(keys, withdrawal(change_event(site_id="site-9"))),
            "submission.key.not_for_site",
            "site_id",
        ),
        (lambda keys: signed(keys, withdrawal(change_event(site_id="site-2"))), "withdrawal.site_mismatch", "site_id"),
        (lambda keys: signed_submission(keys, change_event()), "withdrawal.invalid", None),
    ],
)
def test_bad_withdrawal_ends_in_a_rejection_and_nothing_else(
    services: Services,
    keys: Keyring,
    everything: Everything,
    rows: Rows,
    make: Callable[[Keyring], str],
    code: str,
    path: str | None,
) -> None:
    """Whatever is wrong with a withdrawal, it is kept as a rejection; the event goes on."""
    submit(services, keys, change_event())
    before = everything()
    answer = withdraw_event(services, make(keys))
    assert (answer.state, answer.code) == ("rejected", code)
    if path is not None:
        assert answer.path == path
    after = everything()
    del after["rejections"], before["rejections"]
    assert after == before
    assert [(row["code"], row["times"]) for row in rows(rejections)] == [(code, 1)]
