"""How one attempt to get evidence ended, as a value. The flow makes them, the store settles them; nothing acts here.

Verified   the provider answered, every receipt was verified        -> approval and success, together
Refused    the attempt ended without success                        -> failed, or retry_wait
Deferred   "accepted, not yet", or no call was begun                 -> released, no attempt counted
Abandoned  no right to act any more, or no time to wait for the end  -> the row stays until its lease ends
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from worker.domain.attempt import LONGEST_WAIT_SECONDS
from worker.domain.errors import Blocked, area_code
from worker.domain.evidence import Evidence, EvidenceRequest
from worker.domain.identifier import is_time
from worker.domain.receipt import ReceiptBinding, VerifiedReceipt, binding_for

NOT_YET_SECONDS: Final = 30.0  # until the provider is asked again where it named no time

LEASE_LOST = "evidence.lease_lost"
GUARD_FAILED = "evidence.operation_guard.failed"
RECEIPT_GUARD_FAILED = "release.receipt.operation_guard"
UNAVAILABLE = "evidence.unavailable"
REQUEST_TAMPERED = "evidence.request.tampered"
NOT_YET = "evidence.not_yet"
DEADLINE_PASSED = "evidence.review_deadline_passed"
RESPONSE_TAMPERED = "evidence.response.tampered"
ROUTE_UNKNOWN = "evidence.route.unknown"
VERIFIER_UNAVAILABLE = "release.receipt.unavailable"
SIGNING_FAILED = "release.approval.signing.failed"
TARGET_CONFLICT = "release.approval.target_conflict"
STORE_REFUSED = "release.approval.store.failed"
WORKER_DRAINING = "evidence.worker_draining"
CUT_OFF = "evidence.cut_off"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One receipt, what it was verified for, and what the verifier said of it."""

    receipt: str = field(repr=False)
    binding: ReceiptBinding
    verified: VerifiedReceipt


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A judged answer whose receipts all verified; not yet an approval."""

    request: EvidenceRequest
    evidence: Evidence
    proofs: tuple[Proof, ...]


@dataclass(frozen=True, kw_only=True)
class Refused:
    """An attempt that ended without success. `retry_after_seconds` is the wait the other side asked for."""

    code: str
    retryable: bool
    retry_after_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Deferred:
    """Work handed back: no attempt is counted, the row is due again after the wait."""

    code: str
    wait_seconds: float


@dataclass(frozen=True, kw_only=True)
class Abandoned:
    """Nothing may be written: the lease is over or nearly so, or the process ends. The code is for the log alone."""

    code: str


@dataclass(frozen=True, kw_only=True)
class Reused:
    """A standing approval of the job was found and verified: the row is answered without a call."""


Ending = Verified | Reused | Refused | Deferred | Abandoned


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What one collection did, in rows. `failed` counts attempts that ended without success, retried ones too."""

    claimed: int = 0
    approved: int = 0
    failed: int = 0

    def plus(self, *, claimed: int = 0, approved: int = 0, failed: int = 0) -> Collected:
        """Return these counts with others added."""
        return Collected(claimed=self.claimed + claimed, approved=self.approved + approved, failed=self.failed + failed)


def refused(failure: Exception, *, area: str, undeclared: str) -> Refused:
    """Return how a foreign failure ends the attempt: under its area, or retryable where it declares nothing usable.

    Only a `Blocked` whose `retryable` is a real boolean declares something.
    """
    if not isinstance(failure, Blocked) or not isinstance(failure.retryable, bool):
        return Refused(code=undeclared, retryable=True)
    asked = getattr(failure, "retry_after_seconds", None)
    wait = float(asked) if is_time(asked) else None
    return Refused(code=area_code(area, failure.code), retryable=failure.retryable, retry_after_seconds=wait)


def not_yet(asked_seconds: object) -> Deferred:
    """Return how "accepted, not yet" ends the attempt: uncounted, due after the wait that was asked for."""
    if not is_time(asked_seconds):
        return Deferred(code=NOT_YET, wait_seconds=NOT_YET_SECONDS)
    return Deferred(code=NOT_YET, wait_seconds=min(max(float(asked_seconds), 1.0), LONGEST_WAIT_SECONDS))


def receipts_to_verify(request: EvidenceRequest, evidence: Evidence) -> list[tuple[str, ReceiptBinding]]:
    """Return each receipt of judged evidence with the one binding that it must prove."""
    found = [(evidence.quality_receipt, binding_for(request, "quality"))]
    if evidence.human_receipt is not None:
        found.append((evidence.human_receipt, binding_for(request, "human")))
    if evidence.independent_receipt is not None:
        found.append((evidence.independent_receipt, binding_for(request, "independent", evidence.reviewer)))
    return found
