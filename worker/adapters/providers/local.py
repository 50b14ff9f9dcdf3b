"""A review provider in this process: it finds every text good and signs its own receipts. For demo, tests, benchmarks.

What it signs is what a real reviewer signs, so everything behind it is checked for real. The sandbox answers with
`good_answer` too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from worker.domain.change import Provider
from worker.domain.errors import ProviderFailure
from worker.domain.evidence import RESPONSE_SCHEMA, REVIEW_SCHEMA, EvidenceRequest, NotYet
from worker.domain.receipt import BINDING_SCHEMA, BOUND_FIELDS, Purpose

ReceiptSigner = Callable[[str, Mapping[str, Any]], str]
"""Signs a binding's document with the key of a key purpose (`receipt:quality`, ...) and returns the receipt."""

REVIEWER: Final = Provider(id="local-second-model", model_id="second", model_version="1")


class LocalProvider:
    """Answers each request at once, or after a fixed delay, with signed receipts.

    `escalation` says who reviews texts of low confidence; legal texts always get a human receipt. The key of
    `receipt:independent` must name the provider id of `reviewer`.
    """

    def __init__(
        self,
        sign: ReceiptSigner,
        *,
        reviewer: Provider = REVIEWER,
        escalation: Literal["human", "independent"] = "independent",
        delay_seconds: float = 0.0,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._sign = sign
        self._reviewer = reviewer
        self._escalation = escalation
        self._delay_seconds = delay_seconds
        self._sleep = sleep

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object | NotYet:
        """Return the signed answer; `evidence.provider.timeout` where the delay does not fit into the deadline."""
        if self._delay_seconds > 0:
            await self._sleep(min(self._delay_seconds, deadline_seconds))
            if self._delay_seconds >= deadline_seconds:
                raise ProviderFailure("evidence.provider.timeout", "the delay is too long", retryable=True)
        return good_answer(request.document, self._sign, reviewer=self._reviewer, escalation=self._escalation)


def good_answer(
    request: Mapping[str, Any],
    sign: ReceiptSigner,
    *,
    reviewer: Provider,
    escalation: Literal["human", "independent"],
) -> dict[str, Any]:
    """Return the response to a request document, with every receipt that its flags call for."""
    human = request["human_review_required"] or (request["independent_review_required"] and escalation == "human")
    independent = request["independent_review_required"] and not human
    review: dict[str, Any] | None = None
    if independent:
        named = reviewer.to_json()
        review = {
            "schema": REVIEW_SCHEMA,
            "provider": named,
            "receipt": sign("receipt:independent", binding_document(request, "independent", reviewer=named)),
        }
    return {
        "schema": RESPONSE_SCHEMA,
        "request_id": request["request_id"],
        "result_sha256": request["result_sha256"],
        "quality_receipt": sign("receipt:quality", binding_document(request, "quality")),
        "human_review_receipt": sign("receipt:human", binding_document(request, "human")) if human else None,
        "independent_model_review": review,
    }


def binding_document(
    request: Mapping[str, Any], purpose: Purpose, *, reviewer: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the document that a reviewer of this purpose signs, made from nothing but the request it was sent."""
    document = {"schema": BINDING_SCHEMA, "purpose": purpose, **{field: request[field] for field in BOUND_FIELDS}}
    return document if reviewer is None else {**document, "reviewer": dict(reviewer)}
