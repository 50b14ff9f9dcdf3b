"""What several field cases need: leases that are soon over, events of any size, and eyes on Redis and processes."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any, Self

import redis
from sqlalchemy import text

from tests.builders import change_event, results_for, submission
from worker.cli.demo_event import SITE_ID
from worker.cli.local_fleet import Child, LocalFleet
from worker.cli.local_stage import Stage
from worker.domain.errors import Invalid
from worker.domain.locale import canonical_locale

# The cases say 10 s for a lease; 6 s is what the deadlines below fit into.
SHORT_LEASE = {
    "EVIDENCE_LEASE_SECONDS": "6",
    "PROVIDER_DEADLINE_SECONDS": "3",
    "VERIFIER_DEADLINE_SECONDS": "1",
    "SIGNER_DEADLINE_SECONDS": "0.4",
    "MARGIN_SECONDS": "0.4",
}


def locales(count: int) -> list[str]:
    """Return so many languages in canonical form, without English."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    found: list[str] = []
    for tag in (a + b + c for a in letters for b in letters for c in ("", *letters)):
        with contextlib.suppress(Invalid):
            if tag != "en" and canonical_locale(tag, "submission.locale.invalid", "") == tag:
                found.append(tag)
        if len(found) == count:
            break
    return found


def submit(stage: Stage, event_id: str, target_locales: list[str], **changes: Any) -> None:
    """Send an event of its own source with all its results."""
    event = change_event(
        **{"site_id": SITE_ID, "event_id": event_id, "source_id": event_id, "target_locales": target_locales, **changes}
    )
    stage.submit(stage.sign(submission(event, results_for(event))))


def scalar(stage: Stage, statement: str) -> Any:
    """Return the one value of a query."""
    with stage.engine.connect() as conn:
        return conn.execute(text(statement)).scalar_one()


def calls(stage: Stage, target: str = "provider") -> int:
    """Return how many calls of a target the sandbox has counted."""
    return int(stage.control()["calls"][target])


def running(stage: Stage, target: str = "provider") -> int:
    """Return how many calls of a target are open at the sandbox."""
    return int(stage.control()["running"][target])


def waiting(fleet: LocalFleet, queue: str) -> int:
    """Return how many messages of a queue nobody has taken."""
    length: Any = fleet.broker_client().llen(queue)
    return int(length)


def consumers(fleet: LocalFleet) -> int:
    """Return how many workers wait at Redis for their next message; 0 while Redis is away."""
    try:
        clients: Any = fleet.broker_client(socket_timeout=1).client_list()
    except redis.RedisError:
        return 0
    return sum(client["cmd"] == "brpop" for client in clients)


def lines(child: Child, event: str) -> list[dict[str, Any]]:
    """Return the log lines of one event."""
    found = [json.loads(line) for line in child.log_text().splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def cpu_seconds(child: Child) -> float:
    """Return the processor time that a program has used (Linux)."""
    fields = Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Pushed:
    """Every message that anybody puts into a queue while the block runs, as Redis itself reports it."""

    def __init__(self, fleet: LocalFleet) -> None:
        self.entries: list[tuple[str, dict[str, Any]]] = []  # queue, entry
        self._fleet = fleet
        self._monitor = fleet.broker_client().monitor()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._monitor.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        broker = self._fleet.broker_client()
        for client in broker.client_list():  # type: ignore[union-attr]
            if client["cmd"] == "monitor":
                broker.client_kill_filter(_id=client["id"])
        self._thread.join(10)
        self._monitor.__exit__(None, None, None)

    def _read(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError):
            for told in self._monitor.listen():  # type: ignore[no-untyped-call]
                name, _, rest = told["command"].partition(" ")
                if name == "LPUSH":
                    queue, _, raw = rest.partition(" ")
                    self.entries.append((queue, json.loads(raw)))
