"""Part `sqlite`: the product on SQLite alone (WAL, synchronous=FULL), one worker process."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

from benchmarks.rounds import fresh_work, ready, summary, take_turn
from benchmarks.servers import Servers
from benchmarks.sides import PATIENCE_SECONDS, Ours, Watch
from benchmarks.work import Work


class FileWatch(Watch):
    """Waits for deliveries by looking into the file every few milliseconds; nobody tells of them there."""

    def __init__(self, path: Path) -> None:
        """Open the file for reading."""
        self._file = sqlite3.connect(path)

    def wait(self, event_ids: list[str], seconds: float = PATIENCE_SECONDS) -> float:  # type: ignore[override]
        """Return the time when the last of these deliveries was there; `SystemExit` if it does not come."""
        until = time.monotonic() + seconds
        marks = ",".join("?" * len(event_ids))
        statement = f"SELECT count(*) FROM deliveries WHERE event_id IN ({marks})"
        while self._file.execute(statement, event_ids).fetchone()[0] < len(event_ids):
            if time.monotonic() > until:
                raise SystemExit(f"benchmarks: deliveries did not come in {seconds:g} s")
            time.sleep(0.005)
        return time.perf_counter()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class OursOnSqlite(Ours):
    """The product on an SQLite file."""

    name = "locseal on SQLite"

    @property
    def path(self) -> Path:
        """Return where the file is."""
        return self.servers.directory / "sqlite" / "locseal.db"

    def create(self) -> None:
        """Make the private directory."""
        self.path.parent.mkdir(mode=0o700)

    def address(self) -> str:
        """Return the file's address."""
        return f"sqlite:///{self.path}"

    def tell(self) -> None:
        """Tell nobody."""

    def watch(self) -> Watch:
        """Return what looks into the file."""
        return FileWatch(self.path)

    def is_in_transaction(self) -> bool:
        """Tell whether the worker has a writing transaction open."""
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=0.05, isolation_level=None)) as conn:
                conn.execute("BEGIN IMMEDIATE")
                conn.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        return False

    def check(self, work: Work) -> None:
        """Raise unless there is exactly one approval for each locale and one delivery for each event of the work."""
        with sqlite3.connect(self.path) as conn:
            approved = [row[0] for row in conn.execute("SELECT request_id FROM approvals")]
            delivered = [row[0] for row in conn.execute("SELECT event_id FROM deliveries")]
        found = (sorted(set(work.request_ids) & set(approved)), sorted(set(work.event_ids) & set(delivered)))
        is_once = len(approved) == len(set(approved)) and len(delivered) == len(set(delivered))
        if found != (sorted(work.request_ids), sorted(work.event_ids)) or not is_once:
            raise SystemExit("benchmarks: SQLite holds other approvals or deliveries than the work asked for")


def embedded(servers: Servers, *, rounds: int, events: int, locales: int) -> dict[str, Any]:
    """Return locales per second on SQLite, and the CPU of a locale in milliseconds."""
    side, watch = ready(servers, OursOnSqlite, processes=1)
    turns = [take_turn(side, watch, fresh_work(servers, events, locales)) for _ in range(rounds)]
    return {
        "rate": summary(turn.rate for turn in turns),
        "cpu_ms": summary(1000 * turn.cpu / turn.locales for turn in turns),
    }
