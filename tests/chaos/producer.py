"""The upstream pipelines: send what the plan says, keep it, and send it again until it is accepted or refused for good.

A thread of its own, since Redis and the database may be away. It starts no process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import bindparam, text

from tests.chaos.plan import Sending
from worker.cli.local_stage import Stage
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Unavailable
from worker.domain.messages import RELEASE_SUBMIT, RELEASE_WITHDRAW
from worker.store.engine import reading

TICK_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 1.0
SEND_AGAIN_SECONDS: Final = 8.0
IN_FLIGHT: Final = "withdrawal.in_flight"  # the one refusal after which a producer tries again


@dataclass(kw_only=True)
class Sent:
    """One document as its producer keeps it."""

    sending: Sending
    text: str = field(repr=False)
    document_sha256: str
    times: int = 0  # how often Redis took it
    sent_at: float = 0.0  # monotonic seconds
    state: str = "unknown"  # accepted | rejected
    code: str | None = None

    @property
    def is_settled(self) -> bool:
        """Tell whether the producer may forget it."""
        return self.state == "accepted" or (self.state == "rejected" and self.code != IN_FLIGHT)


class Producer:
    """Sends a plan's documents at their time. `kept` may be read at any time; `stop` ends the thread."""

    def __init__(self, stage: Stage, sendings: tuple[Sending, ...]) -> None:
        self._stage = stage
        self._coming = deque(sendings)
        self._ended = threading.Event()
        self._began = 0.0
        self._thread = threading.Thread(target=self._run, name="chaos-producer", daemon=True)
        self.kept: list[Sent] = []
        self.failure: Exception | None = None

    def start(self) -> None:
        """Begin; the plan's times count from now."""
        self._began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join(60)

    def is_done(self) -> bool:
        """Tell whether everything was sent and answered."""
        if self.failure is not None:
            raise RuntimeError("the producer failed") from self.failure
        return not self._coming and all(one.is_settled for one in self.kept)

    def _run(self) -> None:
        looked_at = 0.0
        try:
            while not self._ended.wait(TICK_SECONDS):
                self._send_due()
                if time.monotonic() - looked_at >= LOOK_SECONDS:
                    looked_at = time.monotonic()
                    self._look()
                    self._send_again()
        except Exception as error:
            self.failure = error

    def _send_due(self) -> None:
        while self._coming and self._coming[0].at <= time.monotonic() - self._began:
            sending = self._coming.popleft()
            signed = self._stage.sign(sending.document)
            one = Sent(sending=sending, text=signed, document_sha256=sha256_hex(signed))
            self.kept.append(one)
            self._send(one)

    def _send(self, one: Sent) -> None:
        message, name = RELEASE_SUBMIT, "submission"
        if one.sending.kind == "withdrawal":
            message, name = RELEASE_WITHDRAW, "withdrawal"
        try:
            self._stage.queue.submit(message, name, one.text)
        except Unavailable:
            return  # it is kept, and sent again
        one.times += 1
        one.sent_at = time.monotonic()

    def _send_again(self) -> None:
        now = time.monotonic()
        for one in self.kept:
            if self._ended.is_set():
                return
            if not one.is_settled and now - one.sent_at >= SEND_AGAIN_SECONDS:
                self._send(one)

    def _look(self) -> None:
        """Read what became of the open documents."""
        waiting = {one.document_sha256: one for one in self.kept if not one.is_settled}
        if not waiting:
            return
        statement = text(
            "SELECT document_sha256, state, code FROM submission_status WHERE document_sha256 IN :ids"
        ).bindparams(bindparam("ids", expanding=True))
        try:
            with reading(self._stage.engine) as conn:
                found = conn.execute(statement, {"ids": list(waiting)}).all()
        except Unavailable:
            return
        for row in found:
            one = waiting[row.document_sha256]
            one.state, one.code = row.state, row.code
