"""The fault proxy: what arrives is always the beginning of what was sent."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.proxy import Proxy, ProxyThread

SECONDS = 60.0


class Echo:
    """A server that sends back every byte and keeps what each connection brought, in order."""

    def __init__(self) -> None:
        self.taken: list[bytearray] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.taken.append(bytearray())
            threading.Thread(target=self._echo, args=(connection, self.taken[-1]), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket, taken: bytearray) -> None:
        with connection:
            try:
                while piece := connection.recv(65_536):
                    taken += piece
                    connection.sendall(piece)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    """A server behind the proxy."""
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    """A good link to it."""
    with ProxyThread() as proxies:
        yield proxies.open("link", target_port=echo.port)


def connected(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=SECONDS)


def received(connection: socket.socket, count: int) -> bytes:
    """Return so many bytes, or fewer where the connection ends before."""
    found = bytearray()
    while len(found) < count:
        try:
            piece = connection.recv(count - len(found))
        except ConnectionResetError:
            break
        if not piece:
            break
        found += piece
    return bytes(found)


def test_a_good_link_passes_everything_once(proxy: Proxy, echo: Echo) -> None:
    """Three megabytes go through and back unchanged, and the end of the stream too."""
    sent = random.Random(1).randbytes(3_000_000)
    with connected(proxy) as connection:
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
        back = received(connection, len(sent))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert hashlib.sha256(back).digest() == hashlib.sha256(sent).digest()
    assert [bytes(one) for one in echo.taken] == [sent]


def test_a_slow_link_only_delays(proxy: Proxy) -> None:
    """Pieces arrive complete and in order, not before their delay."""
    proxy.delay(0.1)
    with connected(proxy) as connection:
        began = time.monotonic()
        for number in range(3):
            connection.sendall(b"%d" % number)
            assert received(connection, 1) == b"%d" % number
        assert time.monotonic() - began >= 0.6  # there and back, three times


def test_a_cut_link_resets_old_and_new_connections(proxy: Proxy, echo: Echo) -> None:
    """An open connection ends, a new one too, until the link is cleared; nothing more arrives at the other end."""
    with connected(proxy) as old:
        old.sendall(b"before")
        assert received(old, 6) == b"before"
        proxy.cut()
        assert received(old, 1) == b""
    with connected(proxy) as new:
        assert received(new, 1) == b""
    proxy.clear()
    with connected(proxy) as well:
        well.sendall(b"after")
        assert received(well, 5) == b"after"
    assert [bytes(one) for one in echo.taken] == [b"before", b"after"]


def test_a_half_open_link_says_nothing_to_anybody(proxy: Proxy, echo: Echo) -> None:
    """Bytes go in and none come out, nobody is told; once it is cleared the connection is reset, and nothing repeated."""
    with connected(proxy) as connection:
        connection.sendall(b"before")
        assert received(connection, 6) == b"before"
        proxy.silence()
        connection.sendall(b"lost")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(SECONDS)
        proxy.clear()
        assert received(connection, 1) == b""
    assert bytes(echo.taken[0]) == b"before"
    with connected(proxy) as well:
        well.sendall(b"after")
        assert received(well, 5) == b"after"


def test_random_weather_leaves_a_prefix(proxy: Proxy, echo: Echo) -> None:
    """Whatever the link does, each side has the beginning of what the other sent: no byte twice, none invented."""
    chance = random.Random(2)
    for _ in range(20):
        sent = chance.randbytes(200_000)
        before = len(echo.taken)
        with connected(proxy) as connection:
            threading.Thread(target=_send_all, args=(connection, sent), daemon=True).start()
            back = received(connection, chance.randrange(1, 150_000))
            for change in chance.sample([proxy.cut, proxy.silence, lambda: proxy.delay(0.001)], 2):
                change()
            proxy.clear()
            proxy.cut()
            back += received(connection, len(sent))
            proxy.clear()
        assert sent.startswith(back)
        assert back
        assert all(sent.startswith(bytes(one)) for one in echo.taken[before:])


def _send_all(connection: socket.socket, sent: bytes) -> None:
    try:
        connection.sendall(sent)
    except OSError:
        return
