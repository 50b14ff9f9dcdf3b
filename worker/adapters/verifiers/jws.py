"""Receipts that are detached JWS over the binding, verified here against the trust set of their purpose."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from worker.domain.errors import Invalid
from worker.domain.receipt import ReceiptBinding, VerifiedReceipt, receipt_sha256, rejected_code
from worker.domain.signature import PublicKey, TrustSet, verify_detached

GRACE_SECONDS: Final = 300.0


class JwsVerifier:
    """Verifies receipts of all three purposes. Safe to use concurrently.

    `trust` gives the current trust set of a key purpose. `provider_ids` are the review providers whose quality and
    human receipts count; without it, any provider that the trust set names does. An independent receipt counts only
    from a key that names the reviewer in its binding. A receipt carries no time, but was made during the call that
    brought it: a key retired no longer than `grace_seconds` ago still verifies what arrives now.
    """

    def __init__(
        self,
        trust: Callable[[str], TrustSet],
        *,
        provider_ids: Collection[str] | None = None,
        grace_seconds: float = GRACE_SECONDS,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._trust = trust
        self._provider_ids = None if provider_ids is None else frozenset(provider_ids)
        self._grace_seconds = grace_seconds
        self._wall_clock = wall_clock

    async def verify(
        self,
        receipt: str,
        binding: ReceiptBinding,
        *,
        deadline_seconds: float,  # noqa: ARG002 - the port's signature; nothing here waits
    ) -> VerifiedReceipt:
        """Return the proof's facts, or raise `Invalid` with `release.<purpose>.receipt.rejected`.

        Trust that cannot be read now is `Unavailable`, retryable.
        """
        purpose = binding.purpose
        code = rejected_code(purpose)
        key = verify_detached(
            self._trust(f"receipt:{purpose}"),
            binding.payload(),
            receipt,
            code=code,
            signed_at=self._wall_clock() - self._grace_seconds,
        )
        if not self._may_speak(key, binding):
            raise Invalid(code, "the key does not belong to the reviewer that had to sign this", path="signature")
        return VerifiedReceipt(purpose=purpose, receipt_sha256=receipt_sha256(receipt), kid=key.kid)

    def _may_speak(self, key: PublicKey, binding: ReceiptBinding) -> bool:
        if binding.purpose == "independent":
            return key.proves_for(binding.document["reviewer"]["id"])
        if self._provider_ids is None:
            return bool(key.providers)
        return any(key.proves_for(provider) for provider in self._provider_ids)
