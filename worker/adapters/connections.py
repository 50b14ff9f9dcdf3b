"""Connections that are closed whatever ends them, for the HTTP client's pool."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore2


class ClosingBackend(httpcore2.AnyIOBackend):
    """Opens TCP connections; one that is cancelled within its TLS handshake is closed at once.

    The library closes it only after an error, not when a deadline cancels it: a peer that never finishes a handshake
    would cost one open socket per attempt.
    """

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Open a connection."""
        return _Plain(await super().connect_tcp(host, port, timeout, local_address, socket_options))


class _Plain(httpcore2.AsyncNetworkStream):
    """A connection without TLS, or one that has it still to come."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self.read = stream.read  # type: ignore[method-assign]
        self.write = stream.write  # type: ignore[method-assign]

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's signature
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
