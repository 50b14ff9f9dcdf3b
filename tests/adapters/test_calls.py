"""The call loop: many calls at once, off the calling thread, cancelled and closed cleanly, safe over a fork."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from concurrent.futures import CancelledError

import pytest

from worker.adapters.calls import CallLoop


async def where() -> tuple[int, str]:
    """Return the thread a call runs on."""
    return threading.get_ident(), threading.current_thread().name


def test_calls_run_on_one_thread_that_starts_with_the_first() -> None:
    """Nothing runs before the first call; then every call runs on the same daemon thread, never the caller's."""
    before = threading.active_count()
    calls = CallLoop()
    assert threading.active_count() == before
    first, second = calls.start(where()).result(5), calls.start(where()).result(5)
    assert first == second
    assert first[0] != threading.get_ident()
    assert first[1] == "locseal-calls"
    calls.close()
    assert threading.active_count() == before


def test_many_calls_wait_at_once() -> None:
    """Five hundred calls that wait for each other all get there: none holds up another."""
    calls = CallLoop()
    arrived = 0
    everyone = asyncio.Event()

    async def meet() -> int:
        nonlocal arrived
        arrived += 1
        if arrived == 500:
            everyone.set()
        await everyone.wait()
        return arrived

    futures = [calls.start(meet()) for _ in range(500)]
    assert {future.result(10) for future in futures} == {500}
    calls.close()


def test_calls_that_end_together_are_told_together() -> None:
    """Calls started at once are told by name: those of one turn in one go, a failed and a cut off one as None."""
    calls = CallLoop()
    told: queue.SimpleQueue[list[tuple[str, int | None]]] = queue.SimpleQueue()

    async def gives(number: int) -> int:
        return number

    async def fails() -> int:
        raise LookupError("mine")

    async def waits() -> int:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    started = [("one", gives(1)), ("bad", fails()), ("never", waits()), ("two", gives(2))]
    calls.start_all(started, lambda ended: told.put(list(ended)))
    assert told.get(timeout=60) == [("one", 1), ("bad", None), ("two", 2)]
    calls.cut_off()
    assert told.get(timeout=60) == [("never", None)]
    calls.close()


def test_closing_tells_of_every_call_that_it_cancels() -> None:
    """Whoever waits for calls hears of each, also where the loop ends first."""
    calls = CallLoop()
    told: queue.SimpleQueue[list[tuple[int, object]]] = queue.SimpleQueue()

    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    calls.start_all([(number, waits()) for number in range(3)], lambda ended: told.put(list(ended)))
    calls.close()
    assert sorted(told.get(timeout=60)) == [(0, None), (1, None), (2, None)]


def test_a_failure_reaches_the_caller_alone() -> None:
    """An exception ends its own call and no other."""
    calls = CallLoop()

    async def fails() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError):
        calls.start(fails()).result(5)
    assert calls.start(where()).result(5)[1] == "locseal-calls"
    calls.close()


def test_cancelling_the_future_cancels_the_call() -> None:
    """A caller that gives up ends the call itself, not only its wait."""
    calls = CallLoop()
    begun, ended = threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    future = calls.start(waits())
    assert begun.wait(5)
    assert future.cancel()
    assert ended.wait(5)
    calls.close()


def test_closing_cancels_what_runs_and_closes_what_was_registered() -> None:
    """Close leaves nothing open; doing it twice is nothing; the next call starts afresh."""
    calls = CallLoop()
    closed: list[str] = []

    async def closer() -> None:
        closed.append(threading.current_thread().name)

    calls.at_close(closer)
    future = calls.start(asyncio.Event().wait())
    calls.close()
    calls.close()
    with pytest.raises(CancelledError):
        future.result(5)
    assert closed == ["locseal-calls"]
    assert calls.start(where()).result(5)[1] == "locseal-calls"
    calls.close()


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    """A child inherits no thread, so it starts its own at its first call; the parent's goes on."""
    calls = CallLoop()
    calls.start(where()).result(5)
    child = os.fork()
    if child == 0:
        try:
            ran = calls.start(where()).result(5)[1] == "locseal-calls"
        except BaseException:
            ran = False
        os._exit(0 if ran else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert calls.start(where()).result(5)[1] == "locseal-calls"
    calls.close()
