"""Messages that never became a document: kept with code, path, hash and size, and counted (SPEC sections 3 and 9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.builders import NOW, Keyring, change_event, signed_submission
from tests.fakes import RecordingQueue
from tests.intake_builders import Everything, Rows
from worker.domain.acceptance import Acceptance, message_bytes
from worker.domain.canonical import sha256_hex
from worker.flow.accept_submission import accept_submission
from worker.flow.reject_message import reject_message
from worker.flow.services import Services
from worker.store.schema import rejections


def test_message_is_kept_without_its_content(
    services: Services, queue: RecordingQueue, rows: Rows, at: Callable[[float], Services]
) -> None:
    """Hash, size, code and path are kept; a repeat counts up; the body stays out."""
    for second in (0.0, 7.0):
        answer = reject_message(
            at(NOW + second), message="release.submit", body=b"secret", code="submission.invalid", path="version"
        )
    digest = sha256_hex(b"secret")
    assert answer == Acceptance(document_sha256=digest, state="rejected", code="submission.invalid", path="version")
    (row,) = rows(rejections)
    assert row | {"rejection_id": 0} == {
        "rejection_id": 0,
        "document_sha256": digest,
        "size_bytes": 6,
        "message": "release.submit",
        "code": "submission.invalid",
        "path": "version",
        "body": None,
        "times": 2,
        "first_at": NOW,
        "last_at": NOW + 7,
    }
    assert queue.take() == []


def test_other_code_or_path_is_another_rejection(services: Services, rows: Rows) -> None:
    """What is wrong with the same bytes may change; each reason has its own row and count."""
    for code, path in (("a.x", "p"), ("a.y", "p"), ("a.x", "q"), ("a.x", "p")):
        reject_message(services, message="release.submit", body=b"1", code=code, path=path)
    assert sorted((row["code"], row["path"], row["times"]) for row in rows(rejections)) == [
        ("a.x", "p", 2),
        ("a.x", "q", 1),
        ("a.y", "p", 1),
    ]


def test_path_holds_no_foreign_characters(services: Services, rows: Rows) -> None:
    """A path may repeat a name from outside: it is cut, and only characters of names remain."""
    reject_message(services, message="release.submit", body=b"1", code="a.x", path="args.\0 wörd\n" + "y" * 300)
    assert rows(rejections)[0]["path"] == "args.??w?rd?" + "y" * 244


def test_body_is_kept_where_configured(services: Services, rows: Rows) -> None:
    """A kept body is text whatever the bytes were."""
    reject_message(
        replace(services, keep_rejected_bodies=True), message="release.submit", body=b"\xff\x00a", code="a.x", path=""
    )
    assert rows(rejections)[0]["body"] == "\\xff\\x00a"


def test_accepted_document_stays_accepted(services: Services, keys: Keyring, everything: Everything) -> None:
    """A message with the bytes of an accepted document (of an unknown version, say) does not make it rejected."""
    text = signed_submission(keys, change_event())
    accept_submission(services, text)
    before = everything()
    answer = reject_message(services, message="release.submit", body=text.encode(), code="a.x", path="version")
    assert (answer.state, answer.event_id) == ("accepted", "event-1")
    assert everything() == before


def test_object_in_place_of_a_string_has_a_hash(services: Services, rows: Rows) -> None:
    """An object where a string belongs is rejected like any other document, and its repeats are counted."""
    for argument in ({"b": 1, "a": [None]}, {"a": [None], "b": 1}):
        answer = accept_submission(services, argument)  # type: ignore[arg-type]
        assert (answer.state, answer.code) == ("rejected", "submission.invalid")
    assert [row["times"] for row in rows(rejections)] == [2]
    assert rows(rejections)[0]["document_sha256"] == sha256_hex(message_bytes({"a": [None], "b": 1}))
