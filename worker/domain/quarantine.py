"""Poison: work whose workers die of it. When it is taken out of the fleet's hands, and what it was doing. Rules only.

A lease that runs out is the trace that a worker's death leaves. Three within 72 hours, of workers that did not announce
their end, and the row fails as quarantined: it is claimed no more until an operator lets a successor follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from worker.domain.attempt import LEASE_EXPIRED
from worker.domain.messages import DELIVERY_PUBLISH, EVIDENCE_COLLECT, RUN_STEP

Kind = Literal["evidence", "delivery", "run_command"]  # what setbacks call these rows

EVIDENCE_QUARANTINED: Final = "evidence.quarantined"
DELIVERY_QUARANTINED: Final = "cms.delivery.quarantined"
RUN_COMMAND_QUARANTINED: Final = "run.command.quarantined"
CODES: Final[dict[str, str]] = {
    "evidence": EVIDENCE_QUARANTINED,
    "delivery": DELIVERY_QUARANTINED,
    "run_command": RUN_COMMAND_QUARANTINED,
}
STEPS: Final[dict[Kind, str]] = {
    "evidence": EVIDENCE_COLLECT,
    "delivery": DELIVERY_PUBLISH,
    "run_command": RUN_STEP,
}


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """How many leases of one row may run out within how many seconds; the last of them quarantines it."""

    expiries: int = 3
    within_seconds: float = 259_200.0


@dataclass(frozen=True, kw_only=True)
class Setback:
    """One attempt of a row that ended without success, as the history keeps it."""

    attempt: int
    outcome: str
    code: str
    worker_id: str | None
    ended_at: float


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """One lease that ran out: whose it was, under which attempt, and what the worker had begun."""

    attempt: int
    worker_id: str | None
    at: float
    doing: str


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A quarantined row. `step` is the message whose work it is, `doing` the part that the last worker had begun."""

    kind: Kind
    row_id: str
    site_id: str
    event_id: str | None  # of evidence and deliveries
    job_id: str | None  # of evidence
    run_id: str | None  # of commands
    code: str
    since: float  # when it was quarantined
    step: str
    doing: str
    expiries: tuple[Expiry, ...]


def expiries_of(history: Sequence[Setback], doing: str | None = None) -> tuple[Expiry, ...]:
    """Return the leases that ran out, oldest first; `history` holds all setbacks of one row in their order.

    `doing` says what every attempt did. Without it the row is a delivery, whose look-ups count no attempt: so a lease
    whose attempt had ended before was a look-up, and any other a send.
    """
    found = []
    ended: set[int] = {0}
    for one in history:
        part = doing or ("look-up" if one.attempt in ended else "send")
        if one.code == LEASE_EXPIRED:
            found.append(Expiry(attempt=one.attempt, worker_id=one.worker_id, at=one.ended_at, doing=part))
        if one.outcome != "released":  # a send that was handed back is counted anew
            ended.add(one.attempt)
    return tuple(found)
