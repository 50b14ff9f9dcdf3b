"""Where an outside call goes and as whom: a checked address and the credentials for it. Opens no connection."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from worker.domain.errors import Invalid, Unavailable

# What RFC 3986 allows in a URL: no space, no backslash, nothing beyond ASCII.
_URL_TEXT: Final = re.compile(r"[A-Za-z0-9\-._~:/\[\]@!$&'()*+,;=%]{1,2048}")
_SECRET: Final = re.compile(r"[\x21-\x7e]{1,8192}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
# Headers that carry the protocol itself; credentials under one of these names could change what is sent or where.
PROTOCOL_HEADERS: Final = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "cookie",
        "date", "expect", "forwarded", "host", "idempotency-key", "keep-alive", "locseal-site-id", "origin",
        "proxy-authorization", "proxy-connection", "range", "te", "trailer", "transfer-encoding", "upgrade",
        "user-agent", "via",
    }
)  # fmt: skip


class Credentials(Protocol):
    """Gives the one header that proves who is calling; asked anew for every call."""

    def header(self) -> tuple[str, str]:
        """Return name and value; raise `Unavailable` when the secret cannot be had."""
        ...


def _checked_header(name: str, secret: str) -> tuple[str, str]:
    if _SECRET.fullmatch(secret) is None:
        raise Unavailable("http.credentials.unavailable", "the secret is not one line of visible ASCII; write it anew")
    return (name, f"Bearer {secret}") if name == "Authorization" else (name, secret)


def _checked_name(name: str) -> str:
    if _HEADER_NAME.fullmatch(name) is None or name.lower() in PROTOCOL_HEADERS:
        raise Invalid("http.credentials.header.invalid", "credentials may not use this header", path="header")
    return "Authorization" if name.lower() == "authorization" else name


class SecretFile:
    """A secret in a file of one line, read again whenever the file changes (mounted secrets are replaced in place).

    Under the header `Authorization` it is sent as a bearer token, under any other name as it stands.
    """

    def __init__(self, path: Path, *, header: str = "Authorization") -> None:
        self._path = path
        self._name = _checked_name(header)
        self._seen: tuple[tuple[int, int, int], str] | None = None

    def header(self) -> tuple[str, str]:
        """Return the header made from the file as it stands now."""
        secret: str | None = None
        try:
            found = self._path.stat()
            version = (found.st_mtime_ns, found.st_ino, found.st_size)
            if self._seen is not None and self._seen[0] == version:
                secret = self._seen[1]
            elif found.st_size <= 16_384:
                secret = self._path.read_text(encoding="ascii").strip("\r\n")
                self._seen = (version, secret)
        except (OSError, UnicodeError):
            secret = None
        if secret is None:
            raise Unavailable("http.credentials.unavailable", "the credentials file cannot be read; check its path")
        return _checked_header(self._name, secret)


class SecretVariable:
    """A secret in an environment variable, looked up for every call."""

    def __init__(self, variable: str, *, header: str = "Authorization") -> None:
        self._variable = variable
        self._name = _checked_name(header)

    def header(self) -> tuple[str, str]:
        """Return the header made from the variable as it stands now."""
        secret = os.environ.get(self._variable)
        if secret is None:
            raise Unavailable("http.credentials.unavailable", "the credentials variable is not set")
        return _checked_header(self._name, secret)


def _refuse(path: str, reason: str) -> Invalid:
    return Invalid("http.endpoint.invalid", reason, path=path)


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address means this machine and nothing else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True, repr=False)
class Endpoint:
    """A checked address with its credentials.

    Refused at construction with `http.endpoint.invalid` and the part as path: any scheme but https (plain http only
    to loopback, and only where allowed), and credentials, a query or a fragment inside the address.
    """

    url: str
    credentials: Credentials | None = None
    allow_loopback_http: bool = False

    def __post_init__(self) -> None:
        """Check every part of the address."""
        for sign, path in (("?", "query"), ("#", "fragment"), ("@", "credentials")):
            if sign in self.url:
                raise _refuse(path, f"an endpoint has no {path}; give the bare address")
        if _URL_TEXT.fullmatch(self.url) is None:
            raise _refuse("url", "an endpoint is an absolute address in plain ASCII")
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise _refuse("host", "the host or port of the endpoint is malformed") from None
        if not host or port == 0:
            raise _refuse("host", "the endpoint names no host or an impossible port")
        if parts.scheme == "http" and not (self.allow_loopback_http and is_loopback(host)):
            raise _refuse("scheme", "use https; plain http only to this machine, and only where that is allowed")
        if parts.scheme not in ("http", "https"):
            raise _refuse("scheme", "use https")

    @cached_property
    def host(self) -> str:
        """The host and port as the `Host` header names them."""
        return urlsplit(self.url).netloc

    def __repr__(self) -> str:
        """Show no address: a path may hold a secret of the other side."""
        return "<Endpoint>"

    def at(self, suffix: str) -> Endpoint:
        """Return the endpoint below this one."""
        return replace(self, url=self.url.rstrip("/") + suffix)
