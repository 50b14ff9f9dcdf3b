"""The one careful HTTP client: every call to the outside goes through `HttpClient.post`.

It sends once and never again: no redirect, no retry, no cookie, no proxy from the environment. A total deadline, a size
limit while reading, strict JSON. What goes wrong becomes a `ProviderFailure` with a code under the caller's area,
`retryable`, and `sent` (False only when not a byte of the request left). No content, address or header gets into it.

    code (under the area)   retryable   when
    timeout                 yes         the total deadline passed, wherever the time went
    unreachable, tls        yes         no connection: refused, no route, no name; the certificate does not fit
    connection_lost         yes         torn, half an answer, wrong length, no HTTP
    body_too_large, content_type, content_encoding, json_invalid
                            yes         a 200 whose body is no strict JSON within the limit
    credentials             yes         our own secret cannot be read; nothing was sent
    status_408/425/429/5xx  yes         with the `Retry-After` it asked for
    redirect, status_...    no          everything else
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import httpcore2

from worker.adapters.connections import Connections
from worker.adapters.endpoint import Endpoint
from worker.domain.canonical import parse_strict
from worker.domain.errors import Blocked, Invalid, ProviderFailure, Unavailable

RETRY_AFTER_MAX_SECONDS: Final = 3600.0
TRY_AGAIN: Final = frozenset({408, 425, 429})
_SECONDS: Final = re.compile(r"[0-9]{1,256}")
_JSON_TYPE: Final = re.compile(
    r"application/(?:[a-z0-9!#$&^_.+-]+\+)?json(?:\s*;\s*charset=\"?utf-8\"?)?", re.IGNORECASE
)


def retry_after_seconds(value: str | None, *, now: float) -> float | None:
    """Return the wait that a `Retry-After` asks for, at most an hour; None when absent, malformed, zero or past.

    `value` is a number of seconds or an HTTP date; `now` is the time that a date is counted from.
    """
    if value is None:
        return None
    text = value.strip()
    if _SECONDS.fullmatch(text):
        wait = float(text)
    else:
        try:
            wait = parsedate_to_datetime(text).timestamp() - now
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    return min(wait, RETRY_AFTER_MAX_SECONDS) if wait > 0 else None


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """What came back: the status, the body of a 200 or 4xx as parsed and as received, and the wait asked for.

    `fault` names why the body of a 4xx could not be used (None otherwise); a 200 with such a body is raised instead.
    """

    status: int
    document: object = field(default=None, repr=False)
    body: bytes = field(default=b"", repr=False)
    fault: str | None = None
    retry_after_seconds: float | None = None

    def failure(self, area: str) -> ProviderFailure:
        """Return the failure that this status stands for; only for answers that are no success."""
        if 300 <= self.status < 400:
            return ProviderFailure(f"{area}.redirect", "the other side redirects; fix the endpoint", retryable=False)
        return ProviderFailure(
            f"{area}.status_{self.status}",
            "the other side did not do what was asked",
            retryable=self.status in TRY_AGAIN or self.status >= 500,
            retry_after_seconds=self.retry_after_seconds,
        )


_url = lru_cache(maxsize=256)(httpcore2.URL)  # there are few endpoints, and taking one apart is a tenth of a call


class _BodyFault(Exception):
    """A body that is no strict JSON within the limit; carries the last part of the code."""


class _Progress:
    """How far one call has come; the trace hook of the transport keeps it."""

    __slots__ = ("answer", "sent")

    def __init__(self) -> None:
        self.sent = False
        self.answer: HttpAnswer | None = None

    async def trace(self, event: str, _info: Any) -> None:
        if event == "http11.send_request_headers.started":
            self.sent = True


class HttpClient:
    """Sends single POSTs with all the care above. One per process and kind of use; every adapter may share it.

    It keeps one pool of connections per event loop, made at the first call and closed by `aclose`. `idle_seconds` is
    how long a connection may wait for its next use: 0 gives each call its own, which a delivery wants, because a peer
    that closes an idle connection as we write leaves a call in doubt for nothing.
    """

    def __init__(
        self,
        *,
        ca_file: Path | None = None,
        concurrent_calls: int = 512,
        idle_connections: int = 512,
        idle_seconds: float = 2.0,
        connect_seconds: float = 5.0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        # The library below would write addresses and headers into debug logs; they must never get there.
        logging.getLogger("httpcore2").setLevel(logging.WARNING)
        # Read at once, so that a wrong file is refused at start and not at the first call.
        self._tls = None if ca_file is None else _tls_context(ca_file)
        self._concurrent_calls = concurrent_calls
        self._idle_connections = idle_connections if idle_seconds > 0 else 0
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._wall_clock = wall_clock
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Connections] = WeakKeyDictionary()

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    async def post(
        self,
        endpoint: Endpoint,
        body: bytes,
        *,
        area: str,
        deadline_seconds: float,
        max_answer_bytes: int,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Send one JSON body once and return the answer, of whatever status, before the total deadline.

        Raises `ProviderFailure` under `area` for faults of the transport and for a 200 without a usable body.
        """
        progress = _Progress()
        fault = "timeout"
        try:
            # A little early, so that a caller that watches the same deadline learns from us what happened.
            async with asyncio.timeout(deadline_seconds - min(deadline_seconds * 0.02, 0.05)):
                return await self._exchange(endpoint, body, max_answer_bytes, headers or {}, progress)
        except (TimeoutError, httpcore2.TimeoutException):
            pass
        except httpcore2.ConnectError as error:
            fault = "tls" if _is_tls(error) else "unreachable"
        except _BodyFault as error:
            fault = str(error)
        except Unavailable:
            fault = "credentials"
        except (httpcore2.NetworkError, httpcore2.ProtocolError, OSError):
            fault = "connection_lost"
        # Outside the handlers on purpose: a library's exception holds the request, and must not be chained to ours.
        if progress.answer is not None:
            return progress.answer
        raise ProviderFailure(f"{area}.{fault}", "the call gave no usable answer", retryable=True, sent=progress.sent)

    async def _exchange(
        self, endpoint: Endpoint, body: bytes, limit: int, extra: Mapping[str, str], progress: _Progress
    ) -> HttpAnswer:
        url = _url(endpoint.url)
        headers: dict[bytes | str, bytes | str] = {
            "Host": endpoint.host,
            **{name: value for name, value in extra.items()},  # noqa: C416 - widens the type
            "Content-Length": str(len(body)),
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "locseal",
        }
        if endpoint.credentials is not None:
            name, value = endpoint.credentials.header()
            headers.setdefault(name, value)
        request = httpcore2.Request("POST", url, headers=headers, content=body, extensions={"trace": progress.trace})
        async with self._connections().send(request) as response:
            return await self._answer(response, limit, progress)

    async def _answer(self, response: httpcore2.Response, limit: int, progress: _Progress) -> HttpAnswer:
        status = response.status
        headers = _headers(response)
        asked = headers.get("retry-after")
        wait = None if asked is None else retry_after_seconds(asked, now=self._time_there(headers))
        if 400 <= status < 500:
            # The status decides; a body that stalls, tears or lies cannot undo it, so it is noted first.
            progress.answer = HttpAnswer(status=status, fault="connection_lost", retry_after_seconds=wait)
            try:
                body = await _read(response, headers, limit)
            except _BodyFault as error:
                return HttpAnswer(status=status, fault=str(error), retry_after_seconds=wait)
        elif status == 200:
            body = await _read(response, headers, limit)
        else:
            return HttpAnswer(status=status, retry_after_seconds=wait)
        return HttpAnswer(status=status, document=body[0], body=body[1], retry_after_seconds=wait)

    def _time_there(self, headers: Mapping[str, str]) -> float:
        """Return the time by the peer's clock if it says so: its dates are meant by its own clock, right or wrong."""
        try:
            return parsedate_to_datetime(headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError, IndexError, OverflowError):
            return self._wall_clock()

    def _connections(self) -> Connections:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            if self._tls is None:
                self._tls = _tls_context(None)
            pool = self._pools[loop] = Connections(
                tls=self._tls,
                concurrent=self._concurrent_calls,
                idle=self._idle_connections,
                idle_seconds=self._idle_seconds,
                connect_seconds=self._connect_seconds,
            )
        return pool


def _tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Return a context that verifies certificate and name, by the system's issuers or by those of one file alone."""
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError:
        raise Blocked("http.ca_file.unusable", "the CA file cannot be read or holds no certificate") from None


def _headers(response: httpcore2.Response) -> dict[str, str]:
    """Return the headers by lowercase name; repeated ones joined, so that no two readings of them are possible."""
    found: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1").strip()
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _is_tls(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


async def _read(response: httpcore2.Response, headers: Mapping[str, str], limit: int) -> tuple[Any, bytes]:
    """Return a body strictly parsed, and its bytes; raise `_BodyFault` before more than the limit was taken in."""
    if _JSON_TYPE.fullmatch(headers.get("content-type", "")) is None:
        raise _BodyFault("content_type")
    # We asked for plain bytes; unpacking what a peer chose to pack could take any amount of memory.
    if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
        raise _BodyFault("content_encoding")
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _BodyFault("body_too_large")
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.aiter_stream():
        size += len(chunk)
        if size > limit:
            raise _BodyFault("body_too_large")
        chunks.append(chunk)
    body = b"".join(chunks)
    try:
        return parse_strict(body, max_bytes=limit, code="http.json.invalid"), body
    except Invalid:
        raise _BodyFault("json_invalid") from None
