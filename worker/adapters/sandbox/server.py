"""Runs the sandbox: in this thread until stopped (`serve`), or in a thread beside a test (`SandboxThread`)."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import uvicorn
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from worker.adapters.endpoint import is_loopback
from worker.adapters.sandbox.app import Sandbox
from worker.adapters.sandbox.certificate import certificate_for
from worker.adapters.sandbox.controls import Controls
from worker.adapters.sandbox.keys import SandboxKeys
from worker.domain.errors import Blocked

START_SECONDS: Final = 20.0
_Ends = tuple[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where a sandbox listens, and the trust sets that Locseal must hold to believe it."""

    url: str
    trust_dir: Path
    sites: tuple[str, ...]
    ca_file: Path | None = None  # over https: what callers must trust

    @property
    def provider_url(self) -> str:
        """The review provider's endpoint."""
        return f"{self.url}/provider"

    @property
    def verifier_url(self) -> str:
        """The receipt verifier's endpoint."""
        return f"{self.url}/verifier"

    @property
    def cms_url(self) -> str:
        """The CMS's endpoint, above `/deliveries` and `/lookups`."""
        return f"{self.url}/cms"

    @property
    def control_url(self) -> str:
        """Where behaviours are set and counts are read."""
        return f"{self.url}/control"

    def to_json(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            "url": self.url,
            "provider": self.provider_url,
            "verifier": self.verifier_url,
            "cms": self.cms_url,
            "control": self.control_url,
            "trust_dir": str(self.trust_dir),
            "sites": list(self.sites),
            "ca_file": None if self.ca_file is None else str(self.ca_file),
        }


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a sandbox is started with. Control is served on loopback only; port 0 picks a free one.

    With `tls_names` it serves https under a certificate of its own for these host names or addresses. With
    `publication_trust`, our publication JWKS, its CMS verifies what it gets. `escalation` says who reviews texts of
    low confidence.
    """

    host: str = "127.0.0.1"
    port: int = 0
    sites: Sequence[str] = ("site-1",)
    escalation: Literal["human", "independent"] = "independent"
    publication_trust: Path | None = None
    tls_names: Sequence[str] = ()


class _Server(uvicorn.Server):
    """Says when it listens; remembers its connections so that the sandbox can tear one."""

    def __init__(self, config: uvicorn.Config, connections: dict[_Ends, asyncio.Transport]) -> None:
        super().__init__(config)
        self.connections = connections
        self.on_ready: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_ready()


def serve(
    directory: Path,
    options: Options | None = None,
    *,
    controls: Controls | None = None,
    on_ready: Callable[[Listening], None] = lambda _listening: None,
) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` gets the address once connections are taken.

    Raises `Blocked("sandbox.address.unavailable")` where it cannot listen.
    """
    server, listener, listening, _ = _build(directory, options or Options(), controls)
    server.on_ready = lambda: on_ready(listening)
    server.run(sockets=[listener])


class SandboxThread:
    """A sandbox in a thread of its own, for tests: a context manager with `listening` and the live `sandbox`.

    `state()` shows the counts and the ledger at any time, `behave()` changes behaviours.
    """

    def __init__(self, directory: Path, *, controls: Controls | None = None, **options: Any) -> None:
        """Bind the address; `options` are those of `Options`."""
        self._server, self._listener, self.listening, self.sandbox = _build(directory, Options(**options), controls)
        self._tls: ssl.SSLContext | None = None
        if self.listening.ca_file is not None:
            self._tls = ssl.create_default_context(cafile=str(self.listening.ca_file))
        self._ready = threading.Event()
        self._server.on_ready = self._ready.set
        self._thread = threading.Thread(target=self._run, name="locseal-sandbox", daemon=True)

    def __enter__(self) -> Self:
        """Start, and wait until connections are taken."""
        self._thread.start()
        if not self._ready.wait(START_SECONDS):
            raise Blocked("sandbox.start.failed", "the sandbox did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, ending whatever still runs."""
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(START_SECONDS)

    def behave(self, **targets: dict[str, Any]) -> None:
        """Set the behaviour of some targets: `behave(cms={"lose_answer_times": 1})`; `reset=True` forgets counts."""
        self._ask(json.dumps(targets).encode())

    def state(self) -> dict[str, Any]:
        """Return behaviours, counts and the ledger as `GET /control?requests` shows them."""
        return self._ask(None)

    def _ask(self, body: bytes | None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the address is our own
            f"{self.listening.control_url}?requests", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=START_SECONDS, context=self._tls) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
        return found

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])


def _build(
    directory: Path, options: Options, controls: Controls | None
) -> tuple[_Server, socket.socket, Listening, Sandbox]:
    """Bind the address and put everything together."""
    host, sites = options.host, tuple(options.sites)
    keys = SandboxKeys(directory, sites=sites)
    certificate, key = certificate_for(directory / "tls", options.tls_names) if options.tls_names else (None, None)
    connections: dict[_Ends, asyncio.Transport] = {}

    def transport(scope: Scope) -> asyncio.Transport | None:
        return connections.get((scope["server"], scope["client"]))

    sandbox = Sandbox(
        keys,
        sites=sites,
        controls=controls,
        escalation=options.escalation,
        publication_trust=options.publication_trust,
        controllable=is_loopback(host),
        transport=transport,
    )

    class TrackedProtocol(H11Protocol):
        """Notes its connection, since an ASGI application has no way to close one."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connections[self.server, self.client] = transport

        def connection_lost(self, exc: Exception | None) -> None:
            connections.pop((self.server, self.client), None)
            super().connection_lost(exc)

    config = uvicorn.Config(
        sandbox.app(),
        http=TrackedProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, options.port), family=family, backlog=2048)
    except OSError:
        raise Blocked(
            "sandbox.address.unavailable", f"cannot listen on {host} port {options.port}; choose another"
        ) from None
    name = options.tls_names[0] if options.tls_names else host
    shown = f"[{name}]" if ":" in name else name
    listening = Listening(
        url=f"{'https' if options.tls_names else 'http'}://{shown}:{listener.getsockname()[1]}",
        trust_dir=keys.trust_dir,
        sites=sites,
        ca_file=certificate,
    )
    return _Server(config, connections), listener, listening, sandbox
