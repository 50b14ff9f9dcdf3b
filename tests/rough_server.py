"""A loopback server that misbehaves exactly as told, byte by byte; it records every request it was sent."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

Answer = Callable[[socket.socket, bytes], object]
"""Gets the connection and the whole request; writes what it likes; the connection stays open unless it closes it."""


def reply(
    body: bytes = b"{}",
    *,
    status: int = 200,
    content_type: str = "application/json",
    length: int | None = None,
    headers: tuple[str, ...] = (),
) -> bytes:
    """Return the bytes of one HTTP answer; `length` may lie."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body) if length is None else length}", *headers]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def says(data: bytes) -> Answer:
    """Answer every request with these bytes."""
    return lambda connection, _request: connection.sendall(data)


def drips(data: bytes, *, every_seconds: float, stop: threading.Event) -> Answer:
    """Answer one byte at a time, until the peer is gone or the server stops."""

    def answer(connection: socket.socket, _request: bytes) -> None:
        for byte in data:
            connection.sendall(bytes([byte]))
            if stop.wait(every_seconds):
                return

    return answer


def hangs_up(data: bytes = b"") -> Answer:
    """Answer these bytes, or none, and close."""

    def answer(connection: socket.socket, _request: bytes) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_RDWR)

    return answer


class RoughServer:
    """Serves on a free port of 127.0.0.1 in threads of its own. `answers` are used in turn, the last one for ever."""

    def __init__(self, *answers: Answer, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.stop = threading.Event()
        self._tls = tls
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def all_closed(self, seconds: float) -> bool:
        """Wait until the other side has closed every connection it made; tell whether it did in time."""
        for thread in self._threads[1:]:
            thread.join(seconds)
        return len(self._threads) > 1 and not any(thread.is_alive() for thread in self._threads[1:])

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, plain: socket.socket) -> None:
        with plain, contextlib.suppress(OSError):
            connection = plain if self._tls is None else self._tls.wrap_socket(plain, server_side=True)
            with connection:
                while request := _read_request(connection):
                    with self._lock:
                        self.requests.append(request)
                        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                    answer(connection, request)


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        if not chunk:
            return b""
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    while len(body) < length:
        chunk = connection.recv(65536)
        if not chunk:
            return b""
        body += chunk
    return head + b"\r\n\r\n" + body
