"""A user who reads what the fleet does, one command after the other, while it is under fire."""

from __future__ import annotations

import subprocess
import time
from typing import Final

from tests.chaos.arena import Arena
from worker.cli.local_stage import LOCSEAL

PAUSE_SECONDS: Final = 2.0
LONGEST_SECONDS: Final = 120.0
COMMANDS: Final = (
    ("releases", "list", "--json"),
    ("deliveries", "list", "--json"),
    ("rejections", "list", "--json"),
    ("audit", "--json"),
)


class User:
    """Runs commands beside the harness; `faults` has one sentence for each that was not done."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._output = arena.fleet.directory / "user.out"
        self._running: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._next_at = 0.0
        self.commands = 0
        self.faults: list[str] = []

    def look(self) -> None:
        """Go on: start the next command, or judge the one that has ended. Never waits."""
        if self._running is None:
            if time.monotonic() >= self._next_at:
                self._start()
        elif self._running.poll() is not None:
            self._judge(self._running.returncode)
        elif time.monotonic() - self._began > LONGEST_SECONDS:
            self._running.kill()
            self._running.wait()
            self._judge(-1)

    def finish(self) -> None:
        """Wait for the command that runs."""
        while self._running is not None:
            self.look()
            time.sleep(0.05)

    def _command(self) -> tuple[str, ...]:
        return COMMANDS[self.commands % len(COMMANDS)]

    def _start(self) -> None:
        self._began = time.monotonic()
        with self._output.open("wb") as sink:
            self._running = subprocess.Popen(
                [*LOCSEAL, *self._command()],
                env=self._arena.fleet.environment(),
                cwd=self._arena.fleet.directory,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    def _judge(self, code: int) -> None:
        printed = self._output.read_text(encoding="utf-8", errors="replace")
        if code != 0 or "database is locked" in printed or "database.busy" in printed:
            self.faults.append(f"locseal {' '.join(self._command())}: exit code {code}: {printed[-300:]}")
        self.commands += 1
        self._running = None
        self._next_at = time.monotonic() + PAUSE_SECONDS
