"""One locale's call: ask the provider once, judge the answer, verify its receipts. Not a step; the step starts many.

Runs on the call loop, beside all the others, under the row's own lease and with its own deadlines. It touches no
database and never raises: whatever happens becomes the value that says how the attempt ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceRequest, NotYet, check_unmutated, judge_response
from worker.domain.receipt import ReceiptBinding, VerifiedReceipt, receipt_sha256
from worker.domain.review import (
    GUARD_FAILED,
    RECEIPT_GUARD_FAILED,
    ROUTE_UNKNOWN,
    UNAVAILABLE,
    VERIFIER_UNAVAILABLE,
    WORKER_DRAINING,
    Abandoned,
    Deferred,
    Ending,
    Proof,
    Refused,
    Verified,
    not_yet,
    receipts_to_verify,
    refused,
)
from worker.flow.services import ReviewProvider, Services

HANDED_BACK: Final = Deferred(code=WORKER_DRAINING, wait_seconds=0.0)
ROUTE_UNKNOWN_SECONDS = 60.0  # a route that this process does not know is a setting to mend, not the row's fault


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The local end of a lease: monotonic time taken before the claim was sent, so it is never later than the row's."""

    ends_at: float
    monotonic: Callable[[], float]
    margin_seconds: float
    began: float = 0.0

    @classmethod
    def of_lease(cls, services: Services, *, began: float, seconds: float) -> Self:
        """Return the guard of a row that was leased for `seconds`; `began` was read just before its claim was sent."""
        return cls(
            ends_at=began + seconds,
            monotonic=services.monotonic,
            margin_seconds=services.deadlines.margin_seconds,
            began=began,
        )

    def is_live(self) -> bool:
        """Tell whether another call to the outside may begin; never asks the database."""
        return self.monotonic() < self.ends_at - self.margin_seconds

    def is_over(self) -> bool:
        """Tell whether the lease may be over already, so that settling is worth no more tries."""
        return self.monotonic() >= self.ends_at


async def review_locale(
    services: Services, request: EvidenceRequest, route: str | None, guard: Guard, pushed: object = None
) -> Ending:
    """Return how one attempt ended. Never raises, but for cancellation when the process ends.

    `pushed` is an answer that was handed in: it stands for the provider's, which is not asked, and is judged and
    verified like one. A process that drains asks nobody who was not asked yet, and hands the row back.
    """
    provider = services.providers.get(route or "")
    if pushed is None and provider is None:
        return Deferred(code=ROUTE_UNKNOWN, wait_seconds=ROUTE_UNKNOWN_SECONDS)
    if not guard.is_live():
        return Abandoned(code=GUARD_FAILED)
    if services.draining():
        return HANDED_BACK
    answer = pushed
    if pushed is None and provider is not None:
        answer = await _ask(provider, request, services.deadlines.provider_seconds)
    if isinstance(answer, Refused):
        return answer
    if isinstance(answer, NotYet):
        return not_yet(answer.retry_after_seconds)
    try:
        evidence = judge_response(request, answer)
    except Blocked as refusal:
        return Refused(code=refusal.code, retryable=False)  # every refusal of an answer is terminal
    proofs: list[Proof] = []
    for receipt, binding in receipts_to_verify(request, evidence):
        if not guard.is_live():
            return Refused(code=RECEIPT_GUARD_FAILED, retryable=True)
        verified = await _verify(services, receipt, binding)
        if isinstance(verified, Refused):
            return verified
        proofs.append(Proof(receipt=receipt, binding=binding, verified=verified))
    return Verified(request=request, evidence=evidence, proofs=tuple(proofs))


async def _ask(provider: ReviewProvider, request: EvidenceRequest, seconds: float) -> object:
    """Return the provider's answer to a copy of the request, or `Refused`."""
    given = request.copy()
    try:
        async with asyncio.timeout(seconds):  # a provider that breaks its own deadline must not keep its place
            answer = await provider.review(given, deadline_seconds=seconds)
    except Exception as failure:  # the provider border: no provider may end the others' batch
        return refused(failure, area="evidence", undeclared=UNAVAILABLE)
    try:
        check_unmutated(request, given)
    except Blocked as refusal:
        return Refused(code=refusal.code, retryable=False)
    return answer


async def _verify(services: Services, receipt: str, binding: ReceiptBinding) -> VerifiedReceipt | Refused:
    """Return what the verifier of the binding's purpose found, or `Refused`."""
    seconds = services.deadlines.verifier_seconds
    try:
        async with asyncio.timeout(seconds):
            verifier = services.verifiers[binding.purpose]
            found: object = await verifier.verify(receipt, binding, deadline_seconds=seconds)
    except Exception as failure:  # the verifier border, likewise
        return refused(failure, area="release", undeclared=VERIFIER_UNAVAILABLE)
    expected = (binding.purpose, receipt_sha256(receipt))
    if not isinstance(found, VerifiedReceipt) or (found.purpose, found.receipt_sha256) != expected:
        return Refused(code=VERIFIER_UNAVAILABLE, retryable=True)  # no answer to what was asked
    return found
