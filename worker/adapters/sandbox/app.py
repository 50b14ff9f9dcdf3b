"""The sandbox's HTTP surface: `/provider`, `/verifier`, `/cms/deliveries`, `/cms/lookups`, `/control`, `/health`.

Speaks the three contracts exactly as a vendor or CMS team would from the documents alone, and misbehaves as told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from worker.adapters.endpoint import is_loopback
from worker.adapters.providers.local import good_answer
from worker.adapters.sandbox.controls import Behaviour, Controls, Target
from worker.adapters.sandbox.keys import REVIEWER_ID, SandboxKeys
from worker.adapters.sandbox.ledger import Ledger
from worker.adapters.verifiers.http import ANSWER_SCHEMA, VERIFICATION_SCHEMA
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.canonical import parse_strict, sha256_hex
from worker.domain.change import Provider
from worker.domain.delivery import (
    ACKNOWLEDGEMENT_SCHEMA,
    LOOKUP_ANSWER_SCHEMA,
    LookupQuestion,
    Publication,
    delivery_id_of,
)
from worker.domain.document import parse_document
from worker.domain.errors import Invalid
from worker.domain.evidence import REQUEST_SCHEMA, request_id_of
from worker.domain.receipt import PURPOSES, ReceiptBinding, receipt_sha256
from worker.domain.signature import SignedDocument, load_trust, parse_signed, verify_detached

MAX_BODY_BYTES: Final = 256 * 1024 * 1024
REVIEWER: Final = Provider(id=REVIEWER_ID, model_id="second", model_version="1")

Transport = Callable[[Scope], asyncio.Transport | None]
Work = Callable[[Request, Behaviour], Awaitable[Response]]


class Torn(Response):
    """Closes the connection after some bytes, or none, in place of an answer."""

    def __init__(self, transport: Transport, data: bytes = b"") -> None:
        super().__init__()
        self._transport = transport
        self._data = data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write, close, and wait until the server has noticed."""
        del send
        transport = self._transport(scope)
        if transport is not None:
            transport.write(self._data)
            transport.close()
            while (await receive())["type"] != "http.disconnect":
                pass


