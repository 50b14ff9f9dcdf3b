"""The one mutable thing of a process: who collects evidence in it, and what comes back to that thread.

Many tasks of a process may be told "there is due evidence" at once. One of them collects, with all the process's
places for calls; the others leave a wake and return at once, so that no thread waits for another and the bound on
calls is counted in one place. Losing all of this loses nothing: rows wait in the database, the sweeper wakes again.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from typing import Any

from worker.domain.key import PublicKey

WAKE = None  # in the inbox: look for due rows again


class Collecting:
    """Lets one thread collect at a time, and never loses the wake of another. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[Any] | None = None
        self._is_woken = False
        self._calls = 0
        self._kept: frozenset[PublicKey] = frozenset()

    def enter(self) -> queue.SimpleQueue[Any] | None:
        """Become the collector and return its inbox, or leave a wake with the present one and return None."""
        with self._lock:
            if self._inbox is not None:
                self._is_woken = True
                self._inbox.put(WAKE)
                return None
            self._inbox = queue.SimpleQueue()
            self._is_woken = False
            return self._inbox

    def take_wake(self) -> bool:
        """Take the wakes left since the last look: true when rows may have come due that no claim has seen."""
        with self._lock:
            woken, self._is_woken = self._is_woken, False
            return woken

    def try_leave(self) -> bool:
        """Stop being the collector unless a wake came; false means there is something to look at."""
        with self._lock:
            if self._is_woken:
                return False
            self._inbox = None
            return True

    def leave(self, inbox: queue.SimpleQueue[Any]) -> None:
        """Stop being the collector in any case (a drain or a fault); the sweeper makes good what was woken.

        `inbox` is what `enter` gave: who left already must not put out the collector that came after it.
        """
        with self._lock:
            if self._inbox is inbox:
                self._inbox = None
                self._is_woken = False

    def calls_began(self, number: int) -> None:
        """Count calls to the outside that this process has open."""
        with self._lock:
            self._calls += number

    def calls_ended(self, number: int) -> None:
        """Take back counted calls; also those of a collector that is gone."""
        with self._lock:
            self._calls -= number

    def free_places(self, concurrent_calls: int) -> int:
        """Return how many more calls may be open in this process now."""
        with self._lock:
            return max(0, concurrent_calls - self._calls)

    def not_kept(self, keys: Iterable[PublicKey]) -> frozenset[PublicKey]:
        """Return those keys of which this process does not know that the database keeps them; spares the statement."""
        return frozenset(keys) - self._kept

    def keep(self, keys: Iterable[PublicKey]) -> None:
        """Remember keys that the database keeps."""
        with self._lock:
            self._kept |= frozenset(keys)
