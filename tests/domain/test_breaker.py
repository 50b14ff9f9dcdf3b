"""When a breaker opens, who may probe it, and what closes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from worker.domain.breaker import BreakerState, News, Permit, after, is_outage
from worker.domain.policy import Breaker

NOW = 1_800_000_000.0
POLICY = Breaker(opens_after_failures=3, open_seconds=5.0, longest_open_seconds=60.0)
FAULT = News(kind="provider", name="default", worker_id="w-1", faults=1, code="evidence.provider.timeout")
ANSWER = News(kind="provider", name="default", worker_id="w-1", answers=1)
OPEN = after(BreakerState(), replace(FAULT, faults=3), POLICY, now=NOW)
PROBED = replace(OPEN, probe_token="t", probe_expires_at=NOW + 100.0)
PERMIT = Permit(token="t", generation=1)


def test_faults_in_a_row_open_it() -> None:
    """Two faults count, an answer sets them back, three in a row open it for five seconds; who and why are kept."""
    state = after(BreakerState(), replace(FAULT, faults=2), POLICY, now=NOW)
    assert state == BreakerState(failures=2)
    assert after(state, ANSWER, POLICY, now=NOW) == BreakerState()
    assert after(state, FAULT, POLICY, now=NOW) == OPEN
    assert (
        BreakerState(
            is_open=True,
            generation=1,
            failures=3,
            pause_seconds=5.0,
            open_until_at=NOW + 5.0,
            reason="evidence.provider.timeout",
            opened_by="w-1",
        )
        == OPEN
    )


def test_a_wait_that_was_asked_for_opens_it_at_once_and_is_kept_by_all() -> None:
    """One Retry-After opens it until then; a longer one lengthens what is open, a shorter one does not cut it."""
    asked = replace(FAULT, retry_after_seconds=120.0)
    state = after(BreakerState(), asked, POLICY, now=NOW)
    assert (state.is_open, state.open_until_at) == (True, NOW + 120.0)
    assert after(state, replace(asked, retry_after_seconds=200.0), POLICY, now=NOW).open_until_at == NOW + 200.0
    assert after(state, replace(asked, retry_after_seconds=20.0), POLICY, now=NOW) == state


def test_only_the_holder_of_the_permit_moves_it() -> None:
    """Answers and faults of calls that were under way, a wrong token and a wrong generation change nothing."""
    for news in (ANSWER, replace(FAULT, faults=9)):
        assert after(PROBED, news, POLICY, now=NOW) == PROBED
        for permit in (Permit(token="x", generation=1), Permit(token="t", generation=2)):
            for probe in ("answered", "fault", "unused"):
                stranger = replace(news, permit=permit, probe=probe)
                assert after(PROBED, stranger, POLICY, now=NOW) == PROBED


def test_an_answer_to_the_holder_closes_it() -> None:
    """Closed for everyone, at a new generation, with nothing counted."""
    assert after(PROBED, replace(ANSWER, permit=PERMIT, probe="answered"), POLICY, now=NOW) == BreakerState(
        generation=2
    )


def test_each_failed_probe_doubles_the_pause_up_to_the_bound() -> None:
    """5, 10, 20, 40, 60, 60 seconds; each opening is a generation of its own."""
    state, pauses = OPEN, []
    for _ in range(5):
        held = replace(state, probe_token="t", probe_expires_at=NOW + 100.0)
        mine = Permit(token="t", generation=state.generation)
        state = after(held, replace(FAULT, permit=mine, probe="fault"), POLICY, now=NOW)
        assert (state.is_open, state.probe_token) == (True, None)
        pauses.append((state.open_until_at or 0.0) - NOW)
    assert pauses == [10.0, 20.0, 40.0, 60.0, 60.0]
    assert state.generation == 6


def test_a_permit_that_was_not_used_is_given_back() -> None:
    """The holder never called: open as before, and the next claim may probe at once."""
    state = after(PROBED, replace(ANSWER, answers=0, permit=PERMIT, probe="unused"), POLICY, now=NOW)
    assert state == OPEN
    assert state.may_probe(NOW + 5.0)


def test_when_a_probe_may_be_given() -> None:
    """Not before its time, not while another holds a live permit; a dead holder's goes to the next."""
    assert [OPEN.may_probe(NOW + seconds) for seconds in (0.0, 4.9, 5.0)] == [False, False, True]
    assert [PROBED.may_probe(NOW + seconds) for seconds in (5.0, 99.9, 100.0)] == [False, False, True]
    assert not BreakerState().may_probe(NOW)


@pytest.mark.parametrize(
    ("code", "retryable", "expected"),
    [
        ("evidence.provider.timeout", True, True),
        ("evidence.provider.unreachable", True, True),
        ("evidence.provider.status_503", True, True),
        ("cms.delivery.connection_lost", True, True),
        ("cms.lookup.status_500", True, True),
        ("evidence.unavailable", True, True),
        ("evidence.provider.timeout", False, False),
        ("evidence.provider.status_429", True, False),
        ("evidence.provider.status_404", False, False),
        ("evidence.timeout", True, False),
        ("release.receipt.unavailable", True, False),
    ],
)
def test_what_is_an_outage(code: str, retryable: bool, expected: bool) -> None:
    """Faults of the transport and 5xx; never a refusal, never another side's fault."""
    assert is_outage(code, retryable=retryable) is expected