class Sandbox:
    """The three services over one set of keys, controls and one ledger."""

    def __init__(
        self,
        keys: SandboxKeys,
        *,
        sites: tuple[str, ...],
        controls: Controls | None = None,
        escalation: Literal["human", "independent"] = "independent",
        publication_trust: Path | None = None,
        controllable: bool = True,
        transport: Transport = lambda _scope: None,
    ) -> None:
        self.keys = keys
        self.controls = controls or Controls()
        self.ledger = Ledger()
        self._sites = sites
        self._escalation = escalation
        self._publication_trust = publication_trust
        self._controllable = controllable
        self._transport = transport
        self._verifier = JwsVerifier(keys.trust)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/provider", self._target("provider", self._review), methods=["POST"]),
                Route("/verifier", self._target("verifier", self._verify), methods=["POST"]),
                Route("/cms/deliveries", self._target("cms", self._deliver), methods=["POST"]),
                Route("/cms/lookups", self._target("lookup", self._look_up), methods=["POST"]),
                Route("/control", self._show, methods=["GET"]),
                Route("/control", self._control, methods=["POST"]),
                Route("/health", self._health, methods=["GET"]),
            ],
            exception_handlers={HTTPException: _as_json},
        )

    def state(self) -> dict[str, Any]:
        """Return behaviours, counts and the ledger."""
        return {**self.controls.state(), **self.ledger.to_json()}

    def _target(self, target: Target, work: Work) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that counts the call and misbehaves around the work as the controls say."""

        async def handle(request: Request) -> Response:
            self.controls.begin(target)
            try:
                return await self._misbehaving(target, work, request)
            except Invalid as refusal:
                return JSONResponse({"code": refusal.code}, status_code=422)
            finally:
                self.controls.end(target)

        return handle

    async def _misbehaving(self, target: Target, work: Work, request: Request) -> Response:
        behaviour = self.controls.of(target)
        fault: Response | None = None
        if target != "cms":  # the CMS notes the arrival before it waits
            behaviour = await self.controls.let_go(target)
            await _pause(behaviour.delay_seconds)
            fault = self._fault(target, behaviour)
        answer = fault or await work(request, behaviour)
        behaviour = self.controls.of(target)
        await _pause(behaviour.answer_delay_seconds)
        if answer.status_code == 200 and self.controls.loses_answer(target):
            return Torn(self._transport)
        if answer.status_code == 200 and behaviour.rubbish is not None and not isinstance(answer, Bound):
            return self._rubbish(behaviour.rubbish, bytes(answer.body))
        return answer

    def _fault(self, target: Target, behaviour: Behaviour) -> Response | None:
        if behaviour.redirect_to is not None:
            return Response(status_code=307, headers={"Location": behaviour.redirect_to})
        if self.controls.fails(target):
            return Response(status_code=behaviour.fail_status, headers=_retry_after(behaviour))
        return None

    def _rubbish(self, kind: str, good: bytes) -> Response:
        if kind == "html":
            return Response("<html><title>Sign in</title></html>", media_type="text/html")
        if kind == "truncated":
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(good)
            return Torn(self._transport, head + good[: len(good) // 2])
        bodies = {"text": b"ok", "duplicate": b'{"status":"accepted",' + good[1:-1] + b',"status":"accepted"}'}
        return Response(bodies.get(kind, b'{"ok":false,"error":"quota"}'), media_type="application/json")

    # --- the provider -----------------------------------------------------------------------------------------------

    async def _review(self, request: Request, behaviour: Behaviour) -> Response:
        body = await _body(request)
        document = parse_strict(body, max_bytes=MAX_BODY_BYTES, code="request.invalid")
        if not isinstance(document, dict) or document.get("schema") != REQUEST_SCHEMA:
            raise Invalid("request.invalid")
        request_id = str(document.get("request_id"))
        _check_key(request, request_id, body)
        unbound = ("schema", "request_id", "source_text", "target_text")
        if request_id_of({name: value for name, value in document.items() if name not in unbound}) != request_id:
            raise Invalid("request.id_mismatch")
        for text, digest in (("source_text", "source_sha256"), ("target_text", "target_sha256")):
            if sha256_hex(str(document.get(text))) != document.get(digest):
                raise Invalid("request.text_mismatch")
        self.controls.by_request[request_id] += 1
        refused = behaviour.refuse.get(str(document["target_locale"]))
        if refused is not None:
            return JSONResponse({"code": refused}, status_code=422)
        if self.controls.not_yet(request_id):
            return Response(status_code=202, headers=_retry_after(behaviour))

        def sign(purpose: str, binding: Mapping[str, Any]) -> str:
            return self.keys.receipt(purpose, binding, wrong_key=behaviour.wrong_key)

        answer = good_answer(document, sign, reviewer=REVIEWER, escalation=self._escalation)
        if behaviour.rubbish == "binding":
            answer["request_id"] = "evidence-" + "0" * 64
            return Bound(answer)
        return JSONResponse(answer)

    # --- the verifier -----------------------------------------------------------------------------------------------

    async def _verify(self, request: Request, behaviour: Behaviour) -> Response:
        question = parse_strict(await _body(request), max_bytes=MAX_BODY_BYTES, code="verification.invalid")
        if not isinstance(question, dict) or question.keys() != {"schema", "purpose", "receipt", "binding"}:
            raise Invalid("verification.invalid")
        purpose, receipt, binding = question["purpose"], question["receipt"], question["binding"]
        if question["schema"] != VERIFICATION_SCHEMA or purpose not in PURPOSES or not isinstance(binding, dict):
            raise Invalid("verification.invalid")
        if not isinstance(receipt, str) or binding.get("purpose") != purpose:
            raise Invalid("verification.invalid")
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

    # --- the CMS ----------------------------------------------------------------------------------------------------

    async def _deliver(self, request: Request, behaviour: Behaviour) -> Response:
        body = await _body(request)
        delivery = parse_signed(body, max_bytes=MAX_BODY_BYTES, code="delivery.invalid")
        document = parse_document(Publication, dict(delivery.document), area="delivery").to_json()
        delivery_id = document["delivery_id"]
        ticket = self.ledger.arrive(delivery_id)
        behaviour = await self.controls.let_go("cms")
        await _pause(behaviour.delay_seconds)
        fault = self._fault("cms", behaviour)
        if fault is not None:
            return fault
        _check_key(request, delivery_id, body)
        if document["site_id"] not in self._sites:
            raise Invalid("delivery.site.unknown")
        if delivery_id_of(delivery.document) != delivery_id:
            raise Invalid("delivery.id_mismatch")
        self._check_publication(delivery)
        verdict = "stale" if behaviour.stale else self.ledger.accept(delivery, ticket)
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

    async def _look_up(self, request: Request, behaviour: Behaviour) -> Response:
        question = parse_strict(await _body(request), max_bytes=MAX_BODY_BYTES, code="lookup.invalid")
        asked = parse_document(LookupQuestion, question, area="lookup")
        site_id = request.headers.get("locseal-site-id", self._sites[0] if len(self._sites) == 1 else "")
        if site_id not in self._sites:
            raise Invalid("lookup.site.unknown")
        answer = {
            "schema": LOOKUP_ANSWER_SCHEMA,
            "site_id": site_id,
            "delivery_id": asked.delivery_id,
            "payload_sha256": asked.payload_sha256,
            "nonce": asked.nonce,
            "status": self.ledger.look_up(asked.delivery_id, asked.payload_sha256),
        }
        return self._signed(answer, behaviour)

    def _signed(self, document: dict[str, Any], behaviour: Behaviour) -> Response:
        """Return a signed answer; as rubbish "binding", one that is signed well but about other bytes."""
        if behaviour.rubbish == "binding":
            document = {**document, "payload_sha256": "0" * 64}
            return Bound(self.keys.acknowledge(document, wrong_key=behaviour.wrong_key).to_json())
        return JSONResponse(self.keys.acknowledge(document, wrong_key=behaviour.wrong_key).to_json())

    def _check_publication(self, delivery: SignedDocument) -> None:
        """Verify our own signature, where the sandbox was given the trust set to do so; re-read every time."""
        if self._publication_trust is None:
            return
        jwks = parse_strict(self._publication_trust.read_bytes(), max_bytes=4 * 1024 * 1024)
        trust = load_trust("publication", jwks)
        verify_detached(trust, delivery.payload(), delivery.signature, code="delivery.signature.invalid")

    # --- control ----------------------------------------------------------------------------------------------------

    async def _show(self, request: Request) -> Response:
        self._check_local(request)
        state = self.state()
        if "requests" in request.query_params:
            state["requests"] = dict(self.controls.by_request)
        return JSONResponse(state)

    async def _control(self, request: Request) -> Response:
        self._check_local(request)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise HTTPException(415)  # what a web page may send without asking is never JSON
        try:
            document = parse_strict(await _body(request), max_bytes=1024 * 1024, code="sandbox.control.invalid")
            if self.controls.change(document):
                self.controls.reset()
                self.ledger.reset()
        except Invalid as refusal:
            return JSONResponse({"code": refusal.code, "path": refusal.path}, status_code=422)
        return JSONResponse(self.state())

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"status": "ready"})

    def _check_local(self, request: Request) -> None:
        """Refuse control from anywhere but this machine, and under any name but its own (DNS rebinding)."""
        if not self._controllable or not is_loopback(request.url.hostname or ""):
            raise HTTPException(403)


class Bound(JSONResponse):
    """A well-formed answer about something else; its rubbish is done, so nothing is added to it."""


async def _as_json(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse({"code": f"http.status_{status}"}, status_code=status)


async def _pause(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)


async def _body(request: Request) -> bytes:
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


def _retry_after(behaviour: Behaviour) -> dict[str, str]:
    return {} if behaviour.retry_after is None else {"Retry-After": behaviour.retry_after}
