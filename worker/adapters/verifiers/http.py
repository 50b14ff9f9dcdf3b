"""A receipt verifier over HTTP, for reviewers whose receipts only their own service can read.

POST {endpoint}    {schema "locseal.verification.v1", purpose, receipt, binding}
200 {schema "locseal.verification-answer.v1", purpose, binding_sha256, receipt_sha256, verdict, kid}
"""

from __future__ import annotations

from typing import Final

from worker.adapters.endpoint import Endpoint
from worker.adapters.http import HttpClient
from worker.domain.canonical import canonical_bytes, sha256_hex
from worker.domain.document import parse_document
from worker.domain.errors import Invalid, ProviderFailure
from worker.domain.receipt import ReceiptBinding, VerifiedReceipt, receipt_sha256, rejected_code
from worker.domain.verification import VERIFICATION_SCHEMA, VerificationAnswer

AREA: Final = "release.verifier"
MAX_ANSWER_BYTES: Final = 64 * 1024


class HttpVerifier:
    """Asks one endpoint. Safe to use concurrently."""

    def __init__(self, client: HttpClient, endpoint: Endpoint, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._client = client
        self._endpoint = endpoint
        self._max_answer_bytes = max_answer_bytes

    async def verify(self, receipt: str, binding: ReceiptBinding, *, deadline_seconds: float) -> VerifiedReceipt:
        """Return the proof's facts; raise `Invalid` (`release.<purpose>.receipt.rejected`) for a rejected receipt.

        A verifier that cannot answer is a retryable `ProviderFailure` (`release.verifier.<fault>`); one that answers
        about something else, or refuses the question, is a terminal one.
        """
        question = {
            "schema": VERIFICATION_SCHEMA,
            "purpose": binding.purpose,
            "receipt": receipt,
            "binding": binding.document,
        }
        body = canonical_bytes(question)
        answer = await self._client.post(
            self._endpoint,
            body,
            area=AREA,
            deadline_seconds=deadline_seconds,
            max_answer_bytes=self._max_answer_bytes,
            headers={"Idempotency-Key": f"{binding.document['request_id']}.{sha256_hex(body)}"},
        )
        if answer.status != 200:
            raise answer.failure(AREA)
        return _judge(answer.document, receipt_sha256(receipt), binding)


def _judge(document: object, receipt_hash: str, binding: ReceiptBinding) -> VerifiedReceipt:
    try:
        answer = parse_document(VerificationAnswer, document, area=AREA)
    except Invalid:
        raise _terminal("answer_invalid", "the verifier's answer is none") from None
    if (answer.purpose, answer.binding_sha256, answer.receipt_sha256) != (
        binding.purpose,
        binding.sha256,
        receipt_hash,
    ):
        raise _terminal("binding_mismatch", "the verifier answered about something else")
    if answer.verdict == "rejected":
        raise Invalid(rejected_code(binding.purpose), "the verifier rejects this receipt for this binding")
    return VerifiedReceipt(purpose=binding.purpose, receipt_sha256=receipt_hash, kid=answer.kid)


def _terminal(fault: str, sentence: str) -> ProviderFailure:
    return ProviderFailure(f"{AREA}.{fault}", sentence, retryable=False)
