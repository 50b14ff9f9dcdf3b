"""The one binding a receipt proves, and what is known of a receipt once it was verified. Receipts are opaque here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from worker.domain.canonical import canonical_bytes, sha256_hex

if TYPE_CHECKING:
    from worker.domain.change import Provider
    from worker.domain.evidence import EvidenceRequest

BINDING_SCHEMA: Final = "locseal.receipt-binding.v1"
Purpose = Literal["quality", "human", "independent"]
PURPOSES: Final[tuple[Purpose, ...]] = ("quality", "human", "independent")

BOUND_FIELDS: Final = (
    "request_id",
    "evidence_revision",
    "job_id",
    "result_sha256",
    "source_sha256",
    "target_sha256",
    "source_locale",
    "target_locale",
    "content_type",
    "glossary_version",
    "policy_version",
    "software_version",
    "provider",
    "review_confidence",
    "quality_profile",
    "commercial_profile",
    "commercial_review",
    "human_review_required",
    "independent_review_required",
)
"""What every receipt is bound to, beside its purpose; an approval carries the same members."""


@dataclass(frozen=True, kw_only=True)
class ReceiptBinding:
    """The exact thing a receipt of one purpose must verify for. The document is never changed."""

    purpose: Purpose
    document: Mapping[str, Any]

    def payload(self) -> bytes:
        """Return the canonical bytes a reviewer signs."""
        return self._payload

    @cached_property
    def _payload(self) -> bytes:
        return canonical_bytes(self.document)

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the canonical bytes."""
        return sha256_hex(self._payload)


@dataclass(frozen=True, kw_only=True)
class VerifiedReceipt:
    """What a verifier found out about one receipt: its purpose, its hash, and the key that made it (where known)."""

    purpose: Purpose
    receipt_sha256: str
    kid: str | None


def binding_for(request: EvidenceRequest, purpose: Purpose, reviewer: Provider | None = None) -> ReceiptBinding:
    """Return the binding a receipt of this purpose must prove for this request.

    `reviewer` is the provider of an independent review: required for `independent`, and refused for the others
    (a programming error, so a ValueError).
    """
    if (purpose == "independent") != (reviewer is not None):
        raise ValueError("exactly an independent receipt names its reviewer")
    document: dict[str, Any] = {"schema": BINDING_SCHEMA, "purpose": purpose}
    document.update((field, request.document[field]) for field in BOUND_FIELDS)
    if reviewer is not None:
        document["reviewer"] = reviewer.to_json()
    return ReceiptBinding(purpose=purpose, document=document)


def receipt_sha256(receipt: str) -> str:
    """Return the hash of a receipt: SHA-256 over its UTF-8 bytes."""
    return sha256_hex(receipt)


def rejected_code(purpose: Purpose) -> str:
    """Return the stable code of a receipt that does not prove its binding."""
    return f"release.{purpose}.receipt.rejected"
