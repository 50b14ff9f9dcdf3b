"""The three contracts as a vendor or CMS team would serve them from the documents alone: review, verify, deliver, look up.

Good answers only, but for what a behaviour asks of the answer itself; all other misbehaviour is the app's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from worker.adapters.providers.local import good_answer
from worker.adapters.sandbox.controls import Behaviour, Controls
from worker.adapters.sandbox.keys import REVIEWER_ID, SandboxKeys
from worker.adapters.sandbox.ledger import Ledger
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.canonical import parse_strict, sha256_hex
from worker.domain.change import Provider
from worker.domain.contract import EvidenceRequestDocument, VerificationDocument
from worker.domain.delivery import (
    ACKNOWLEDGEMENT_SCHEMA,
    LOOKUP_ANSWER_SCHEMA,
    LookupQuestion,
    Publication,
    delivery_id_of,
)
from worker.domain.document import parse_document
from worker.domain.errors import Invalid
from worker.domain.evidence import request_id_of
from worker.domain.receipt import ReceiptBinding, receipt_sha256
from worker.domain.signature import SignedDocument, load_trust, parse_signed, verify_detached
from worker.domain.verification import ANSWER_SCHEMA

MAX_BODY_BYTES: Final = 256 * 1024 * 1024
REVIEWER: Final = Provider(id=REVIEWER_ID, model_id="second", model_version="1")

Admit = Callable[[], Awaitable[tuple[Behaviour, Response | None]]]
"""Waits as a call has to wait, and returns how it goes on: the behaviour now, and a fault in place of an answer."""


class Bound(JSONResponse):
    """A well-formed answer about something else; its rubbish is done, so nothing is added to it."""


class Contracts:
    """Serves the contracts over one set of keys and one ledger. A request that breaks one is `Invalid`: a 422."""

    def __init__(
        self,
        keys: SandboxKeys,
        controls: Controls,
        ledger: Ledger,
        *,
        sites: tuple[str, ...],
        escalation: Literal["human", "independent"],
        publication_trust: Path | None,
    ) -> None:
        self._keys = keys
        self._controls = controls
        self._ledger = ledger
        self._sites = sites
        self._escalation = escalation
        self._publication_trust = publication_trust
        self._verifier = JwsVerifier(keys.trust)

    async def review(self, request: Request, admit: Admit) -> Response:
        """Answer an evidence request with the receipts that its flags call for; its arrival is noted before it waits."""
        body = await body_of(request)
        document = parse_strict(body, max_bytes=MAX_BODY_BYTES, code="request.invalid")
        parse_document(EvidenceRequestDocument, document, area="request")
        request_id = document["request_id"]
        self._controls.arrivals[request_id] += 1
        behaviour, fault = await admit()
        if fault is not None:
            return fault
        _check_key(request, request_id, body)
        unbound = ("schema", "request_id", "source_text", "target_text")
        if request_id_of({name: value for name, value in document.items() if name not in unbound}) != request_id:
            raise Invalid("request.id_mismatch")
        for text, digest in (("source_text", "source_sha256"), ("target_text", "target_sha256")):
            if sha256_hex(document[text]) != document[digest]:
                raise Invalid("request.text_mismatch")
        self._controls.by_request[request_id] += 1
        refused = behaviour.refuse.get(document["target_locale"])
        if refused is not None:
            return JSONResponse({"code": refused}, status_code=422)
        if self._controls.not_yet(request_id, _need(document)):
            texts = ("source_text", "target_text")
            self._controls.awaited[request_id] = {name: value for name, value in document.items() if name not in texts}
            return Response(status_code=202, headers=retry_after(behaviour))
        answer = self._answer(document, wrong_key=behaviour.wrong_key)
        if behaviour.rubbish == "binding":
            answer["request_id"] = "evidence-" + "0" * 64
            return Bound(answer)
        return JSONResponse(answer)

    def finished(self, request_id: str) -> SignedDocument | None:
        """Finish the review of a request that was put off, and return its signed response; None for another id."""
        document = self._controls.awaited.get(request_id)
        if document is None:
            return None
        self._controls.finish(request_id)
        wrong_key = self._controls.of("provider").wrong_key
        return self._keys.hand_in(self._answer(document, wrong_key=wrong_key), wrong_key=wrong_key)

    def awaited(self) -> list[str]:
        """Return the ids of the requests that were put off, in the order in which they came."""
        return list(self._controls.awaited)

    def _answer(self, document: Mapping[str, Any], *, wrong_key: bool) -> dict[str, Any]:
        def sign(purpose: str, binding: Mapping[str, Any]) -> str:
            return self._keys.receipt(purpose, binding, wrong_key=wrong_key)

        return good_answer(document, sign, reviewer=REVIEWER, escalation=self._escalation)

    async def verify(self, request: Request, admit: Admit) -> Response:
        """Say whether a receipt proves a binding."""
        behaviour, fault = await admit()
        if fault is not None:
            return fault
        body = await body_of(request)
        question = parse_strict(body, max_bytes=MAX_BODY_BYTES, code="verification.invalid")
        parse_document(VerificationDocument, question, area="verification")
        purpose, receipt, binding = question["purpose"], question["receipt"], question["binding"]
        if binding["purpose"] != purpose:
            raise Invalid("verification.invalid")
        _check_key(request, binding["request_id"], body)
        bound = ReceiptBinding(purpose=purpose, document=binding)
        try:
            found = await self._verifier.verify(receipt, bound, deadline_seconds=1.0)
            verdict, kid = "accepted", found.kid
        except Invalid:
            verdict, kid = "rejected", "unknown"
        answer = {
            "schema": ANSWER_SCHEMA,
            "purpose": purpose,
            "binding_sha256": bound.sha256,
            "receipt_sha256": receipt_sha256(receipt),
            "verdict": verdict,
            "kid": kid,
        }
        if behaviour.rubbish == "binding":
            return Bound({**answer, "binding_sha256": "0" * 64})
        return JSONResponse(answer)

    async def deliver(self, request: Request, admit: Admit) -> Response:
        """Publish a delivery once and acknowledge it; its arrival is noted before it waits."""
        body = await body_of(request)
        delivery = parse_signed(body, max_bytes=MAX_BODY_BYTES, code="delivery.invalid")
        document = parse_document(Publication, dict(delivery.document), area="delivery").to_json()
        delivery_id = document["delivery_id"]
        ticket = self._ledger.arrive(delivery_id)
        behaviour, fault = await admit()
        if fault is not None:
            return fault
        _check_key(request, delivery_id, body)
        if document["site_id"] not in self._sites:
            raise Invalid("delivery.site.unknown")
        if request.headers.get("locseal-site-id") != document["site_id"]:
            raise Invalid("delivery.site.mismatch")
        if delivery_id_of(delivery.document) != delivery_id:
            raise Invalid("delivery.id_mismatch")
        self._check_publication(delivery)
        verdict = "stale" if behaviour.stale else self._ledger.accept(delivery, ticket)
        if verdict == "void":
            return Response(status_code=503)
        if verdict != "accepted":
            return JSONResponse({"status": verdict}, status_code=409)
        acknowledgement = {
            "schema": ACKNOWLEDGEMENT_SCHEMA,
            "site_id": document["site_id"],
            "delivery_id": delivery_id,
            "payload_sha256": sha256_hex(delivery.payload()),
            "status": "accepted",
        }
        return self._signed(acknowledgement, behaviour)

    async def look_up(self, request: Request, admit: Admit) -> Response:
        """Say whether a delivery is live."""
        behaviour, fault = await admit()
        if fault is not None:
            return fault
        body = await body_of(request)
        question = parse_strict(body, max_bytes=MAX_BODY_BYTES, code="lookup.invalid")
        asked = parse_document(LookupQuestion, question, area="lookup")
        _check_key(request, asked.delivery_id, body)
        site_id = request.headers.get("locseal-site-id", "")
        if site_id not in self._sites:
            raise Invalid("lookup.site.unknown")
        answer = {
            "schema": LOOKUP_ANSWER_SCHEMA,
            "site_id": site_id,
            "delivery_id": asked.delivery_id,
            "payload_sha256": asked.payload_sha256,
            "nonce": asked.nonce,
            "status": self._ledger.look_up(asked.delivery_id, asked.payload_sha256),
        }
        return self._signed(answer, behaviour)

    def _signed(self, document: dict[str, Any], behaviour: Behaviour) -> Response:
        """Return a signed answer; as rubbish "binding", one that is signed well but about other bytes."""
        if behaviour.rubbish == "binding":
            document = {**document, "payload_sha256": "0" * 64}
            return Bound(self._keys.acknowledge(document, wrong_key=behaviour.wrong_key).to_json())
        return JSONResponse(self._keys.acknowledge(document, wrong_key=behaviour.wrong_key).to_json())

    def _check_publication(self, delivery: SignedDocument) -> None:
        """Verify our own signature, where the sandbox was given the trust set to do so; re-read every time."""
        if self._publication_trust is None:
            return
        jwks = parse_strict(self._publication_trust.read_bytes(), max_bytes=4 * 1024 * 1024)
        trust = load_trust("publication", jwks)
        verify_detached(trust, delivery.payload(), delivery.signature, code="delivery.signature.invalid")


def _need(document: Mapping[str, Any]) -> Literal["human", "independent", "quality"]:
    """Return the review that a request's flags call for beside the quality receipt."""
    if document["human_review_required"]:
        return "human"
    return "independent" if document["independent_review_required"] else "quality"


async def body_of(request: Request) -> bytes:
    """Return the body, or refuse a huge one."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise HTTPException(413)
        chunks.append(chunk)
    return b"".join(chunks)


def _check_key(request: Request, name: str, body: bytes) -> None:
    """Check the idempotency key: our id and the digest of the very bytes that arrived."""
    if request.headers.get("idempotency-key") != f"{name}.{sha256_hex(body)}":
        raise Invalid("idempotency_key.mismatch")


def retry_after(behaviour: Behaviour) -> dict[str, str]:
    """Return the header that asks for a wait, where the behaviour has one."""
    return {} if behaviour.retry_after is None else {"Retry-After": behaviour.retry_after}
