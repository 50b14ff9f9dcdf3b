"""Does something small every few seconds beside the work of a process, in a daemon thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from worker.domain.errors import Blocked

log = structlog.get_logger(__name__)


class Ticker:
    """Calls `work` every `seconds` from `start` on, and a last time in `stop`. Its refusals are logged by their code."""

    def __init__(self, name: str, work: Callable[[], object], *, seconds: float) -> None:
        self._name = name
        self._work = work
        self._seconds = seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"locseal-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread; the first call comes after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """Have the work done a last time and end the thread; waits for that. Only after `start`, and once."""
        self._is_over.set()
        self._thread.join()
        self._do()

    def _run(self) -> None:
        while not self._is_over.wait(self._seconds):
            self._do()

    def _do(self) -> None:
        try:
            self._work()
        except Blocked as failure:  # a database that is away comes back
            log.warning(f"{self._name}.blocked", code=failure.code)
