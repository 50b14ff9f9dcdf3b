"""Whatever is wrong with a submission becomes a rejection row, never an exception (SPEC sections 1 to 3)."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.builders import (
    NOW,
    Keyring,
    change_event,
    job_for,
    result_for,
    results_for,
    signed_submission,
    submission,
)
from tests.fakes import FixedPolicies, RecordingQueue
from tests.intake_builders import (
    Everything,
    Rows,
    submit,
)
from worker.domain.canonical import canonical_bytes, sha256_hex
from worker.domain.policy import SitePolicy
from worker.domain.signature import sign_detached
from worker.flow.accept_submission import accept_submission
from worker.flow.services import Services
from worker.store.schema import (
    events,
    evidence,
    rejections,
    submissions,
)


def bad(document: dict[str, Any]) -> Callable[[Keyring], str]:
    """Return the maker of a well-signed message with this document."""
    return lambda keys: keys.sign("submission", document).to_text()


def with_event(**changes: Any) -> Callable[[Keyring], str]:
    """Return the maker of a well-signed submission of a changed event without results."""
    return bad(submission(change_event(**changes)))


def with_result(**changes: Any) -> Callable[[Keyring], str]:
    """Return the maker of a well-signed submission of one locale with a changed result."""
    event = change_event(target_locales=["de"])
    return bad(submission(event, [result_for(job_for(event, "de")) | changes]))


def good(keys: Keyring) -> str:
    """Return an acceptable message."""
    return signed_submission(keys, change_event(), results_for(change_event()))


def by_another_purpose(keys: Keyring) -> str:
    """Return a message signed by the evidence key under the name and type of the submission key."""
    payload = canonical_bytes(submission(change_event()))
    signature = sign_detached("submission", keys.kids["submission"], keys.private["evidence"], payload)
    return json.dumps({"document": submission(change_event()), "signature": signature})


def by_an_unknown_kid(keys: Keyring) -> str:
    """Return a message whose signature names a key that nobody trusts."""
    stranger = Keyring()
    stranger.kids["submission"] = "stranger"
    stranger._jwks["submission"]["keys"][0]["kid"] = "stranger"
    stranger._mark("submission", {})
    return good(stranger)


def retired(keys: Keyring) -> str:
    """Return a message that arrives after its key was retired."""
    text = good(keys)
    keys.retire("submission", retired_at=NOW - 1)
    return text


def large(keys: Keyring) -> str:
    """Return a message of one byte more than 32 MiB."""
    text = good(keys)
    return text + " " * (32 * 1024 * 1024 + 1 - len(text.encode()))


NFD = unicodedata.normalize("NFD", "Grüße")
REFUSED: dict[str, tuple[Callable[[Keyring], str], str, str | None]] = {
    "no JSON": (lambda _keys: "hello", "submission.invalid", ""),
    "empty": (lambda _keys: "", "submission.invalid", ""),
    "an array": (lambda _keys: "[]", "submission.invalid", ""),
    "no signature": (lambda _keys: json.dumps({"document": {}}), "submission.invalid", ""),
    "unknown field outside": (lambda keys: good(keys)[:-1] + ',"x":1}', "submission.invalid", ""),
    "duplicate key": (lambda keys: good(keys)[:-1] + ',"signature":"a..b"}', "submission.invalid", ""),
    "duplicate key inside": (
        lambda keys: good(keys).replace('"event_id":', '"event_id":"event-0","event_id":', 1),
        "submission.invalid",
        "",
    ),
    "NaN": (lambda keys: good(keys).replace('"source_sequence":1', '"source_sequence":NaN'), "submission.invalid", ""),
    "byte order mark": (lambda keys: "\ufeff" + good(keys), "submission.invalid", ""),
    "lone surrogate": (lambda keys: good(keys) + "\ud800", "submission.invalid", ""),
    "NUL": (lambda keys: good(keys) + "\0", "submission.invalid", ""),
    "trailing data": (lambda keys: good(keys) + "{}", "submission.invalid", ""),
    "more than 32 MiB": (large, "submission.invalid", ""),
    "changed after signing": (
        lambda keys: good(keys).replace("2026.02", "2026.03"),
        "submission.signature.invalid",
        "signature",
    ),
    "key of another purpose": (by_another_purpose, "submission.signature.invalid", "signature"),
    "unknown kid": (by_an_unknown_kid, "submission.signature.invalid", "signature"),
    "retired key": (retired, "submission.signature.invalid", "signature"),
    "approval key": (
        lambda keys: keys.sign("approval", submission(change_event())).to_text(),
        "submission.signature.invalid",
        "signature",
    ),
    "another site": (with_event(site_id="site-9"), "submission.key.not_for_site", "event.site_id"),
    "another schema": (bad({"schema": "x", "event": {}, "results": []}), "submission.invalid", "schema"),
    "unknown field": (bad(submission(change_event()) | {"note": 1}), "submission.invalid", ""),
    "unknown event field": (bad(submission(change_event() | {"Zauber": 1})), "submission.invalid", None),
    "sequence zero": (with_event(source_sequence=0), "submission.invalid", "event.source_sequence"),
    "sequence a bool": (with_event(source_sequence=True), "submission.invalid", "event.source_sequence"),
    "token with a newline": (with_event(website_version="1\n"), "submission.invalid", "event.website_version"),
    "NFD": (with_event(source_text=NFD), "submission.text.invalid", "event.localization.source_text"),
    "NUL in a text": (with_event(source_text="a\0b"), "submission.text.invalid", "event.localization.source_text"),
    "2,000,001 bytes": (
        with_event(source_text="x" * 2_000_001),
        "submission.text.invalid",
        "event.localization.source_text",
    ),
    "unknown locale": (
        with_event(target_locales=["xx-YY"]),
        "submission.locale.invalid",
        "event.localization.target_locales.0",
    ),
    "iw beside he": (
        with_event(target_locales=["he", "iw"]),
        "submission.locale.invalid",
        "event.localization.target_locales.1",
    ),
    "locale twice": (
        with_event(target_locales=["de", "de"]),
        "submission.locale.duplicate",
        "event.localization.target_locales.1",
    ),
    "source as target": (
        with_event(target_locales=["en"]),
        "submission.locale.equals_source",
        "event.localization.target_locales.0",
    ),
    "wrong text hash": (
        with_result(target_sha256="0" * 64),
        "submission.result.hash_mismatch",
        "results.0.target_sha256",
    ),
    "wrong source hash": (
        with_result(source_sha256="0" * 64),
        "submission.result.hash_mismatch",
        "results.0.source_sha256",
    ),
    "foreign job id": (with_result(job_id="job-" + "0" * 64), "submission.result.job_unknown", "results.0.job_id"),
    "flag not derived": (
        with_result(human_review_required=True),
        "submission.result.flags_mismatch",
        "results.0.human_review_required",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_ends_in_a_rejection_and_nothing_else(
    services: Services, keys: Keyring, queue: RecordingQueue, rows: Rows, everything: Everything, name: str
) -> None:
    """Whatever is wrong with a message, it is kept as a rejection with code and path, never as an exception."""
    make, code, path = REFUSED[name]
    text = make(keys)
    before = everything()
    answer = accept_submission(services, text)
    assert (answer.state, answer.code) == ("rejected", code)
    if path is not None:
        assert answer.path == path
    body = text.encode("utf-8", "surrogatepass")
    (row,) = rows(rejections)
    assert row | {"rejection_id": 0} == {
        "rejection_id": 0,
        "document_sha256": sha256_hex(body),
        "size_bytes": len(body),
        "message": "release.submit",
        "code": code,
        "path": answer.path,
        "body": None,
        "times": 1,
        "first_at": NOW,
        "last_at": NOW,
    }
    after = everything()
    del after["rejections"], before["rejections"]
    assert after == before and queue.take() == []
    assert "Zauber" not in repr(row)


def test_repeated_rejection_only_counts_up(
    services: Services, keys: Keyring, at: Callable[[float], Services], rows: Rows
) -> None:
    """The same refused bytes again raise the count and the last time; the row stays one."""
    text = with_event(source_sequence=0)(keys)
    for second in range(3):
        accept_submission(at(NOW + second), text)
    (row,) = rows(rejections)
    assert (row["times"], row["first_at"], row["last_at"]) == (3, NOW, NOW + 2)


def test_refused_body_is_kept_only_where_configured(services: Services, keys: Keyring, rows: Rows) -> None:
    """With `keep_rejected_bodies` the message is kept as readable text, whatever characters it has."""
    accept_submission(replace(services, keep_rejected_bodies=True), 'x\0y\ud800"ü')
    assert rows(rejections)[0]["body"] == 'x\\x00y\\xed\\xa0\\x80"ü'


def test_refused_document_may_be_accepted_later(services: Services, keys: Keyring, rows: Rows) -> None:
    """A rejection does not stand in the way of the same bytes once what was wrong is mended."""
    text = good(keys)
    jwks = keys.jwks("submission")
    keys.revoke("submission")
    assert accept_submission(services, text).code == "submission.signature.invalid"
    keys._jwks["submission"] = jwks
    keys._mark("submission", {})
    assert accept_submission(services, text).state == "accepted"
    assert len(rows(rejections)) == len(rows(submissions)) == 1


def test_an_event_without_a_required_locale_is_refused(
    services: Services, keys: Keyring, rows: Rows, policies: FixedPolicies
) -> None:
    """A rejection, since its plan could never grow; the source's own locale counts, and others may be there too."""
    policies.policy = SitePolicy(required_locales=frozenset({"en", "de", "fr-CA", "it"}))
    event = change_event(target_locales=["de", "fr-CA"])
    answer = submit(services, keys, event)
    assert (answer.state, answer.code) == ("rejected", "submission.locale.required")
    assert answer.path == "event.localization.target_locales"
    assert (rows(events), rows(evidence)) == ([], [])
    assert submit(services, keys, change_event(target_locales=["de", "fr-CA", "it", "pl"])).state == "accepted"


def test_a_locale_required_later_does_not_stop_an_event_that_was_accepted(
    services: Services, keys: Keyring, policies: FixedPolicies
) -> None:
    """Its further results still come in, and so do repeats."""
    event = change_event(target_locales=["de", "fr-CA"])
    first, second = results_for(event)
    assert submit(services, keys, event, [first]).state == "accepted"
    policies.policy = SitePolicy(required_locales=frozenset({"it"}))
    assert submit(services, keys, event, [second]).state == "accepted"
    assert submit(services, keys, event, [first]).state == "accepted"
