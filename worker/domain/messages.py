"""The wire: message names, queues and argument names, as literals that producers depend on. Independent of modules."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from worker.domain.errors import Invalid
from worker.domain.identifier import is_token

VERSION: Final = 1
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")

RELEASE_SUBMIT: Final = "release.submit"
RELEASE_WITHDRAW: Final = "release.withdraw"
EVIDENCE_SUBMIT: Final = "evidence.submit"
EVIDENCE_COLLECT: Final = "evidence.collect"
DELIVERY_PREPARE: Final = "delivery.prepare"
DELIVERY_PUBLISH: Final = "delivery.publish"
RUN_STEP: Final = "run.step"
FLEET_SWEEP: Final = "fleet.sweep"

# message -> (queue, arguments beside `version`)
WIRE: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    RELEASE_SUBMIT: ("intake", ("submission",)),
    RELEASE_WITHDRAW: ("intake", ("withdrawal",)),
    EVIDENCE_SUBMIT: ("intake", ("response",)),
    EVIDENCE_COLLECT: ("evidence", ("event_id",)),
    DELIVERY_PREPARE: ("delivery", ("event_id",)),
    DELIVERY_PUBLISH: ("delivery", ("event_id",)),
    RUN_STEP: ("runs", ("run_id", "step_id", "attempt_id")),
    FLEET_SWEEP: ("sweep", ()),
}

MAX_BODY_BYTES: Final = 200 * 1024 * 1024  # a submission of 32 MiB, every character escaped

# What a content argument that is no string is called; every other argument is an id.
_CONTENT_CODES: Final = {
    "submission": "submission.invalid",
    "withdrawal": "withdrawal.invalid",
    "response": "evidence.response.invalid",
}


def check_fields(message: str, args: Sequence[object], fields: Mapping[str, object]) -> dict[str, str]:
    """Return the arguments of a message beside its version, or raise `Invalid` with code and path.

    Judged in this order: positional arguments, the version, unknown arguments, missing ones, then each value.
    """
    names = WIRE[message][1]
    if args:
        raise Invalid("message.arguments.positional", "send keyword arguments only")
    version = fields.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version != VERSION:
        raise Invalid("message.version.unknown", f"send version {VERSION}", path="version")
    for name in fields:
        if name != "version" and name not in names:
            raise Invalid("message.field.unknown", "this message has no such argument", path=shown_name(name))
    for name in names:
        if name not in fields:
            raise Invalid("message.field.missing", "this message needs the argument", path=name)
        value = fields[name]
        if name in _CONTENT_CODES:
            if not isinstance(value, str):
                raise Invalid(_CONTENT_CODES[name], "send the exact document as a JSON string", path=name)
        elif not is_token(value):
            raise Invalid("message.field.invalid", "this argument is an id", path=name)
    return {name: str(fields[name]) for name in names}


def shown_name(name: object) -> str:
    """Return a foreign field name if it looks like one of ours, else nothing: a name can hold anything."""
    return name if isinstance(name, str) and _NAME.fullmatch(name) is not None else ""


def represent(message: str, fields: object) -> str:
    """Return what events, `inspect` and logs may show of a message's arguments: ids, and the digest of a content.

    Made from the decoded arguments alone, whatever the producer's headers say; anything not well-formed is left out.
    """
    if message not in WIRE or not isinstance(fields, Mapping):
        return ""
    shown: list[str] = []
    for name in WIRE[message][1]:
        value = fields.get(name)
        if name in _CONTENT_CODES:
            if isinstance(value, str):
                digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
                shown.append(f"document_sha256='{digest}'")
        elif is_token(value):
            shown.append(f"{name}='{value}'")
    return ", ".join(shown)
