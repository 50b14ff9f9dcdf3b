"""Reviewers, verifiers and signers that do what a test says, for steps that collect evidence. Doubles of ports only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.builders import Keyring, response_for
from worker.domain.evidence import EvidenceRequest
from worker.domain.key import TrustSet
from worker.domain.receipt import ReceiptBinding, VerifiedReceipt
from worker.domain.signature import SignedDocument
from worker.flow.services import ReviewProvider, Services

Answer = Callable[[EvidenceRequest], Any]


@dataclass
class ScriptedProvider:
    """Satisfies `flow.services.ReviewProvider`: keeps what it was asked and answers as told (value or awaitable)."""

    answer: Answer
    asked: list[EvidenceRequest] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object:
        """Answer one request."""
        self.asked.append(request)
        self.deadlines.append(deadline_seconds)
        answer = self.answer(request)
        return await answer if inspect.isawaitable(answer) else answer


@dataclass
class ScriptedVerifier:
    """Satisfies `flow.services.ReceiptVerifier`: keeps what it was shown and answers as told."""

    answer: Callable[[str, ReceiptBinding], Any]
    shown: list[ReceiptBinding] = field(default_factory=list)

    async def verify(self, receipt: str, binding: ReceiptBinding, *, deadline_seconds: float) -> VerifiedReceipt:
        """Answer for one receipt."""
        self.shown.append(binding)
        answer = self.answer(receipt, binding)
        found: VerifiedReceipt = await answer if inspect.isawaitable(answer) else answer
        return found


@dataclass
class WatchedKeys:
    """Satisfies `flow.services.Keys`: a keyring that keeps what it signed and fails a purpose when told to."""

    keys: Keyring
    signed: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    failing: Exception | None = None

    def sign(self, purpose: str, document: Mapping[str, Any]) -> SignedDocument:
        """Sign, or fail."""
        if self.failing is not None:
            raise self.failing
        self.signed.append((purpose, document))
        return self.keys.sign(purpose, document)

    def trust(self, purpose: str) -> TrustSet:
        """Return the trust set of a purpose, or fail."""
        if self.failing is not None:
            raise self.failing
        return self.keys.trust(purpose)


def with_provider(services: Services, provider: ReviewProvider, **changes: Any) -> Services:
    """Return services whose default route is this provider."""
    return replace(services, providers={"default": provider}, **changes)


def good(keys: Keyring, **changes: Any) -> Answer:
    """Return an answer with valid receipts; `changes` replace members of the response."""
    return lambda request: response_for(keys, request, **changes)


def failing(failure: BaseException) -> Answer:
    """Return an answer that raises."""

    def fail(_request: EvidenceRequest) -> Any:
        raise failure

    return fail
