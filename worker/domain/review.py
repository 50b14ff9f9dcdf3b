"""How one attempt to get evidence ended, as a value. The flow makes them, the store settles them; nothing acts here.

Verified   the provider answered, every receipt was verified        -> approval and success, together
Refused    the attempt ended without success                        -> failed, or retry_wait
Deferred   "accepted, not yet", or no call was begun                 -> released, no attempt counted
Abandoned  no right to act any more, and nothing was begun           -> the row stays until its lease ends
"""

from __future__ import annotations

from dataclasses import dataclass

from worker.domain.evidence import Evidence, EvidenceRequest
from worker.domain.receipt import ReceiptBinding, VerifiedReceipt

GUARD_FAILED = "evidence.operation_guard.failed"
RECEIPT_GUARD_FAILED = "release.receipt.operation_guard"
UNAVAILABLE = "evidence.unavailable"
REQUEST_MUTATED = "evidence.request_mutated"
REQUEST_TAMPERED = "evidence.request.tampered"
NOT_YET = "evidence.not_yet"
ROUTE_UNKNOWN = "evidence.route.unknown"
VERIFIER_UNAVAILABLE = "release.receipt.unavailable"
SIGNING_FAILED = "release.approval.signing.failed"
TARGET_CONFLICT = "release.approval.target_conflict"
STORE_REFUSED = "release.approval.store.failed"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One receipt, what it was verified for, and what the verifier said of it."""

    receipt: str
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
    """Nothing may be written: the lease is over or nearly so. The code is for the log alone."""

    code: str


Ending = Verified | Refused | Deferred | Abandoned
