"""The broker's messages as one AsyncAPI document, made from the wire table and the models. `tasks/README.md` has the words."""

from __future__ import annotations

from typing import Any, Final

from worker.domain.contract import definitions
from worker.domain.identifier import TOKEN
from worker.domain.messages import EVIDENCE_SUBMIT, FLEET_SWEEP, RELEASE_SUBMIT, RELEASE_WITHDRAW, VERSION, WIRE
from worker.domain.submission import LONGEST_SUBMISSION_BYTES, LONGEST_WITHDRAWAL_BYTES

_SECTION: Final = "#/components/schemas/"
_ABOUT: Final = (
    "What the fleet takes from its broker: Celery task messages of protocol 2, JSON, keyword arguments only. Producers "
    "outside the fleet send the three messages of the queue `intake`; all others are wake-ups that the fleet sends to "
    "itself. A message is a hint, the database is the truth. tasks/README.md is the catalogue in words."
)
# message -> (the argument that holds a signed document, the model of that document, the most bytes of the argument)
_CONTENT: Final[dict[str, tuple[str, str, int]]] = {
    RELEASE_SUBMIT: ("submission", "SubmissionDocument", LONGEST_SUBMISSION_BYTES),
    RELEASE_WITHDRAW: ("withdrawal", "Withdrawal", LONGEST_WITHDRAWAL_BYTES),
    EVIDENCE_SUBMIT: ("response", "EvidenceResponseDocument", LONGEST_SUBMISSION_BYTES),
}
_SUMMARIES: Final[dict[str, str]] = {
    RELEASE_SUBMIT: "A change event with zero or more finished translations",
    RELEASE_WITHDRAW: "The end of an event that is not published",
    EVIDENCE_SUBMIT: "A reviewer's finished answer, pushed instead of pulled",
}


def asyncapi() -> dict[str, Any]:
    """Return the document (AsyncAPI 3.0)."""
    queues = sorted({queue for queue, _ in WIRE.values()})
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Locseal: messages",
            "version": str(VERSION),
            "description": _ABOUT,
            "license": {"name": "MIT"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "broker": {
                "host": "redis:6379",
                "protocol": "redis",
                "description": "One Redis or Sentinel. Keys carry the fleet's LOCSEAL_BROKER_KEY_PREFIX, where it has one.",
            }
        },
        "channels": {queue: _channel(queue) for queue in queues},
        "operations": {f"take_{_word(message)}": _operation(message) for message in WIRE},
        "components": {"messages": {_word(message): _message(message) for message in WIRE}, "schemas": _schemas()},
    }


def _word(message: str) -> str:
    """Return a message's name as a key of the document, where a dot may not stand."""
    return message.replace(".", "_")


def _channel(queue: str) -> dict[str, Any]:
    inside = [message for message, (its, _) in WIRE.items() if its == queue]
    return {
        "address": queue,
        "description": f"The Redis list `{queue}`.",
        "messages": {_word(message): {"$ref": f"#/components/messages/{_word(message)}"} for message in inside},
    }


def _operation(message: str) -> dict[str, Any]:
    queue = WIRE[message][0]
    return {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{queue}"},
        "summary": _summary(message),
        "description": "Acknowledged after its commit." if message in _CONTENT else "Acknowledged on receipt.",
        "messages": [{"$ref": f"#/channels/{queue}/messages/{_word(message)}"}],
    }


def _message(message: str) -> dict[str, Any]:
    return {
        "name": message,
        "summary": _summary(message),
        "contentType": "application/json",
        "headers": {"allOf": [{"$ref": f"{_SECTION}Headers"}, {"properties": {"task": {"const": message}}}]},
        "payload": _payload(message),
    }


def _summary(message: str) -> str:
    if message in _SUMMARIES:
        return _SUMMARIES[message]
    return (
        "Wake the sweeper; sent by beat" if message == FLEET_SWEEP else "Wake-up of the fleet; never sent by a producer"
    )


def _payload(message: str) -> dict[str, Any]:
    """Return the schema of a body: positional arguments (none), the keyword arguments, and what Celery adds."""
    names = ("version", *WIRE[message][1])
    arguments = {
        "type": "object",
        "properties": {name: _argument(message, name) for name in names},
        "required": list(names),
        "additionalProperties": False,
    }
    return {
        "type": "array",
        "items": [{"type": "array", "maxItems": 0}, arguments, {"type": "object", "description": "not used"}],
        "minItems": 3,
        "maxItems": 3,
    }


def _argument(message: str, name: str) -> dict[str, Any]:
    if name == "version":
        return {"type": "integer", "const": VERSION}
    content, document, most_bytes = _CONTENT.get(message, ("", "", 0))
    if name != content:
        return {"$ref": f"{_SECTION}Id"}
    return {
        "type": "string",
        "maxLength": most_bytes,
        "description": "The exact text of the signed document: a JSON string, never an object.",
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": f"{_SECTION}Signed{document}"},
    }


def _schemas() -> dict[str, Any]:
    found = definitions(_SECTION + "{model}")
    signature = found["SignedEnvelope"]["properties"]["signature"]
    shown = {
        "Id": {"type": "string", "pattern": f"^{TOKEN.pattern}$"},
        "Headers": {
            "type": "object",
            "properties": {
                "task": {"type": "string", "description": "The message's name"},
                "id": {"type": "string", "description": "A UUID of the producer's making"},
                "lang": {"type": "string"},
            },
            "required": ["task", "id", "lang"],
        },
    }
    for _, document, _ in _CONTENT.values():
        shown[f"Signed{document}"] = {
            "type": "object",
            "properties": {"document": {"$ref": _SECTION + document}, "signature": signature},
            "required": ["document", "signature"],
            "additionalProperties": False,
        }
    needed = list(shown.values())
    while needed:  # whatever is referred to, and what that refers to
        for name in sorted(_references(needed.pop())):
            if name not in shown:
                shown[name] = found[name]
                needed.append(found[name])
    return dict(sorted(shown.items()))


def _references(value: Any) -> set[str]:
    if isinstance(value, dict):
        mine = {value["$ref"].removeprefix(_SECTION)} if isinstance(value.get("$ref"), str) else set()
        return mine.union(*map(_references, value.values()))
    return set().union(*map(_references, value)) if isinstance(value, list) else set()
