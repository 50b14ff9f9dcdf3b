"""The review route `checks`: deterministic quality gates in this process, with quality receipts of its own.

It judges what a program can judge and signs nothing else. A text that also needs a person or a second model (legal
content, low confidence) is handed on to the provider behind it once the gates have passed; where there is none, that is
a stable failure. So the gates may also stand before a real provider, whose word cannot overrule them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from worker.adapters.providers.local import ReceiptSigner, binding_document
from worker.domain.checks.finding import Finding
from worker.domain.checks.gate import run_checks
from worker.domain.checks.policy import CheckPolicy
from worker.domain.errors import ProviderFailure
from worker.domain.evidence import RESPONSE_SCHEMA, EvidenceRequest, NotYet

AREA: Final = "evidence.checks"
_NAMED_PLACES: Final = 10  # places of findings told in the sentence of a failure
_AT_ONCE: Final = 4000  # characters of both texts that are checked on the loop itself; longer ones in a thread


class Reviewer(Protocol):
    """A provider that answers after the gates (the shape of every review provider)."""

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object | NotYet:
        """Return the answer to a request, or `NotYet`; raise `ProviderFailure`."""
        ...


class ChecksProvider:
    """Checks each text and signs a quality receipt where nothing blocks. Stateless; safe for many calls at once.

    `sign` signs with the key of purpose `receipt:quality`. `then` answers
    what needs more than a quality receipt, and with `always_then` everything that passed.
    """

    def __init__(
        self,
        sign: ReceiptSigner,
        *,
        policy: CheckPolicy | None = None,
        then: Reviewer | None = None,
        always_then: bool = False,
    ) -> None:
        if always_then and then is None:
            raise ValueError("name the provider that answers behind the checks")
        self._sign = sign
        self._policy = policy or CheckPolicy()
        self._then = then
        self._always_then = always_then

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object | NotYet:
        """Return the signed answer, or what the provider behind the checks answers.

        Raises `ProviderFailure`, terminal: `evidence.checks.<code>` of the first finding that blocks,
        `evidence.checks.human_review_required` or `evidence.checks.second_review_required` where another receipt is
        needed and nobody is there to give it. A check that does not end in time is `evidence.provider.timeout`,
        retryable.
        """
        started = asyncio.get_running_loop().time()
        blocking = self._policy.blocking(
            request.document["content_type"], await self._check(request.document, deadline_seconds)
        )
        if blocking:
            raise ProviderFailure(f"{AREA}.{blocking[0].code}", _sentence(blocking), retryable=False)
        needed = _further_review(request.document)
        if self._then is not None and (needed or self._always_then):
            left = deadline_seconds - (asyncio.get_running_loop().time() - started)
            return await self._then.review(request, deadline_seconds=max(left, 0.001))
        if needed:
            raise ProviderFailure(
                f"{AREA}.{needed}_review_required",
                "the checks passed and never replace this review; route the content to a provider that gives it",
                retryable=False,
            )
        return {
            "schema": RESPONSE_SCHEMA,
            "request_id": request.request_id,
            "result_sha256": request.document["result_sha256"],
            "quality_receipt": self._sign("receipt:quality", binding_document(request.document, "quality")),
            "human_review_receipt": None,
            "independent_model_review": None,
        }

    async def _check(self, document: Mapping[str, Any], deadline_seconds: float) -> tuple[Finding, ...]:
        if len(document["source_text"]) + len(document["target_text"]) <= _AT_ONCE:
            return check_document(document)
        try:
            async with asyncio.timeout(deadline_seconds):
                return await asyncio.to_thread(check_document, document)
        except TimeoutError:
            raise ProviderFailure(
                "evidence.provider.timeout", "the checks took too long; the text is very large", retryable=True
            ) from None


def check_document(document: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Return the findings about the two texts of an evidence request's document."""
    return run_checks(
        source_text=document["source_text"],
        target_text=document["target_text"],
        source_locale=document["source_locale"],
        target_locale=document["target_locale"],
        media_type=document["media_type"],
        content_type=document["content_type"],
    )


def _further_review(document: Mapping[str, Any]) -> str | None:
    """Return the review that a request needs beside the quality receipt: `human`, `second` (either kind), or None."""
    if document["human_review_required"]:
        return "human"
    return "second" if document["independent_review_required"] else None


def _sentence(blocking: Sequence[Finding]) -> str:
    """Name codes and places, never content."""
    named = ", ".join(f"{found.code} at {found.path}" for found in blocking[:_NAMED_PLACES])
    more = len(blocking) - _NAMED_PLACES
    return f"{named}, and {more} more" if more > 0 else named
