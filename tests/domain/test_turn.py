"""What may follow for a delivery: the whole table of turns, and what each answer makes of a lease."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.domain.delivery import CmsAnswer
from worker.domain.errors import Blocked
from worker.domain.turn import (
    ACCEPTED,
    UNKNOWN,
    Absent,
    Ask,
    Asked,
    Close,
    Over,
    Promise,
    Send,
    Settlement,
    Standing,
    Turn,
    Wait,
    after_absent,
    after_lookup,
    after_send,
    next_turn,
    not_asked,
    not_sent,
    standing_status,
)

NOW = 1_800_000_000.0
ASKS = Promise(has_lookup=True, is_idempotent=False)
REPEATS = Promise(has_lookup=False, is_idempotent=True)
NEITHER = Promise(has_lookup=False, is_idempotent=False)


def standing(**changes: Any) -> Standing:
    """Return a delivery that may be sent."""
    values: dict[str, Any] = {
        "status": "pending",
        "code": None,
        "attempts": 0,
        "max_attempts": 5,
        "next_attempt_at": NOW,
        "in_doubt": False,
        "event_state": "open",
        "is_older_unsettled": False,
        "is_permitted": True,
        "approvals_code": None,
        "now": NOW,
    }
    return Standing(**(values | changes))


DOUBT = {"status": "retry_wait", "in_doubt": True, "attempts": 1}


@pytest.mark.parametrize(
    ("changes", "promise", "turn"),
    [
        ({}, ASKS, Send(was_in_doubt=False)),
        ({"status": "succeeded"}, ASKS, Over(status="succeeded", code=None)),
        ({"status": "failed", "code": "cms.x"}, ASKS, Over(status="failed", code="cms.x")),
        ({"next_attempt_at": NOW + 0.1}, ASKS, Wait(reason="due")),
        ({"event_state": "superseded"}, ASKS, Close(code="superseded")),
        ({"event_state": "withdrawn"}, ASKS, Close(code="withdrawn")),
        ({"approvals_code": "cms.delivery.approval_expired"}, ASKS, Close(code="cms.delivery.approval_expired")),
        ({"is_older_unsettled": True}, ASKS, Wait(reason="older")),
        ({"is_permitted": False}, ASKS, Wait(reason="permit")),
        ({"attempts": 5}, ASKS, Close(code="cms.delivery.attempts_exhausted")),
        # In doubt the look-up comes before every other check.
        (DOUBT, ASKS, Ask()),
        (
            DOUBT
            | {
                "event_state": "superseded",
                "approvals_code": "x",
                "is_older_unsettled": True,
                "is_permitted": False,
                "attempts": 5,
            },
            ASKS,
            Ask(),
        ),
        (DOUBT | {"next_attempt_at": NOW + 1}, ASKS, Wait(reason="due")),
        (DOUBT, REPEATS, Send(was_in_doubt=True)),
        (DOUBT | {"is_older_unsettled": True}, REPEATS, Wait(reason="older")),
        (DOUBT | {"is_permitted": False}, REPEATS, Wait(reason="permit")),
        (DOUBT | {"event_state": "superseded"}, REPEATS, Close(code="cms.outcome_unknown")),
        (DOUBT | {"approvals_code": "x"}, REPEATS, Close(code="cms.outcome_unknown")),
        (DOUBT | {"attempts": 5}, REPEATS, Close(code="cms.outcome_unknown")),
        (DOUBT, NEITHER, Close(code="cms.outcome_unknown")),
    ],
)
def test_what_may_be_done_next(changes: dict[str, Any], promise: Promise, turn: Turn) -> None:
    """One row for each rule of SPEC section 7."""
    assert next_turn(standing(**changes), promise) == turn


def test_only_an_unknown_outcome_stays_in_doubt() -> None:
    """Whatever else closes a delivery is certain that it is not live."""
    assert Close(code="cms.outcome_unknown").in_doubt is True
    assert Close(code="superseded").in_doubt is False


@given(
    changes=st.fixed_dictionaries(
        {
            "status": st.sampled_from(["pending", "retry_wait", "succeeded", "failed"]),
            "attempts": st.integers(0, 5),
            "in_doubt": st.booleans(),
            "event_state": st.sampled_from(["open", "superseded", "withdrawn", "delivered"]),
            "is_older_unsettled": st.booleans(),
            "is_permitted": st.booleans(),
            "approvals_code": st.sampled_from([None, "cms.delivery.approval_expired"]),
            "next_attempt_at": st.sampled_from([NOW - 1, NOW, NOW + 1]),
        }
    ),
    promise=st.builds(Promise, has_lookup=st.booleans(), is_idempotent=st.booleans()),
)
def test_a_send_is_always_allowed_by_everything(changes: dict[str, Any], promise: Promise) -> None:
    """Nothing superseded, unapproved, unpermitted, exhausted or early is ever sent; doubt only to an idempotent CMS."""
    turn = next_turn(standing(**changes), promise)
    if isinstance(turn, Send):
        assert changes["status"] in {"pending", "retry_wait"}
        assert changes["next_attempt_at"] <= NOW
        assert changes["event_state"] not in {"superseded", "withdrawn"}
        assert changes["approvals_code"] is None
        assert changes["is_permitted"]
        assert not changes["is_older_unsettled"]
        assert changes["attempts"] < 5
        assert turn.was_in_doubt == changes["in_doubt"]
        assert not changes["in_doubt"] or (promise.is_idempotent and not promise.has_lookup)
    if isinstance(turn, Close) and changes["in_doubt"]:
        assert turn.in_doubt


def answer(outcome: Any, **changes: Any) -> CmsAnswer:
    """Return an answer of a CMS."""
    return CmsAnswer(outcome=outcome, code="cms.x", **changes)


def sent(given_answer: CmsAnswer, *, promise: Promise = ASKS, **changes: Any) -> Settlement:
    """Return how a send ends: the first of five, in no doubt before, unless changed."""
    values: dict[str, Any] = {"was_in_doubt": False, "attempts": 1, "max_attempts": 5, "jitter": 0.0}
    return after_send(given_answer, promise=promise, **(values | changes))


def waits(seconds: float, *, in_doubt: bool, **changes: Any) -> Settlement:
    """Return a settlement that waits."""
    return Settlement(status="retry_wait", code="cms.x", in_doubt=in_doubt, wait_seconds=seconds, **changes)


FAILED = Settlement(status="failed", code="cms.x", in_doubt=False)
NOT_SENT = answer("unavailable", sent=False)
OPEN = answer("unavailable")


@pytest.mark.parametrize(
    ("given_answer", "options", "end"),
    [
        (answer("accepted"), {}, ACCEPTED),
        (answer("accepted"), {"was_in_doubt": True, "attempts": 5}, ACCEPTED),
        (answer("refused"), {}, FAILED),
        (answer("refused"), {"was_in_doubt": True}, UNKNOWN),
        (
            answer("stale"),
            {},
            Settlement(status="failed", code="superseded", in_doubt=False, event_state="superseded"),
        ),
        (answer("stale"), {"was_in_doubt": True}, UNKNOWN),
        (answer("unverifiable"), {}, UNKNOWN),
        (answer("absent"), {}, UNKNOWN),
        (NOT_SENT, {}, waits(5, in_doubt=False)),
        (NOT_SENT, {"attempts": 3, "jitter": 0.5}, waits(30, in_doubt=False)),
        (NOT_SENT, {"attempts": 5}, FAILED),
        (NOT_SENT, {"attempts": 5, "was_in_doubt": True}, waits(80, in_doubt=True)),
        (OPEN, {}, waits(5, in_doubt=True)),
        (OPEN, {"attempts": 5}, waits(80, in_doubt=True)),
        (
            answer("unavailable", retry_after_seconds=120.0),
            {"jitter": 0.25},
            waits(132.0, in_doubt=True, retry_after_seconds=120.0),
        ),
        (OPEN, {"promise": REPEATS}, waits(5, in_doubt=True)),
        (OPEN, {"promise": REPEATS, "attempts": 5}, UNKNOWN),
        (OPEN, {"promise": NEITHER}, UNKNOWN),
        (NOT_SENT, {"promise": NEITHER}, waits(5, in_doubt=False)),
    ],
)
def test_what_an_answer_makes_of_a_send(given_answer: CmsAnswer, options: dict[str, Any], end: Settlement) -> None:
    """Doubt is cleared by a verified answer or a definite refusal, and by nothing else."""
    assert sent(given_answer, **options) == end


def test_a_lease_under_which_nothing_was_sent_is_handed_back() -> None:
    """At once, without counting; an earlier doubt stays."""
    for was_in_doubt in (True, False):
        assert not_sent("cms.send_window_missed", was_in_doubt=was_in_doubt) == Settlement(
            status="retry_wait", code="cms.send_window_missed", in_doubt=was_in_doubt, is_attempt_returned=True
        )


def test_a_lease_under_which_nothing_was_asked_is_handed_back() -> None:
    """At once, in doubt as before; a look-up is no attempt, so none is given back."""
    assert not_asked("cms.worker_draining") == Settlement(
        status="retry_wait", code="cms.worker_draining", in_doubt=True, is_attempt_returned=False
    )


def asked(**changes: Any) -> Asked:
    """Return a look-up of a delivery that was sent a minute and a second ago, with attempts left."""
    values: dict[str, Any] = {
        "asked_at": NOW + 60.1,
        "sent_at": NOW,
        "doubt_since_at": NOW,
        "attempts": 1,
        "max_attempts": 5,
        "lookups": 1,
        "send_seconds": 30.0,
    }
    return Asked(**(values | changes))


EARLY = {"status": "retry_wait", "code": "cms.lookup.absent_too_early", "in_doubt": True}


@pytest.mark.parametrize(
    ("given_answer", "changes", "end"),
    [
        (answer("accepted"), {"asked_at": NOW}, ACCEPTED),
        (answer("absent"), {}, Absent()),
        (answer("absent"), {"attempts": 5, "asked_at": NOW + 90_000}, Absent()),
        (answer("absent"), {"asked_at": NOW + 60}, Settlement(**EARLY, wait_seconds=5.0)),
        (answer("absent"), {"asked_at": NOW + 5}, Settlement(**EARLY, wait_seconds=56.0)),
        (answer("unverifiable"), {}, UNKNOWN),
        (OPEN, {}, waits(5, in_doubt=True)),
        (OPEN, {"lookups": 4}, waits(40, in_doubt=True)),
        (answer("refused"), {}, waits(5, in_doubt=True)),
        (answer("stale"), {}, waits(5, in_doubt=True)),
        (OPEN, {"lookups": 30, "asked_at": NOW + 90_000}, waits(3600, in_doubt=True)),
        (OPEN, {"attempts": 5, "lookups": 30, "asked_at": NOW + 86_399}, waits(1, in_doubt=True)),
        (OPEN, {"attempts": 5, "lookups": 30, "asked_at": NOW + 86_400}, UNKNOWN),
        (
            answer("unavailable", retry_after_seconds=9_000.0),
            {},
            waits(3600, in_doubt=True, retry_after_seconds=9_000.0),
        ),
    ],
)
def test_what_an_answer_makes_of_a_look_up(
    given_answer: CmsAnswer, changes: dict[str, Any], end: Settlement | Absent
) -> None:
    """An unsigned answer is no answer; absent counts late enough; with no attempt left a day is the end."""
    assert after_lookup(given_answer, asked(**changes), jitter=0.0) == end


@pytest.mark.parametrize(
    ("changes", "follows"),
    [
        ({}, Send(was_in_doubt=False)),
        ({"event_state": "superseded"}, Settlement(status="failed", code="superseded", in_doubt=False)),
        ({"attempts": 5}, Settlement(status="failed", code="cms.delivery.attempts_exhausted", in_doubt=False)),
        (
            {"is_permitted": False},
            Settlement(status="retry_wait", code="cms.delivery.waits_for_permit", in_doubt=False, wait_seconds=5.0),
        ),
    ],
)
def test_what_follows_a_signed_absent(changes: dict[str, Any], follows: Settlement | Send) -> None:
    """All checks again; the doubt is over either way."""
    assert after_absent(standing(**changes), jitter=0.0) == follows


@pytest.mark.parametrize(
    ("status", "code", "stands"),
    [
        ("succeeded", None, "delivered"),
        ("pending", None, "delivery_ready"),
        ("leased", None, "delivery_ready"),
        ("retry_wait", "cms.x", "delivery_ready"),
        ("failed", "superseded", "superseded"),
        ("failed", "withdrawn", "withdrawn"),
    ],
)
def test_where_an_event_stands_by_its_delivery(status: str, code: str | None, stands: str) -> None:
    """Open, ended well, or ended with its event."""
    assert standing_status(status, code) == stands


@pytest.mark.parametrize(("code", "command"), [("cms.x", "retry"), ("cms.outcome_unknown", "reconcile")])
def test_a_failed_delivery_names_the_command_that_helps(code: str, command: str) -> None:
    """Retry where it is certain that nothing is live, reconcile where nobody knows."""
    with pytest.raises(Blocked) as refused:
        standing_status("failed", code)
    assert refused.value.code == "cms.delivery.failed"
    assert f"locseal deliveries {command}" in refused.value.message
