"""Connections for the HTTP client: a pool whose cost does not grow with the calls in flight, and the wire below it.

HTTP/1.1 itself is the library's. Its pool is not used: it walks over every open connection at every call (5 ms a call at
500 in flight, measured), and a deadline that cancels a TLS handshake leaves its socket open.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpcore2

_BUFFER_BYTES: Final = 256 * 1024


class Wire(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """One TCP or TLS connection. Closed at once whatever ends its opening."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._unsent: list[bytes] = []  # written, and leaves with the next read: head and body in one packet
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.is_over = False  # the peer has closed, or the connection broke

    @classmethod
    async def connect(cls, host: str, port: int, *, tls: ssl.SSLContext | None, connect_seconds: float) -> Wire:
        """Open a connection; raise `ConnectError` (a TLS fault as its cause) or `ConnectTimeout`."""
        loop = asyncio.get_running_loop()
        wire = cls()
        try:
            async with asyncio.timeout(connect_seconds):
                await loop.create_connection(lambda: wire, host, port, happy_eyeballs_delay=0.25)
                if tls is not None:
                    assert wire._transport is not None
                    secured = await loop.start_tls(wire._transport, wire, tls, server_hostname=host)
                    assert secured is not None  # None only for a transport that was closing
                    wire._transport = secured
        except TimeoutError as error:
            await wire.aclose()
            raise httpcore2.ConnectTimeout from error
        except (OSError, UnicodeError) as error:
            await wire.aclose()
            raise httpcore2.ConnectError from error
        except BaseException:
            await wire.aclose()
            raise
        return wire

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """Send what was written, and return what arrived, or b"" once the peer has closed.

        The caller holds the deadline, not `timeout`.
        """
        del timeout
        self._send()
        if not self._buffer and not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._buffer:
            data = bytes(self._buffer[:max_bytes])
            del self._buffer[:max_bytes]
            if self._transport is not None and not self.is_over:
                self._transport.resume_reading()
            return data
        if self._error is not None:
            raise httpcore2.ReadError from self._error
        return b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Keep bytes for the next read to send, which also notices what breaks: half of a call's cost was a second send."""
        del timeout
        self._unsent.append(buffer)

    async def aclose(self) -> None:
        """Close without ceremony: a peer that does not answer a TLS farewell must not keep the socket."""
        self.is_over = True
        if self._transport is not None:
            self._transport.abort()
            await asyncio.sleep(0)  # the socket is closed in the loop's next turn

    def get_extra_info(self, info: str) -> Any:
        """Answer the one question that the library asks: an idle wire with something to read is no longer usable."""
        return (self.is_over or bool(self._buffer)) if info == "is_readable" else None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport; TLS puts its own in this one's place."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Keep bytes, but never much more than one buffer of them."""
        self._buffer += data
        if len(self._buffer) > _BUFFER_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Note that the peer will send no more."""
        self.is_over = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that nothing more will come, and why."""
        self.is_over = True
        self._error = exc
        self._wake()

    def _send(self) -> None:
        if self._unsent and self._transport is not None:
            whole, self._unsent = b"".join(self._unsent), []
            self._transport.write(whole)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Connection(httpcore2.AsyncHTTP11Connection):
    """One HTTP/1.1 connection that knows whether its peer has said more than it was asked for."""

    def is_reusable(self) -> bool:
        """Tell whether another request may be sent: idle, alive, and nothing left that its answer could begin with."""
        return self.is_idle() and not self._h11_state.trailing_data[0] and not self.has_expired()


class Connections:
    """The connections of one event loop: at most `concurrent` in use, at most `idle` kept, for `idle_seconds` each."""

    def __init__(
        self, *, tls: ssl.SSLContext, concurrent: int, idle: int, idle_seconds: float, connect_seconds: float
    ) -> None:
        self._tls = tls
        self._places = asyncio.Semaphore(concurrent)
        self._idle_limit = idle
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._idle: deque[tuple[httpcore2.Origin, _Connection]] = deque()  # oldest first

    @asynccontextmanager
    async def send(self, request: httpcore2.Request) -> AsyncIterator[httpcore2.Response]:
        """Send a request over an idle or a new connection, never twice, and lend the answer."""
        async with self._places:
            connection = await self._take(request.url.origin)
            try:
                response = await connection.handle_async_request(request)
                try:
                    yield response
                finally:
                    await response.aclose()
            finally:
                await self._give_back(request.url.origin, connection)

    async def aclose(self) -> None:
        """Close what is idle."""
        while self._idle:
            await self._idle.pop()[1].aclose()

    async def _take(self, origin: httpcore2.Origin) -> _Connection:
        for place in range(len(self._idle) - 1, -1, -1):  # the youngest of this origin; there are few origins
            if self._idle[place][0] == origin:
                connection = self._idle[place][1]
                del self._idle[place]
                if connection.is_reusable():
                    return connection
                await connection.aclose()
                return await self._take(origin)
        wire = await Wire.connect(
            origin.host.decode("ascii"),
            origin.port,
            tls=self._tls if origin.scheme == b"https" else None,
            connect_seconds=self._connect_seconds,
        )
        return _Connection(origin, wire, keepalive_expiry=self._idle_seconds)

    async def _give_back(self, origin: httpcore2.Origin, connection: _Connection) -> None:
        if self._idle_limit == 0 or not connection.is_reusable():
            await connection.aclose()
            return
        self._idle.append((origin, connection))
        while len(self._idle) > self._idle_limit or self._idle[0][1].has_expired():
            await self._idle.popleft()[1].aclose()
            if not self._idle:
                return
