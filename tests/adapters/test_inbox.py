"""The door of a worker: what a message becomes before a task sees it, and what of it may be shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery
from kombu.message import Message

from worker.adapters.inbox import IdRequest, _clean_headers, _is_entry, open_body, raw_body
from worker.domain.errors import Invalid

MARKER = "CANARY"


def message(body: bytes | str, *, content_type: str = "application/json", **headers: Any) -> Message:
    return Message(
        body=body, content_type=content_type, content_encoding="utf-8", headers=headers, properties={}, delivery_info={}
    )


@pytest.mark.parametrize(
    ("body", "args", "fields"),
    [
        (b'[[],{"version":1},{}]', [], {"version": 1}),
        ('[[],{"version":1},{"chain":null}]', [], {"version": 1}),
        (b'[["a"],{},{}]', ["a"], {}),
        (b'{"task":"t","id":"1","args":[],"kwargs":{"version":1}}', [], {"version": 1}),
        ('[[],{"submission":"Grüße"},{}]'.encode(), [], {"submission": "Grüße"}),
    ],
)
def test_a_body_is_opened(body: bytes | str, args: list[object], fields: dict[str, object]) -> None:
    """Bodies of both protocols give their positional and keyword arguments and nothing else."""
    assert open_body(message(body)) == (args, fields)


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (b"[[],{},{}]", "application/x-python-serialize", "message.content_type.refused"),
        (b"[[],{},{}]", "application/json; charset=utf-8", "message.content_type.refused"),
        (b"", "application/json", "message.body.invalid"),
        (b"7", "application/json", "message.body.invalid"),
        (b'"args"', "application/json", "message.body.invalid"),
        (b"[[],{}]", "application/json", "message.body.invalid"),
        (b'["a",{},{}]', "application/json", "message.body.invalid"),
        (b"[[],[],{}]", "application/json", "message.body.invalid"),
        (b'[[],{"a":1,"a":1},{}]', "application/json", "message.body.invalid"),
        (b'[[],{"a":NaN},{}]', "application/json", "message.body.invalid"),
        (b'[[],{"a":"\xff"},{}]', "application/json", "message.body.invalid"),
        (b"\xef\xbb\xbf[[],{},{}]", "application/json", "message.body.invalid"),
        (b'{"args":1,"kwargs":{}}', "application/json", "message.body.invalid"),
    ],
)
def test_a_body_that_is_none_is_refused(body: bytes, content_type: str, code: str) -> None:
    """Other content types are refused undecoded; a body that is no strict JSON task body has one code."""
    with pytest.raises(Invalid) as refusal:
        open_body(message(body, content_type=content_type))
    assert refusal.value.code == code


def test_headers_are_of_our_own_making() -> None:
    """Of a producer's headers only well-formed ids are kept; no ETA, expiry, shadow, stamp or representation."""
    foreign = {
        "id": "task-1", "root_id": f"{MARKER} {MARKER}", "parent_id": ["x"], "task": "evidence.collect", "eta": "2999-01-01T00:00:00",
        "expires": "2001-01-01T00:00:00", "shadow": MARKER, "argsrepr": MARKER, "kwargsrepr": MARKER, "origin": MARKER,
        "stamps": {MARKER: MARKER}, "stamped_headers": [MARKER], "group": MARKER, "timelimit": [1, 1], "retries": 7,
        "traceparent": MARKER,
    }  # fmt: skip
    cleaned = _clean_headers("evidence.collect", foreign, {"version": 1, "event_id": "e-1"})
    assert cleaned == {
        "lang": "py", "task": "evidence.collect", "id": "task-1", "root_id": None, "parent_id": None, "retries": 0, "eta": None,
        "expires": None, "timelimit": [None, None], "argsrepr": "", "kwargsrepr": "event_id='e-1'", "ignore_result": True,
        "traceparent": None,
    }  # fmt: skip


def test_a_message_without_a_usable_id_gets_one() -> None:
    """Celery needs an id; one that is no token is replaced."""
    first, second = (_clean_headers("fleet.sweep", {"id": {"a": MARKER}}, {})["id"] for _ in range(2))
    assert len(first) == 36
    assert first != second


def test_inspect_shows_representations_only() -> None:
    """What `inspect` gets of a request are our ids, also where Celery would give the arguments themselves."""
    app = Celery(set_as_current=False, broker="memory://")

    @app.task(name="release.submit")
    def submit(**_fields: object) -> None:
        """Stand for the task."""

    sent = message(b"[]")
    sent.headers = _clean_headers("release.submit", {"id": "i-1"}, {"submission": MARKER})
    sent._decoded_cache = ([], {"submission": MARKER}, {})
    request = IdRequest(sent, app=app, task=submit, hostname="w@h", headers=sent.headers)
    for shown in (request.info(), request.info(safe=True), repr(request), str(request)):
        assert MARKER not in json.dumps(shown)
    assert request.info()["kwargs"].startswith("document_sha256='")
    assert (request.body, request.content_type) == (([], {"submission": MARKER}, {}), None)


def test_the_body_is_kept_as_it_came() -> None:
    """A rejection is about the bytes that were sent, whatever kombu made of them."""
    assert raw_body(message(b"\xff\x00")) == b"\xff\x00"
    assert raw_body(message("Grüße")) == "Grüße".encode()
    assert raw_body(message(b"")) == b""


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"headers": {}}, True),
        ({"headers": None}, False),
        ({"headers": {"task": ["x"]}}, False),
        ({"body": None}, False),
        ({"body": {}}, False),
        ({"properties": None}, False),
        ({"properties": {"delivery_tag": "t", "delivery_info": None}}, False),
        ({"properties": {"delivery_tag": 1, "delivery_info": {"exchange": "", "routing_key": "q"}}}, False),
        ({"properties": {"delivery_tag": "t", "delivery_info": {"routing_key": "q"}}}, False),
    ],
)
def test_an_entry_has_the_parts_that_kombu_uses_without_looking(change: dict[str, Any], good: bool) -> None:
    """An entry is one only with text body, header object, delivery tag and address."""
    info = {"exchange": "", "routing_key": "q"}
    entry = {"body": "", "headers": {"task": "t"}, "properties": {"delivery_tag": "t", "delivery_info": info}}
    assert _is_entry({**entry, **change}) is good
    assert _is_entry([entry]) is False
