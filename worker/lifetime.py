"""The life of a worker's process beside its work: its heartbeat, its watch over itself, and its end in time.

Two threads, so that what waits for the database or for Redis never holds up the others:

    pulse   touches the heartbeat; cuts off what is still open in the last two seconds of the grace period, and ends the
            process when that is over, whatever it is doing; ends a worker whose watch itself does not come back
    watch   ends a worker that claims none of the work it may take; once the worker drains, announces that
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import structlog

from config.settings import Settings
from worker.adapters.vitals import Vitals
from worker.bootstrap import Plant
from worker.domain.errors import Blocked
from worker.domain.stall import EXIT_CODE, QUEUED, STALLED, Watch, WorkKind, after_look, stalled_kind
from worker.flow.announce_drain import announce_drain
from worker.flow.seek_work import seek_work

log = structlog.get_logger(__name__)

PULSE_SECONDS: Final = 0.2
LONGEST_LOOK_SECONDS: Final = 15.0  # between two looks for a stall
AGAIN_SECONDS: Final = 0.5  # until an announcement is tried again while the database is away


class Lifetime:
    """Runs beside the work of one process, until that ends. `start` it once.

    `kinds` are those of the work that the worker takes; none in a child of a pool, whose parent watches for all of
    them and has the `heartbeat`. `present` returns what the process runs on, if it has made that yet. `stop` asks the
    worker to end by itself with an exit code; `holds` tells whether a queue has messages that nobody took.
    """

    def __init__(
        self,
        vitals: Vitals,
        settings: Settings,
        present: Callable[[], Plant | None],
        *,
        kinds: frozenset[WorkKind] = frozenset(),
        heartbeat: Path | None = None,
        holds: Callable[[str], bool] = lambda _queue: False,
        stop: Callable[[int], None] = lambda _code: None,
    ) -> None:
        self._vitals, self._settings, self._present = vitals, settings, present
        self._kinds, self._holds, self._stop = kinds, holds, stop
        self._heartbeat, self._can_beat = heartbeat, True
        self._never = threading.Event()
        self._is_looking = False
        self._looking_seconds = 0.0  # of the look under way; time in which the whole process stood still is left out

    def start(self) -> None:
        """Start both threads; they end with the process."""
        for work in (self._pulse, self._watch):
            threading.Thread(target=work, name=f"locseal-{work.__name__.strip('_')}", daemon=True).start()

    # --- pulse: touches nothing but this machine ----------------------------------------------------------------------

    def _pulse(self) -> None:
        while True:
            self._beat()
            self._looking_seconds = self._looking_seconds + PULSE_SECONDS if self._is_looking else 0.0
            if self._looking_seconds > self._settings.stall_seconds:
                self._end_stalled("watch", self._looking_seconds)
            if self._vitals.is_cut():
                self._cut_off()
            if self._vitals.is_over():
                self._force()
            self._never.wait(PULSE_SECONDS)

    def _beat(self) -> None:
        if self._heartbeat is None:
            return
        try:
            self._heartbeat.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._heartbeat.touch(mode=0o600)
        except OSError as error:
            if self._can_beat:
                log.error("worker.heartbeat.failed", error=type(error).__name__)
            self._can_beat = False

    def _cut_off(self) -> None:
        plant = self._present()
        if plant is not None:
            plant.calls.cut_off()

    def _force(self) -> None:
        log.warning("worker.drain.forced", message="the grace period is over; what is still open keeps its lease")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._vitals.exit_code())

    # --- watch: asks the database and the broker ----------------------------------------------------------------------

    def _watch(self) -> None:
        if self._kinds:
            self._look_out()
        self._vitals.wait_for_drain(threading.TIMEOUT_MAX)
        log.info("worker.draining", exit_code=self._vitals.exit_code())
        self._announce()

    def _look_out(self) -> None:
        """Look for a stall until the worker drains, or end it for one."""
        seconds = self._settings.stall_seconds
        watch = Watch()
        while not self._vitals.wait_for_drain(min(LONGEST_LOOK_SECONDS, seconds / 10)):
            self._is_looking = True
            watch = self._look(watch)
            self._is_looking = False
            kind = stalled_kind(watch, stall_seconds=seconds)
            if kind is not None:
                self._end_stalled(kind, watch.looked_at - watch.waiting_since[kind])

    def _end_stalled(self, work: WorkKind | Literal["watch"], waited_seconds: float) -> None:
        """End the worker with the exit code of a fault. `watch`: it cannot even see whether work waits any more."""
        if self._vitals.is_draining():
            return
        log.error(
            STALLED,
            code=STALLED,
            work=work,
            waited_seconds=round(waited_seconds, 1),
            message="due work waits that this worker may take, and it claims nothing; it ends to be started again",
        )
        self._vitals.begin_drain(seconds=self._settings.grace_period_seconds, exit_code=EXIT_CODE)
        self._stop(EXIT_CODE)

    def _look(self, watch: Watch) -> Watch:
        plant = self._present()
        if plant is None:
            return Watch()
        claimed_at = self._vitals.claimed_at()
        idle = [kind for kind in self._kinds if claimed_at[kind] <= watch.looked_at]
        try:
            waiting = seek_work(plant.services, idle, overdue_seconds=self._settings.recovery_bound_seconds)
            waiting |= {kind for kind in QUEUED.intersection(idle) if self._holds(kind)}
        except Blocked as fault:  # who cannot see work does not conclude anything from it
            log.debug("worker.watch.blocked", code=fault.code)
            return Watch()
        return after_look(
            watch,
            waiting=waiting,
            claimed_at=claimed_at,
            now=plant.services.monotonic(),
            longest_gap_seconds=self._settings.stall_seconds / 2,
        )

    def _announce(self) -> None:
        """Say that this process takes nothing more, unless it ends for a fault of its own; again until it is kept."""
        while self._vitals.exit_code() == 0:
            plant = self._present()
            if plant is None:  # nothing was ever leased in this process
                return
            try:
                announce_drain(plant.services)
                return
            except Blocked:
                self._never.wait(AGAIN_SECONDS)
