"""Handing many documents to intake at once, and waiting for all of them together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from worker.adapters.queue import CeleryQueue, open_queue
from worker.cli.installation import database
from worker.cli.sending import LOOK_SECONDS, SEND_AGAIN_SECONDS
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Unavailable
from worker.store.engine import reading
from worker.store.views import SubmissionState, submission_state

SENT: Final = "sent"
ACCEPTED: Final = "accepted"
REJECTED: Final = "rejected"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one document: `sent` (nobody has said yet), `accepted`, or `rejected` with a code."""

    document_sha256: str
    state: str
    code: str | None = None


def send_all(
    message: str,
    member: str,
    texts: Sequence[str],
    *,
    wait_seconds: float | None,
    settled: Callable[[], None],
    queue: CeleryQueue | None = None,
    sleep: Callable[[float], None] = time.sleep,
    ticks: Callable[[], float] = time.monotonic,
) -> tuple[Outcome, ...]:
    """Send documents by a message, each once; with `wait_seconds` return when each is accepted or rejected, or time is up.

    Documents that were accepted before are not sent again when waiting. `settled` is called once for each that needs no
    more. Raises `Unavailable("queue.unavailable")`; what was sent before stays sent, and sending it again is free.
    """
    queue = queue or open_queue()
    digests = [sha256_hex(text) for text in texts]
    if wait_seconds is None:
        for text in texts:
            _submit(queue, message, member, text)
            settled()
        return tuple(Outcome(document_sha256=digest, state=SENT) for digest in digests)
    open_texts = dict(zip(digests, texts, strict=True))
    found: dict[str, Outcome] = {}
    with database() as engine:
        before = _states(engine, open_texts)
        answers = {digest: state for digest, state in before.items() if state.state == ACCEPTED}
        send_at = ticks()
        until = send_at + wait_seconds
        while True:
            for digest, state in answers.items():
                found[digest] = Outcome(document_sha256=digest, state=state.state, code=state.code)
                del open_texts[digest]
                settled()
            if open_texts and ticks() >= send_at:
                for text in open_texts.values():
                    _submit(queue, message, member, text)
                send_at = ticks() + SEND_AGAIN_SECONDS
            elif not open_texts or ticks() >= until:
                break
            else:
                sleep(LOOK_SECONDS)
            # A rejection of an earlier try is no answer to this one.
            states = _states(engine, open_texts)
            answers = {
                one: state for one, state in states.items() if state.state == ACCEPTED or state != before.get(one)
            }
    return tuple(found.get(digest, Outcome(document_sha256=digest, state=SENT)) for digest in digests)


def _states(engine: Any, digests: dict[str, str]) -> dict[str, SubmissionState]:
    with reading(engine) as conn:
        looked = {digest: submission_state(conn, digest) for digest in digests}
    return {digest: state for digest, state in looked.items() if state is not None}


def _submit(queue: CeleryQueue, message: str, member: str, text: str) -> None:
    try:
        queue.submit(message, member, text)
    except Unavailable as error:
        sentence = f"{error.message}; some documents may be sent already, and the same command again is free"
        raise Unavailable(error.code, sentence) from None
