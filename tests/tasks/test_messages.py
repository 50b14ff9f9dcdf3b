"""The frozen wire: what a message may hold, what is refused with which code, what may be shown of it."""

from __future__ import annotations

import hashlib

import pytest

from worker.domain.errors import Invalid
from worker.domain.messages import VERSION, WIRE, check_fields, represent


def test_the_wire_is_frozen() -> None:
    """Names, queues and arguments are contract with producers and with workers of other versions."""
    assert VERSION == 1
    assert WIRE == {
        "release.submit": ("intake", ("submission",)),
        "release.withdraw": ("intake", ("withdrawal",)),
        "evidence.submit": ("intake", ("response",)),
        "evidence.collect": ("evidence", ("event_id",)),
        "delivery.prepare": ("delivery", ("event_id",)),
        "delivery.publish": ("delivery", ("event_id",)),
        "run.step": ("runs", ("run_id", "step_id", "attempt_id")),
        "fleet.sweep": ("sweep", ()),
    }


@pytest.mark.parametrize("message", WIRE)
def test_a_well_formed_message_gives_its_arguments(message: str) -> None:
    """Each message of the wire is taken with exactly its arguments and version 1."""
    fields = {name: f"{name}-1" for name in WIRE[message][1]}
    assert check_fields(message, (), {"version": 1, **fields}) == fields


@pytest.mark.parametrize(
    ("message", "args", "fields", "code", "path"),
    [
        ("evidence.collect", ("e-1",), {}, "message.arguments.positional", ""),
        ("evidence.collect", ("e-1",), {"version": 1, "event_id": "e-1"}, "message.arguments.positional", ""),
        ("evidence.collect", (), {"event_id": "e-1"}, "message.version.unknown", "version"),
        ("evidence.collect", (), {"version": 2, "event_id": "e-1"}, "message.version.unknown", "version"),
        ("evidence.collect", (), {"version": "1", "event_id": "e-1"}, "message.version.unknown", "version"),
        ("evidence.collect", (), {"version": True, "event_id": "e-1"}, "message.version.unknown", "version"),
        ("evidence.collect", (), {"version": 1.0, "event_id": "e-1"}, "message.version.unknown", "version"),
        ("evidence.collect", (), {"version": 1, "event_id": "e-1", "force": 1}, "message.field.unknown", "force"),
        ("evidence.collect", (), {"version": 1, "event_id": "e-1", "A text": 1}, "message.field.unknown", ""),
        ("evidence.collect", (), {"version": 1}, "message.field.missing", "event_id"),
        ("evidence.collect", (), {"version": 1, "event_id": 7}, "message.field.invalid", "event_id"),
        ("evidence.collect", (), {"version": 1, "event_id": "e 1"}, "message.field.invalid", "event_id"),
        ("evidence.collect", (), {"version": 1, "event_id": "e-1\n"}, "message.field.invalid", "event_id"),
        ("fleet.sweep", (), {"version": 1, "event_id": "e-1"}, "message.field.unknown", "event_id"),
        ("release.submit", (), {"version": 1, "submission": {"document": {}}}, "submission.invalid", "submission"),
        ("release.submit", (), {"version": 1, "submission": None}, "submission.invalid", "submission"),
        ("release.withdraw", (), {"version": 1, "withdrawal": []}, "withdrawal.invalid", "withdrawal"),
        ("evidence.submit", (), {"version": 1, "response": 1}, "evidence.response.invalid", "response"),
        ("run.step", (), {"version": 1, "run_id": "r", "step_id": "s"}, "message.field.missing", "attempt_id"),
    ],
)
def test_a_bad_message_is_refused(
    message: str, args: tuple[object, ...], fields: dict[str, object], code: str, path: str
) -> None:
    """Each way of being wrong has its code, and a path only where it is a name like ours."""
    with pytest.raises(Invalid) as refusal:
        check_fields(message, args, fields)
    assert (refusal.value.code, refusal.value.path, refusal.value.retryable) == (code, path, False)


@pytest.mark.parametrize(
    ("message", "fields", "shown"),
    [
        ("evidence.collect", {"version": 1, "event_id": "e-1"}, "event_id='e-1'"),
        ("evidence.collect", {"event_id": "a secret text"}, ""),
        ("evidence.collect", {"event_id": ["e-1"], "extra": "secret"}, ""),
        ("run.step", {"run_id": "r", "step_id": "s", "attempt_id": "a"}, "run_id='r', step_id='s', attempt_id='a'"),
        ("fleet.sweep", {"version": 1}, ""),
        ("release.submit", {"submission": {"secret": 1}}, ""),
        ("no.such", {"event_id": "e-1"}, ""),
        ("evidence.collect", None, ""),
    ],
)
def test_only_ids_are_shown(message: str, fields: object, shown: str) -> None:
    """Of the arguments, only well-formed ids of the message are shown."""
    assert represent(message, fields) == shown


def test_content_is_shown_as_its_digest() -> None:
    """A document is shown by the digest under which its status can be looked up."""
    digest = hashlib.sha256("Grüße".encode()).hexdigest()
    assert represent("release.submit", {"version": 1, "submission": "Grüße"}) == f"document_sha256='{digest}'"
