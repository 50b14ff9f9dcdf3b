"""Handing a signed document to intake, and waiting until it is accepted or rejected.

A message may be lost until it is accepted, so whoever waits sends again from time to time: repeats are free.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from typer.core import TyperCommand

from worker.adapters.queue import CeleryQueue, open_queue
from worker.cli.installation import database
from worker.cli.output import Refused
from worker.domain.canonical import sha256_hex
from worker.store.engine import reading
from worker.store.views import SubmissionState, submission_state

WAIT_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.2
SEND_AGAIN_SECONDS: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What became of a document: `sent` (nobody has said yet), or `accepted` at a time."""

    document_sha256: str
    state: str
    at: float | None = None

    def to_json(self) -> dict[str, object]:
        """Return it as JSON."""
        return {"document_sha256": self.document_sha256, "state": self.state, "at": self.at}


class WaitCommand(TyperCommand):
    """A command whose `--wait` may stand alone or with a number of seconds."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give a bare `--wait` its default number of seconds."""
        return super().parse_args(ctx, list(_with_seconds(args)))


def send(
    message: str,
    member: str,
    text: str,
    *,
    wait_seconds: float | None,
    queue: CeleryQueue | None = None,
    sleep: Callable[[float], None] = time.sleep,
    ticks: Callable[[], float] = time.monotonic,
) -> Sent:
    """Send a document by a message; with `wait_seconds` return once it is accepted.

    A document that was accepted before is not sent again. Raises its rejection as a refusal with the rejection's code,
    `submission.not_seen` (a refusal to give up waiting; it may be accepted later), and `queue.unavailable`.
    """
    queue = queue or open_queue()
    digest = sha256_hex(text)
    if wait_seconds is None:
        queue.submit(message, member, text)
        return Sent(document_sha256=digest, state="sent")
    with database() as engine:

        def look() -> SubmissionState | None:
            with reading(engine) as conn:
                return submission_state(conn, digest)

        before = look()
        if before is not None and before.state == "accepted":
            return Sent(document_sha256=digest, state="accepted", at=before.at)
        send_at = ticks()
        until = send_at + wait_seconds
        while True:
            if ticks() >= send_at:
                queue.submit(message, member, text)
                send_at = ticks() + SEND_AGAIN_SECONDS
            found = look()
            if found is not None and found.state == "accepted":
                return Sent(document_sha256=digest, state="accepted", at=found.at)
            if found is not None and found != before:  # a rejection of an earlier try is no answer to this one
                raise _rejection(found)
            if ticks() >= until:
                raise Refused(
                    "submission.not_seen",
                    f"sent, but not accepted within {wait_seconds:g} s; it may be later, and sending it again is free",
                    allowed=["the same command again", "locseal doctor"],
                    details={"document_sha256": digest},
                )
            sleep(LOOK_SECONDS)


def _rejection(found: SubmissionState) -> Refused:
    return Refused(
        found.code or "submission.invalid",
        "intake rejected the document; it is kept as a rejection and nothing of it takes effect",
        allowed=["locseal rejections list"],
        details={"document_sha256": found.document_sha256, "at": found.at},
    )


def _with_seconds(args: Iterable[str]) -> Iterator[str]:
    """Put the default behind every `--wait` that no number follows."""
    given = list(args)
    for place, word in enumerate(given):
        yield word
        if word == "--wait" and not _is_number(given[place + 1] if place + 1 < len(given) else ""):
            yield str(WAIT_SECONDS)


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).isdecimal()
