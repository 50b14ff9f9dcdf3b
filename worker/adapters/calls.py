"""The process's call loop: one event loop in one daemon thread, for all calls to the outside at once.

Threads of the worker hand coroutines in and get futures; none of them ever waits inside a call of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")


class CallLoop:
    """Runs coroutines on one loop of its own. Safe to use from any thread.

    The thread starts with the first call. A forked child forgets its parent's loop and starts one of its own; after
    `close` the next call starts a fresh one.
    """

    def __init__(self) -> None:
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        forget = weakref.WeakMethod(self._forget)

        def forget_in_child() -> None:
            method = forget()
            if method is not None:
                method()

        os.register_at_fork(after_in_child=forget_in_child)

    def at_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Have something awaited on the loop before it ends, such as `HttpClient.aclose`."""
        self._closers.append(closer)

    def start(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine and return its future; cancelling the future cancels the call."""
        with self._lock:
            return asyncio.run_coroutine_threadsafe(call, self._running())

    def start_all(
        self, calls: Sequence[tuple[K, Coroutine[Any, Any, T]]], ended: Callable[[Sequence[tuple[K, T | None]]], None]
    ) -> None:
        """Start many coroutines, each with a name of its own, waking the loop once.

        `ended` is called on the loop's thread, once for all that ended in the same turn of the loop: with their names
        and what they returned, None for one that failed or was cancelled. It must not wait.
        """
        with self._lock:
            self._running().call_soon_threadsafe(_Together(ended).begin, calls)

    def cut_off(self) -> None:
        """Cancel every call that is open now; their futures end as cancelled. Does not wait, and later calls run."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(_cancel_all, self._loop)

    def close(self) -> None:
        """Cancel what still runs, close what was registered, and end the thread. Idempotent."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._wind_down(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _forget(self) -> None:
        # The lock too: another thread of the parent may have held it as the process forked.
        self._lock = threading.Lock()
        self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(self._loop,), name="locseal-calls", daemon=True)
            self._thread.start()
        return self._loop

    async def _wind_down(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for closer in self._closers:
            with contextlib.suppress(OSError):
                await closer()


class _Together(Generic[K, T]):
    """Calls that were started at once, and those of them that ended and were not told yet. Lives on the loop."""

    def __init__(self, ended: Callable[[Sequence[tuple[K, T | None]]], None]) -> None:
        self._ended = ended
        self._open: set[asyncio.Task[T]] = set()  # the loop itself would let them be collected as garbage
        self._untold: list[tuple[K, T | None]] = []

    def begin(self, calls: Sequence[tuple[K, Coroutine[Any, Any, T]]]) -> None:
        """Start them all in the running loop."""
        for name, call in calls:
            task = asyncio.get_running_loop().create_task(call)
            self._open.add(task)
            task.add_done_callback(partial(self._note, name))

    def _note(self, name: K, task: asyncio.Task[T]) -> None:
        self._open.discard(task)
        if not self._untold:  # those that end in this turn too are noted before
            task.get_loop().call_soon(self._tell)
        has_failed = task.cancelled() or task.exception() is not None
        self._untold.append((name, None if has_failed else task.result()))

    def _tell(self) -> None:
        told, self._untold = self._untold, []
        self._ended(told)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
