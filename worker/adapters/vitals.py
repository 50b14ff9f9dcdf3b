"""What the processes of one worker share: whether it drains and until when, and when it last got as far as a claim.

A few numbers in memory that children of a pool inherit when they are forked, so that one signal to the main process
reaches the work in all of them. Times are those of the machine's monotonic clock, the same in every process.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final

from worker.domain.stall import WorkKind

LAST_SECONDS: Final = 2.0  # of the grace period: what is still open is let go, and the process ends by itself
POLL_SECONDS: Final = 0.1
NEVER: Final = 0.0

_NUMBER: Final = struct.Struct("=d")
_ENDS_AT, _EXIT_CODE = 0, 1
_CLAIMED: Final[dict[WorkKind, int]] = {"evidence": 2, "delivery": 3, "runs": 4, "intake": 5, "sweep": 6}


class Vitals:
    """A worker's shared numbers. Safe to use from any thread, any forked child, and a signal handler."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _NUMBER.size * (2 + len(_CLAIMED)))

    # --- the end ----------------------------------------------------------------------------------------------------

    def begin_drain(self, *, seconds: float, exit_code: int = 0) -> None:
        """Begin the end of the worker, which is to be gone within so many seconds. The first word stays."""
        if self.is_draining():
            return
        self._set(_EXIT_CODE, float(exit_code))
        self._set(_ENDS_AT, time.monotonic() + max(0.0, seconds))

    def is_draining(self) -> bool:
        """Tell whether nothing new may be begun."""
        return self._get(_ENDS_AT) != NEVER

    def is_cut(self) -> bool:
        """Tell whether the time of what is open is over: the last two seconds of the grace period have begun."""
        return self.is_draining() and time.monotonic() >= self._get(_ENDS_AT) - LAST_SECONDS

    def is_over(self) -> bool:
        """Tell whether the grace period is over."""
        return self.is_draining() and time.monotonic() >= self._get(_ENDS_AT)

    def exit_code(self) -> int:
        """Return the exit code that the worker is to end with; other than 0 where a fault of its own ends it."""
        return int(self._get(_EXIT_CODE))

    def wait_for_drain(self, seconds: float) -> bool:
        """Wait at most so long for the end to begin; tell whether it has."""
        until = time.monotonic() + seconds
        while not self.is_draining():
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, POLL_SECONDS))
        return True

    def reset(self) -> None:
        """Forget everything, for a process that goes on to work after an end."""
        for place in range(len(self._memory) // _NUMBER.size):
            self._set(place, NEVER)

    # --- the work ---------------------------------------------------------------------------------------------------

    def claimed(self, kind: WorkKind) -> None:
        """Note that a claim of this kind came to its end now, whatever it found; of intake, that a message was taken."""
        self._set(_CLAIMED[kind], time.monotonic())

    def claimed_at(self) -> dict[WorkKind, float]:
        """Return when the last claim of each kind ended."""
        return {kind: self._get(place) for kind, place in _CLAIMED.items()}

    def _get(self, place: int) -> float:
        return float(_NUMBER.unpack_from(self._memory, place * _NUMBER.size)[0])

    def _set(self, place: int, value: float) -> None:
        _NUMBER.pack_into(self._memory, place * _NUMBER.size, value)
