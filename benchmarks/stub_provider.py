"""The stub as a review provider in the process that asks it: no HTTP, the same answers."""

from __future__ import annotations

import asyncio

from benchmarks.answers import Answers
from worker.domain.evidence import RESPONSE_SCHEMA, EvidenceRequest


class StubProvider:
    """Answers behind the provider port with receipts that were signed beforehand."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object:
        """Return the answer after the reviewer's time."""
        receipt, delay = self._answers.find(request.request_id)
        if delay:
            await asyncio.sleep(min(delay, deadline_seconds))
        return {
            "schema": RESPONSE_SCHEMA,
            "request_id": request.request_id,
            "result_sha256": request.document["result_sha256"],
            "quality_receipt": receipt,
            "human_review_receipt": None,
            "independent_model_review": None,
        }
