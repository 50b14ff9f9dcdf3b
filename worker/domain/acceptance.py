"""What intake answers about one message, and what it keeps of a message that it refuses. No storage, no clock.

A refusal holds a code, a path, a hash and a size; the body only where the settings say so. Nothing here is content
unless that body was asked for.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final, Literal

from worker.domain.canonical import sha256_hex

MAX_PATH_CHARACTERS: Final = 256

_OUTSIDE_PATH: Final = re.compile(r"[^A-Za-z0-9_.:\[\]-]")


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What became of one message.

    `accepted` says that the document is committed, now or by an earlier message with the same bytes; `rejected` says
    that a rejection row stands for it, with its code and the path of the offending member. `event_id` is known
    wherever the document could be read.
    """

    document_sha256: str
    state: Literal["accepted", "rejected"]
    code: str | None = None
    path: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A message that intake refuses, as `rejections` keeps it. `message` is the wire name it came by."""

    document_sha256: str
    size_bytes: int
    message: str
    code: str
    path: str
    body: str | None = field(default=None, repr=False)


def message_bytes(value: object) -> bytes:
    """Return the exact bytes of a message argument, for its hash and size.

    A string gives its UTF-8 bytes, lone surrogates included, since also a refused message has a hash. Anything else is
    no document at all; it gives the bytes of some JSON of it, so that its repeats are counted.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value, sort_keys=True, default=repr).encode("utf-8", "surrogatepass")


def refusal_of(message: str, body: bytes, code: str, path: str, *, keep_body: bool) -> Refusal:
    """Return what is kept of a refused message.

    The path is cut to 256 characters and loses whatever cannot stand in a member name of ours, since unknown names come
    from outside. A kept body is readable text: bytes that are no text, and NUL, stand escaped.
    """
    return Refusal(
        document_sha256=sha256_hex(body),
        size_bytes=len(body),
        message=message,
        code=code,
        path=_OUTSIDE_PATH.sub("?", path)[:MAX_PATH_CHARACTERS],
        body=body.decode("utf-8", "backslashreplace").replace("\0", "\\x00") if keep_body else None,
    )
