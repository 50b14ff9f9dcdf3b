"""Intake dies at every checkpoint and the message comes again: the end is the same (HOUSE, tests of flow)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import NOW, Keyring, change_event, results_for, signed_submission, signed_withdrawal
from tests.fakes import Checkpoints, Crash, RecordingQueue
from tests.intake_builders import Everything, Rows, asked, states, submit
from worker.domain.errors import Unavailable
from worker.domain.signature import TrustSet
from worker.flow.accept_submission import accept_submission
from worker.flow.reject_message import reject_message
from worker.flow.services import Services
from worker.flow.withdraw_event import withdraw_event
from worker.store.schema import rejections, submissions, withdrawals

ACCEPTED = ["submit.verified", "submit.written", "submit.committed", "submit.woken"]
REJECTED = ["submit.refused", "submit.rejected"]


def test_checkpoints_are_all_named_here(services: Services, keys: Keyring, checkpoints: Checkpoints) -> None:
    """The checkpoints that the crash tests go through are all there are."""
    submit(services, keys, change_event())
    assert checkpoints.passed == ACCEPTED
    checkpoints.passed.clear()
    accept_submission(services, "no document")
    assert checkpoints.passed == REJECTED


@pytest.mark.parametrize("name", ACCEPTED)
def test_crash_anywhere_then_the_message_again(
    services: Services,
    keys: Keyring,
    queue: RecordingQueue,
    checkpoints: Checkpoints,
    rows: Rows,
    everything: Everything,
    name: str,
) -> None:
    """Wherever the process dies, the redelivered message ends in the same rows; at most the wake is left to the sweeper."""
    text = signed_submission(keys, change_event(), results_for(change_event()))
    before = everything()
    checkpoints.crash_at = name
    with pytest.raises(Crash):
        accept_submission(services, text)
    if name in {"submit.verified", "submit.written"}:
        assert everything() == before
    checkpoints.crash_at = None
    assert accept_submission(services, text).state == "accepted"
    assert states(rows) == {"event-1": "open"} and asked(rows) == {("event-1", "r1", "pending", None)}
    assert len(rows(submissions)) == 1
    assert len(queue.take()) == (0 if name == "submit.committed" else 1)


@pytest.mark.parametrize("name", REJECTED)
def test_crash_while_rejecting_then_the_message_again(
    services: Services, checkpoints: Checkpoints, rows: Rows, name: str
) -> None:
    """A rejection is kept at the latest by the redelivered message."""
    checkpoints.crash_at = name
    with pytest.raises(Crash):
        accept_submission(services, "no document")
    checkpoints.crash_at = None
    assert accept_submission(services, "no document").code == "submission.invalid"
    assert [row["times"] for row in rows(rejections)] == [1 if name == "submit.refused" else 2]


def test_lost_wake_loses_nothing(services: Services, keys: Keyring, queue: RecordingQueue, rows: Rows) -> None:
    """With the broker down the submission is accepted all the same, and its rows are due."""
    queue.is_up = False
    assert submit(services, keys, change_event()).state == "accepted"
    assert asked(rows) == {("event-1", "r1", "pending", None)}


WITHDRAWN = ["withdraw.verified", "withdraw.written", "withdraw.committed"]


def test_checkpoints_of_a_withdrawal_are_all_named_here(
    services: Services, keys: Keyring, checkpoints: Checkpoints
) -> None:
    """The checkpoints that the crash tests of withdrawals and of other rejections go through are all there are."""
    withdraw_event(services, signed_withdrawal(keys, change_event()))
    assert checkpoints.passed == WITHDRAWN
    checkpoints.passed.clear()
    withdraw_event(services, "no document")
    assert checkpoints.passed == ["withdraw.refused", "withdraw.rejected"]
    checkpoints.passed.clear()
    reject_message(services, message="release.submit", body=b"x", code="submission.invalid", path="version")
    assert checkpoints.passed == ["reject.refused", "reject.recorded"]


@pytest.mark.parametrize("name", WITHDRAWN)
def test_crash_while_withdrawing_then_the_message_again(
    services: Services, keys: Keyring, checkpoints: Checkpoints, rows: Rows, everything: Everything, name: str
) -> None:
    """Wherever the process dies, the redelivered withdrawal ends in the same rows."""
    submit(services, keys, change_event())
    text = signed_withdrawal(keys, change_event())
    before = everything()
    checkpoints.crash_at = name
    with pytest.raises(Crash):
        withdraw_event(services, text)
    if name != "withdraw.committed":
        assert everything() == before
    checkpoints.crash_at = None
    assert withdraw_event(services, text).state == "accepted"
    assert states(rows) == {"event-1": "withdrawn"}
    assert asked(rows) == {("event-1", "r1", "failed", "evidence.withdrawn")}
    assert [row["applied_at"] for row in rows(withdrawals)] == [NOW]
    assert len(rows(submissions)) == 2


class BrokenKeys:
    """Keys whose trust files cannot be read now."""

    def trust(self, purpose: str) -> TrustSet:
        raise Unavailable("keys.trust.invalid", "mend the file")


def test_our_own_fault_is_raised_and_never_a_rejection(
    services: Services, keys: Keyring, queue: RecordingQueue, everything: Everything
) -> None:
    """Broken key files, like a broken database, are for the task to try again: nothing is written or sent."""
    before = everything()
    broken: Any = replace(services, keys=BrokenKeys())  # type: ignore[arg-type]
    for step, text in (
        (accept_submission, signed_submission(keys, change_event())),
        (withdraw_event, signed_withdrawal(keys, change_event())),
    ):
        with pytest.raises(Unavailable) as raised:
            step(broken, text)
        assert (raised.value.code, raised.value.retryable) == ("keys.trust.invalid", True)
    assert everything() == before and queue.take() == []
