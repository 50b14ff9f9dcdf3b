"""A TCP proxy that makes a link bad on purpose: slow, cut or silent. It never repeats, reorders or invents a byte.

    with ProxyThread() as proxies:
        proxy = proxies.open("worker1-redis", target_port=6379)
        proxy.delay(0.2)     # every piece waits so long, in both directions
        proxy.cut()          # connections are reset, new ones too
        proxy.silence()      # half-open: nothing passes, and neither end is told
        proxy.clear()        # well again; what was silenced is reset, as its bytes may be lost

What one end receives is always the beginning of what the other end sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")

PIECE_BYTES: Final = 65_536
WAIT_SECONDS: Final = 30.0
_LOST: Final = (OSError, asyncio.IncompleteReadError)


class Proxy:
    """One link: listens on `port` and passes everything on to a port of this machine. All methods are thread-safe."""

    def __init__(self, name: str, target_port: int, run: Callable[[Callable[[], None]], None]) -> None:
        self.name = name
        self.port = 0
        self._target_port = target_port
        self._run = run
        self._delay = 0.0
        self._is_cut = False
        self._is_silent = False
        self._passing = asyncio.Event()
        self._passing.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    # --- what makes it bad ------------------------------------------------------------------------------------------

    def delay(self, seconds: float) -> None:
        """Hold every piece back for so long."""
        self._run(lambda: setattr(self, "_delay", seconds))

    def cut(self) -> None:
        """Reset all connections, and every new one at once."""
        self._run(self._cut)

    def silence(self) -> None:
        """Let nothing pass, without a word to either end; new connections are taken and hear nothing."""
        self._run(self._silence)

    def clear(self) -> None:
        """Be a good link again. Connections that were silent are reset."""
        self._run(self._clear)

    def _cut(self) -> None:
        self._is_cut = True
        self._reset()

    def _silence(self) -> None:
        self._is_silent = True
        self._passing.clear()

    def _clear(self) -> None:
        if self._is_silent:
            self._reset()
        self._delay, self._is_cut, self._is_silent = 0.0, False, False
        self._passing.set()

    def _reset(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    # --- the loop's side --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=PIECE_BYTES)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """End every connection."""
        if self._server is not None:
            self._server.close()
        self._reset()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            await self._join(reader, writer)
        except _LOST:
            pass  # a lost connection is what this program is for
        finally:
            writer.transport.abort()
            self._open.discard(writer)
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target_port, limit=PIECE_BYTES)
        self._open.add(far_writer)
        try:
            if not self._is_cut:
                await self._pump_both((reader, far_writer), (far_reader, writer))
        finally:
            self._open.discard(far_writer)
            far_writer.transport.abort()

    async def _pump_both(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Pump until both directions have ended, or one of them was lost."""
        pumps = [asyncio.ensure_future(self._pump(reader, writer)) for reader, writer in ways]
        try:
            await asyncio.gather(*pumps)
            for _, writer in ways:
                writer.close()
                await writer.wait_closed()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await self._weather()
            if writer.transport.is_closing():
                raise ConnectionResetError
            writer.write(piece)
            await writer.drain()
        await self._weather()
        if writer.can_write_eof() and not writer.transport.is_closing():
            writer.write_eof()

    async def _weather(self) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        await self._passing.wait()


class ProxyThread:
    """Runs proxies on an event loop in a thread of its own; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxies", daemon=True)
        self._proxies: list[Proxy] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for proxy in self._proxies:
            with contextlib.suppress(TimeoutError):
                self._wait(proxy.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    def open(self, name: str, *, target_port: int) -> Proxy:
        """Return a proxy that listens on a port of its own."""
        proxy = Proxy(name, target_port, self._run)
        self._wait(proxy.start())
        self._proxies.append(proxy)
        return proxy

    def _run(self, change: Callable[[], None]) -> None:
        async def changed() -> None:
            change()

        self._wait(changed())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)
