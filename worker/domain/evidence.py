"""What is asked about one result, who may ask it now, and what became of the asking. No storage, no clock, no calls.

A *key* names one question for ever (its five binding fields are unique together); a *claim* is the right of one worker
to ask it once; a *status* is what anybody may see of it: ids, counts, times and codes, never content.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class EvidenceKey:
    """The identity of one evidence row: its request id, and the binding that this id stands for."""

    request_id: str
    event_id: str
    plan_id: str
    job_id: str
    result_sha256: str
    evidence_revision: str


@dataclass(frozen=True, kw_only=True)
class EvidenceClaim:
    """A lease on one evidence row, as its holder got it. The row judges it; the holder cannot lengthen it.

    `lease_token` proves the lease, so it stays out of `repr` and thereby out of logs.
    """

    request_id: str
    lease_owner: str
    lease_token: str = field(repr=False)
    lease_expires_at: float
    attempt: int
    max_attempts: int


@dataclass(frozen=True, kw_only=True)
class EvidenceStatus:
    """One evidence row as anybody may see it. Times are seconds since the epoch by the database's clock."""

    request_id: str
    event_id: str
    plan_id: str
    job_id: str
    result_sha256: str
    evidence_revision: str
    status: str
    attempts: int
    max_attempts: int
    next_attempt_at: float
    lease_expires_at: float | None
    last_error_code: str | None
    schema: str = "locseal.evidence-status.v1"
