"""A CMS over HTTP: sends the stored bytes once, asks what became of them, and believes nothing unsigned.

    POST {endpoint}/deliveries    the signed publication as stored
    POST {endpoint}/lookups       {schema, delivery_id, payload_sha256, nonce}
    both with                     Idempotency-Key: <delivery_id>.<sha256 of body>    Locseal-Site-Id: <site_id>

What each answer means is the table of `CmsAnswer`; the classification stands in this one place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from worker.adapters.endpoint import Endpoint
from worker.adapters.http import HttpAnswer, HttpClient
from worker.domain.canonical import canonical_bytes, sha256_hex
from worker.domain.delivery import CmsAnswer, Lookup, check_acknowledgement, check_lookup_answer
from worker.domain.errors import Invalid, ProviderFailure, Unavailable
from worker.domain.signature import SignedDocument, TrustSet, parse_signed, verify_detached

DELIVERY: Final = "cms.delivery"
LOOKUP: Final = "cms.lookup"
MAX_ANSWER_BYTES: Final = 256 * 1024
NOT_NOW: Final = frozenset({425, 429})  # the CMS says that it did not take the request, and to come back


class HttpCms:
    """One site's CMS. Safe to use concurrently.

    `client` should keep no idle connections (`idle_seconds=0`): a connection that the CMS closes just as we write
    would leave a delivery in doubt for nothing. `trust` gives the current `acknowledgement` trust set. `has_lookup`
    and `is_idempotent` are what the configuration says the CMS promises.
    """

    def __init__(
        self,
        client: HttpClient,
        endpoint: Endpoint,
        *,
        site_id: str,
        trust: Callable[[], TrustSet],
        has_lookup: bool = True,
        is_idempotent: bool = False,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.has_lookup = has_lookup
        self.is_idempotent = is_idempotent
        self._client = client
        self._deliveries = endpoint.at("/deliveries")
        self._lookups = endpoint.at("/lookups")
        self._site_id = site_id
        self._trust = trust
        self._max_answer_bytes = max_answer_bytes
        self._wall_clock = wall_clock

    async def publish(self, delivery: SignedDocument, *, delivery_id: str, deadline_seconds: float) -> CmsAnswer:
        """Send the stored bytes once and classify the answer. Never raises for what the other side does."""
        asked_at = self._wall_clock()
        answer = await self._post(
            self._deliveries, delivery.to_text().encode(), delivery_id, DELIVERY, deadline_seconds
        )
        if isinstance(answer, CmsAnswer):
            return answer
        if answer.status == 200:
            return self._acknowledged(answer.body, delivery_id, sha256_hex(delivery.payload()), asked_at)
        if answer.status == 409 and answer.document == {"status": "stale"}:
            return CmsAnswer(outcome="stale", code=f"{DELIVERY}.stale")
        failure = answer.failure(DELIVERY)
        if answer.status in NOT_NOW:
            return _unavailable(failure, sent=False)
        # A success without an acknowledgement, or a 409 whose reason was torn off, leaves the outcome open.
        if failure.retryable or answer.status < 300 or (answer.status == 409 and answer.fault == "connection_lost"):
            return _unavailable(failure, sent=True)
        return CmsAnswer(outcome="refused", code=failure.code)

    async def look_up(self, lookup: Lookup, *, deadline_seconds: float) -> CmsAnswer:
        """Ask what became of a delivery: accepted, absent, unavailable (no signed answer) or unverifiable."""
        asked_at = self._wall_clock()
        body = canonical_bytes(lookup.document())
        answer = await self._post(self._lookups, body, lookup.delivery_id, LOOKUP, deadline_seconds)
        if isinstance(answer, CmsAnswer):
            return answer
        if answer.status != 200:
            # Whatever refuses the question says nothing about the delivery, so it can always be asked again.
            return _unavailable(answer.failure(LOOKUP), sent=True)
        try:
            signed, kid = self._verified(answer.body, LOOKUP, asked_at)
            status = check_lookup_answer(signed.document, lookup, site_id=self._site_id)
        except Invalid as refusal:
            return CmsAnswer(outcome="unverifiable", code=refusal.code)
        except Unavailable as ours:
            return CmsAnswer(outcome="unavailable", code=ours.code)
        return CmsAnswer(outcome=status, signed=signed, kid=kid)

    async def _post(
        self, endpoint: Endpoint, body: bytes, delivery_id: str, area: str, deadline_seconds: float
    ) -> HttpAnswer | CmsAnswer:
        """Return what came back, or the outcome of a call that brought nothing usable."""
        try:
            return await self._client.post(
                endpoint,
                body,
                area=area,
                deadline_seconds=deadline_seconds,
                max_answer_bytes=self._max_answer_bytes,
                headers={
                    "Idempotency-Key": f"{delivery_id}.{sha256_hex(body)}",
                    # A look-up names no site, and one endpoint may serve several.
                    "Locseal-Site-Id": self._site_id,
                },
            )
        except ProviderFailure as failure:
            return _unavailable(failure, sent=failure.sent)

    def _acknowledged(self, body: bytes, delivery_id: str, payload_sha256: str, asked_at: float) -> CmsAnswer:
        try:
            signed, kid = self._verified(body, DELIVERY, asked_at)
            check_acknowledgement(
                signed.document, site_id=self._site_id, delivery_id=delivery_id, payload_sha256=payload_sha256
            )
        except Invalid as refusal:
            return CmsAnswer(outcome="unverifiable", code=refusal.code)
        except Unavailable as ours:
            # Our own trust cannot be read now: the answer may be good, so the delivery stays in doubt.
            return CmsAnswer(outcome="unavailable", code=ours.code)
        return CmsAnswer(outcome="accepted", signed=signed, kid=kid)

    def _verified(self, body: bytes, area: str, asked_at: float) -> tuple[SignedDocument, str]:
        """Return the signed answer and its key; `Invalid` where the signature is not the CMS's word for this site.

        `asked_at` counts as the time of signing: an answer is never older than its question, and a key that was
        retired while the call went on still verifies it.
        """
        signed = parse_signed(body, max_bytes=self._max_answer_bytes, code=f"{area}.answer_invalid")
        code = f"{area}.signature_invalid"
        key = verify_detached(self._trust(), signed.payload(), signed.signature, code=code, signed_at=asked_at)
        if not key.speaks_for(self._site_id):
            raise Invalid(code, "the key does not speak for this site", path="signature")
        return signed, key.kid


def _unavailable(failure: ProviderFailure, *, sent: bool) -> CmsAnswer:
    return CmsAnswer(
        outcome="unavailable", code=failure.code, sent=sent, retry_after_seconds=failure.retry_after_seconds
    )
