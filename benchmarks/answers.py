"""The stub reviewer inside a process: the same table of signed answers for every side, given out after the same wait.

The receipts are real; they were signed before anything is measured.
"""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

ANSWERS: Final = "BENCH_ANSWERS"  # the directory of the tables
STUB: Final = "BENCH_STUB"  # the address of the stub as a server, or unset for the one in the process
MOST_TABLES: Final = 8  # the newest; what was asked before them is done


class Answers:
    """What the reviewer answers, by request id. Safe to share between threads; follows the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: set[str] = set()
        self._tables: list[tuple[float, dict[str, str]]] = []
        self._lock = threading.Lock()

    def find(self, request_id: str) -> tuple[str, float]:
        """Return the receipt and the seconds that the reviewer takes; `LookupError` where no table knows the request."""
        return self._look(request_id) or self._read(request_id)

    def _look(self, request_id: str) -> tuple[str, float] | None:
        for delay, receipts in reversed(self._tables):
            receipt = receipts.get(request_id)
            if receipt is not None:
                return receipt, delay
        return None

    def _read(self, request_id: str) -> tuple[str, float]:
        with self._lock:
            for path in sorted(self._directory.glob("*.json")):
                if path.name not in self._seen:
                    table = json.loads(path.read_text())
                    self._tables = [*self._tables, (float(table["delay_seconds"]), table["receipts"])][-MOST_TABLES:]
                    self._seen.add(path.name)
        found = self._look(request_id)
        if found is None:
            raise LookupError(request_id)
        return found


class Reviewer:
    """The reviewer as the peers call it, blocking, from any thread: in the process, or over HTTP where the setting says so."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._answers = Answers(Path(environment[ANSWERS]))
        self._url = environment.get(STUB, "")
        self._connections = threading.local()

    def review(self, request_id: str, document: str) -> str:
        """Return the receipt for the canonical text of one request."""
        if not self._url:
            receipt, delay = self._answers.find(request_id)
            if delay:
                time.sleep(delay)
            return receipt
        connection = self._connection()
        connection.request("POST", "/provider", document.encode(), {"Content-Type": "application/json"})
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return str(answer["quality_receipt"])

    def _connection(self) -> http.client.HTTPConnection:
        kept: http.client.HTTPConnection | None = getattr(self._connections, "kept", None)
        if kept is None:
            parts = urlsplit(self._url)
            kept = self._connections.kept = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        return kept
