"""The product's own Celery app with one part exchanged: the review provider is the stub in this process.

`celery -A benchmarks.our_worker worker`. Everything else (settings, tasks, steps, store, keys) is as it is shipped. With
the stub as a server nothing is exchanged, and `worker.app` runs.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import worker.app as product
from benchmarks.answers import ANSWERS, Answers
from config.settings import Settings
from worker.bootstrap import Plant, build_plant
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


def with_stub(settings: Settings, **parts: Any) -> Plant:
    """Build a process's plant with the stub as its one review route."""
    plant = build_plant(settings, **parts)
    stub = StubProvider(Answers(Path(os.environ[ANSWERS])))
    return replace(plant, services=replace(plant.services, providers={"default": stub}))


product.build_plant = with_stub  # type: ignore[attr-defined]
app = product.app
