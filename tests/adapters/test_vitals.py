"""The numbers that the processes of one worker share, in real forked children."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from worker.adapters.vitals import LAST_SECONDS, Vitals


def in_child(work: Callable[[], bool]) -> bool:
    """Return what some work says in a forked child."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_sees_that_its_worker_drains() -> None:
    """A child that was forked before the signal sees the drain, and one forked after it too."""
    vitals = Vitals()
    reading, writing = os.pipe()

    def waits() -> bool:
        os.read(reading, 1)
        return vitals.is_draining()

    pid = os.fork()
    if pid == 0:
        os._exit(0 if waits() else 1)
    vitals.begin_drain(seconds=60)
    os.write(writing, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert in_child(vitals.is_draining)
    os.close(reading)
    os.close(writing)


def test_the_first_word_stays() -> None:
    """A second request to end neither lengthens nor shortens the grace period, and changes no exit code."""
    vitals = Vitals()
    vitals.begin_drain(seconds=0, exit_code=70)
    vitals.begin_drain(seconds=1000)
    assert (vitals.is_over(), vitals.exit_code()) == (True, 70)


def test_the_cut_comes_two_seconds_before_the_end() -> None:
    """With more than the last two seconds left nothing is cut; with less, all is, and the period is not over yet."""
    early, late = Vitals(), Vitals()
    early.begin_drain(seconds=LAST_SECONDS + 1000)
    late.begin_drain(seconds=1000)
    late.reset()
    late.begin_drain(seconds=0)
    assert (early.is_draining(), early.is_cut(), early.is_over()) == (True, False, False)
    assert (late.is_cut(), late.is_over()) == (True, True)
    assert LAST_SECONDS == 2.0


def test_nothing_is_cut_while_nobody_asked() -> None:
    """A worker that was not asked to end neither drains nor is cut, and waiting for the drain says so."""
    vitals = Vitals()
    assert (vitals.is_draining(), vitals.is_cut(), vitals.is_over(), vitals.wait_for_drain(0)) == (False,) * 4


def test_claims_of_children_are_seen() -> None:
    """A claim in a child counts for its worker, for its own kind only, at the machine's monotonic time."""
    vitals = Vitals()
    before = time.monotonic()

    def claims() -> bool:
        vitals.claimed("evidence")
        return True

    assert in_child(claims)
    at = vitals.claimed_at()
    assert before <= at["evidence"] <= time.monotonic()
    assert (at["delivery"], at["runs"]) == (0.0, 0.0)
