"""Raw queue entries that no producer should send and somebody will: made of the parts that kombu puts into Redis."""

from __future__ import annotations

import base64
import json
from typing import Any

HEADERS: dict[str, Any] = {
    "lang": "py",
    "task": "REPLACE_TASK",
    "id": "11111111-1111-4111-8111-111111111111",
    "root_id": "11111111-1111-4111-8111-111111111111",
    "parent_id": None,
    "eta": None,
    "expires": None,
    "retries": 0,
    "timelimit": [None, None],
    "argsrepr": "('CANARY',)",
    "kwargsrepr": "{'CANARY': 1}",
    "shadow": "CANARY",
    "origin": "CANARY@test",
    "stamped_headers": ["CANARY"],
    "stamps": {"CANARY": "CANARY"},
}
NOTHING = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
CALLBACK = {"task": "evidence.collect", "args": ["CANARY"], "kwargs": {}, "options": {"queue": "evidence"}}
PICKLE = base64.b64decode("gASVFQAAAAAAAABdlChdlIwGZXYtMTAwlGF9lH2UZS4=")


def entry(body: bytes, *, headers: Any = HEADERS, content_type: Any = "application/json", **properties: Any) -> str:
    """Return one queue entry as kombu writes it."""
    return json.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "utf-8",
            "content-type": content_type,
            "headers": headers,
            "properties": {
                "correlation_id": "11111111-1111-4111-8111-111111111111",
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": "REPLACE_QUEUE"},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": "22222222-2222-4222-8222-222222222222",
                **properties,
            },
        }
    )


def call(args: object, kwargs: object, embedded: object = NOTHING) -> bytes:
    """Return the body of a task message."""
    return json.dumps([args, kwargs, embedded]).encode()


ENTRIES: dict[str, str] = {
    "not-json": "this is not json, CANARY",
    "empty-string": "",
    "half": entry(call([], {}))[:-40],
    "deep": "[" * 100_000,
    "empty-object": "{}",
    "array": '["CANARY"]',
    "number": "7",
    "null": "null",
    "no-properties": json.dumps({"body": "CANARY", "headers": HEADERS}),
    "no-tag": entry(call([], {}), delivery_tag=None),
    "not-base64": entry(b"").replace('"body": ""', '"body": "\\u00e9CANARY"'),
    "no-exchange": entry(call(["CANARY"], {}), delivery_info={"routing_key": "REPLACE_QUEUE"}),
    "no-delivery-info": entry(call(["CANARY"], {}), delivery_info=None),
    "encoding-unknown": entry(call(["CANARY"], {}), body_encoding="rot13"),
    "encoding-is-a-list": entry(call(["CANARY"], {}), body_encoding=["CANARY"]),
    "content-type-is-a-list": entry(call(["CANARY"], {}), content_type=["CANARY"]),
    "null-headers": entry(call([], {}), headers=None),
    "empty-headers": entry(call(["CANARY"], {}), headers={}),
    "body-not-json": entry(b"{not json, CANARY"),
    "body-not-utf8": entry(b'[[],{"CANARY":"\xff"},{}]'),
    "body-is-a-number": entry(b"7"),
    "body-is-a-word": entry(b'"args"'),
    "body-is-two": entry(b"[[],{}]"),
    "arguments-are-words": entry(call("CANARY", "CANARY")),
    "repeated-key": entry(b'[[],{"version":1,"version":1},{}]'),
    "wrong-arity": entry(call([1, 2, 3], {})),
    "positional": entry(call(["ev-does-not-exist"], {})),
    "pickle": entry(PICKLE, content_type="application/x-python-serialize"),
    "yaml": entry(b"- CANARY", content_type="application/x-yaml"),
    "unknown-task": entry(call([], {"text": "CANARY"}), headers={**HEADERS, "task": "CANARY.task"}),
    "task-is-no-word": entry(call([], {}), headers={**HEADERS, "task": ["CANARY"]}),
    "id-is-no-word": entry(call(["CANARY"], {}), headers={**HEADERS, "id": {"CANARY": 1}}),
    "bad-eta": entry(call(["CANARY"], {}), headers={**HEADERS, "eta": "CANARY"}),
    "far-eta": entry(call(["ev-1"], {}), headers={**HEADERS, "eta": "2999-01-01T00:00:00+00:00"}),
    "expired": entry(call(["ev-2"], {}), headers={**HEADERS, "expires": "2001-01-01T00:00:00+00:00"}),
    "callback": entry(call(["ev-3"], {}, {**NOTHING, "callbacks": [CALLBACK]})),
    "chain": entry(call(["ev-4"], {}, {**NOTHING, "chain": [CALLBACK]})),
    "priority-50": entry(call(["ev-100"], {}), priority=50),
    "protocol-1": entry(
        json.dumps({"task": "REPLACE_TASK", "id": "1", "args": ["CANARY"], "kwargs": {}}).encode(), headers={}
    ),
}
