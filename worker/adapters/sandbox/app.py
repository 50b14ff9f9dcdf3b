"""The sandbox's HTTP surface: `/provider`, `/verifier`, `/cms/deliveries`, `/cms/lookups`, `/control`, `/health`.

`GET /responses` names the reviews that the provider put off ("accepted, not yet"); `POST /responses/<request id>`
finishes one and returns its signed response, to be handed in with `locseal evidence submit`.

Counts every call and misbehaves around the contracts as it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from worker.adapters.endpoint import is_loopback
from worker.adapters.sandbox.contracts import Admit, Bound, Contracts, body_of, retry_after
from worker.adapters.sandbox.controls import Behaviour, Controls, Rubbish, Target
from worker.adapters.sandbox.keys import SandboxKeys
from worker.adapters.sandbox.ledger import Ledger
from worker.domain.canonical import parse_strict
from worker.domain.errors import Invalid

Transport = Callable[[Scope], asyncio.Transport | None]
Work = Callable[[Request, Admit], Awaitable[Response]]


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
        self._contracts = Contracts(
            keys,
            self.controls,
            self.ledger,
            sites=sites,
            escalation=escalation,
            publication_trust=publication_trust,
        )
        self._controllable = controllable
        self._transport = transport

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(
            routes=[
                Route("/provider", self._target("provider", self._contracts.review), methods=["POST"]),
                Route("/verifier", self._target("verifier", self._contracts.verify), methods=["POST"]),
                Route("/cms/deliveries", self._target("cms", self._contracts.deliver), methods=["POST"]),
                Route("/cms/lookups", self._target("lookup", self._contracts.look_up), methods=["POST"]),
                Route("/responses", self._awaited, methods=["GET"]),
                Route("/responses/{request_id}", self._respond, methods=["POST"]),
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
        rubbish: Rubbish | None = None

        async def admit() -> tuple[Behaviour, Response | None]:
            nonlocal rubbish
            behaviour, fault = await self._admit(target)
            rubbish = behaviour.rubbish
            return behaviour, fault

        answer = await work(request, admit)
        await _pause(self.controls.of(target).answer_delay_seconds)
        if answer.status_code == 200 and self.controls.loses_answer(target):
            return Torn(self._transport)
        if answer.status_code == 200 and rubbish is not None and not isinstance(answer, Bound):
            return self._rubbish(rubbish, bytes(answer.body))
        return answer

    async def _admit(self, target: Target) -> tuple[Behaviour, Response | None]:
        behaviour = await self.controls.let_go(target)
        await _pause(behaviour.delay_seconds)
        fault = self._fault(target, behaviour)
        return (self.controls.as_it_answers(target, behaviour) if fault is None else behaviour), fault

    def _fault(self, target: Target, behaviour: Behaviour) -> Response | None:
        if behaviour.redirect_to is not None:
            return Response(status_code=307, headers={"Location": behaviour.redirect_to})
        if self.controls.fails(target):
            return Response(status_code=behaviour.fail_status, headers=retry_after(behaviour))
        return None

    def _rubbish(self, kind: Rubbish, good: bytes) -> Response:
        if kind == "html":
            return Response("<html><title>Sign in</title></html>", media_type="text/html")
        if kind == "truncated":
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(good)
            return Torn(self._transport, head + good[: len(good) // 2])
        bodies = {"text": b"ok", "duplicate": b'{"status":"accepted",' + good[1:-1] + b',"status":"accepted"}'}
        return Response(bodies.get(kind, b'{"ok":false,"error":"quota"}'), media_type="application/json")

    async def _show(self, request: Request) -> Response:
        self._check_local(request)
        state = self.state()
        if "requests" in request.query_params:
            state["requests"] = dict(self.controls.by_request)
            state["arrivals"] = dict(self.controls.arrivals)
        return JSONResponse(state)

    async def _awaited(self, request: Request) -> Response:
        self._check_local(request)
        return JSONResponse({"requests": self._contracts.awaited()})

    async def _respond(self, request: Request) -> Response:
        """Finish a review that was put off and hand out its signed response, for `locseal evidence submit`."""
        self._check_local(request)
        response = self._contracts.finished(request.path_params["request_id"])
        return JSONResponse(status_code=404, content={}) if response is None else JSONResponse(response.to_json())

    async def _control(self, request: Request) -> Response:
        self._check_local(request)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise HTTPException(415)  # what a web page may send without asking is never JSON
        try:
            document = parse_strict(await body_of(request), max_bytes=1024 * 1024, code="sandbox.control.invalid")
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


async def _as_json(_request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return JSONResponse({"code": f"http.status_{status}"}, status_code=status)


async def _pause(seconds: float) -> None:
    if seconds > 0:
        await asyncio.sleep(seconds)
