"""A review provider over HTTP.

POST {endpoint}    body: the canonical request document    Idempotency-Key: <request_id>.<sha256 of the body>
200 {response of SPEC 5}   202 accepted, not yet (optional Retry-After)   4xx {"code": "..."}: a named refusal
"""

from __future__ import annotations

from typing import Final

from worker.adapters.endpoint import Endpoint
from worker.adapters.http import HttpAnswer, HttpClient
from worker.domain.canonical import sha256_hex
from worker.domain.errors import ProviderFailure, area_code, is_error_code
from worker.domain.evidence import EvidenceRequest, NotYet

AREA: Final = "evidence.provider"
MAX_ANSWER_BYTES: Final = 1024 * 1024


class HttpProvider:
    """Asks one endpoint. Safe to use concurrently; keeps nothing between calls."""

    def __init__(self, client: HttpClient, endpoint: Endpoint, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._client = client
        self._endpoint = endpoint
        self._max_answer_bytes = max_answer_bytes

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object | NotYet:
        """Send the request once and return the parsed answer, unjudged, or `NotYet`; raise `ProviderFailure`.

        Codes are `evidence.provider.<fault>`, or the provider's own under `evidence.` where a 4xx names one.
        """
        body = request.body
        answer = await self._client.post(
            self._endpoint,
            body,
            area=AREA,
            deadline_seconds=deadline_seconds,
            max_answer_bytes=self._max_answer_bytes,
            headers={"Idempotency-Key": f"{request.request_id}.{sha256_hex(body)}"},
        )
        if answer.status == 200:
            return answer.document
        if answer.status == 202:
            return NotYet(retry_after_seconds=answer.retry_after_seconds)
        raise _failure(answer)


def _failure(answer: HttpAnswer) -> ProviderFailure:
    """Return the failure of a status; the provider may name the reason of a 4xx, never whether it is retryable."""
    failure = answer.failure(AREA)
    named = answer.document.get("code") if isinstance(answer.document, dict) else None
    if not is_error_code(named):
        return failure
    return ProviderFailure(
        area_code("evidence", named),
        "the provider refused with this code",
        retryable=failure.retryable,
        retry_after_seconds=failure.retry_after_seconds,
    )
