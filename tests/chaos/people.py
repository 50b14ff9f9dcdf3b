"""The people beside a fleet under fire: a user who reads, and the operator who settles what only an operator may."""

from __future__ import annotations

import subprocess
import time
from typing import Final

from tests.chaos.arena import Arena
from tests.chaos.ending import unknown_outcomes
from worker.cli.local_stage import LOCSEAL
from worker.domain.errors import Unavailable

PAUSE_SECONDS: Final = 2.0
ROUND_SECONDS: Final = 5.0  # the operator looks as often as that
LONGEST_SECONDS: Final = 120.0
COMMANDS: Final = (
    ("releases", "list", "--json"),
    ("deliveries", "list", "--json"),
    ("rejections", "list", "--json"),
    ("audit", "--json"),
)


class _Command:
    """One `locseal` command beside the harness; nothing here waits."""

    def __init__(self, arena: Arena, name: str) -> None:
        self._arena = arena
        self._output = arena.fleet.directory / f"{name}.out"
        self._running: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def start(self, arguments: tuple[str, ...]) -> None:
        self._began = time.monotonic()
        with self._output.open("wb") as sink:
            self._running = subprocess.Popen(
                [*LOCSEAL, *arguments],
                env=self._arena.fleet.environment(),
                cwd=self._arena.fleet.directory,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    def ended(self) -> tuple[int, str] | None:
        """Return exit code and output once it has ended; one that takes too long is killed."""
        if self._running is None:
            return None
        code = self._running.poll()
        if code is None and time.monotonic() - self._began > LONGEST_SECONDS:
            self._running.kill()
            code = self._running.wait()
        if code is None:
            return None
        self._running = None
        return code, self._output.read_text(encoding="utf-8", errors="replace")


class User:
    """Runs one reading command after the other; `faults` has one sentence for each that was not done."""

    def __init__(self, arena: Arena) -> None:
        self._command = _Command(arena, "user")
        self._next_at = 0.0
        self.commands = 0
        self.faults: list[str] = []

    def look(self) -> None:
        """Go on: start the next command, or judge the one that has ended. Never waits."""
        arguments = COMMANDS[self.commands % len(COMMANDS)]
        ended = self._command.ended()
        if ended is not None:
            code, printed = ended
            if code != 0 or "database is locked" in printed or "database.busy" in printed:
                self.faults.append(f"locseal {' '.join(arguments)}: exit code {code}: {printed[-300:]}")
            self.commands += 1
            self._next_at = time.monotonic() + PAUSE_SECONDS
        elif not self._command.is_running and time.monotonic() >= self._next_at:
            self._command.start(arguments)

    def finish(self) -> None:
        """Wait for the command that runs."""
        self._next_at = float("inf")
        while self._command.is_running:
            self.look()
            time.sleep(0.05)


class Operator:
    """Reconciles deliveries whose outcome is unknown, by asking the CMS; `reconciled` counts them."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._command = _Command(arena, "operator")
        self._next_at = 0.0
        self._turn = 0
        self.reconciled = 0

    def look(self) -> None:
        """Go on: begin with the next delivery, or take note of what became of the last. Never waits."""
        ended = self._command.ended()
        if ended is not None:
            self.reconciled += int(ended[0] == 0)
        if self._command.is_running or time.monotonic() < self._next_at:
            return
        try:
            waiting = unknown_outcomes(self._arena.stage)
        except Unavailable:
            waiting = []
        if not waiting:
            self._next_at = time.monotonic() + ROUND_SECONDS
            return
        self._turn += 1  # an `absent` that does not count yet must not hold up the others
        self._command.start(("deliveries", "reconcile", waiting[self._turn % len(waiting)], "--json"))
        self._next_at = time.monotonic() + PAUSE_SECONDS
