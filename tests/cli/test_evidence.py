"""`locseal evidence`: what is asked about again and under which id, and reviews that are handed in by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.builders import change_event, job_for, request_for, response_for, results_for, signed_response
from tests.builders import signed_submission as signed
from tests.cli.conftest import Broker, Home
from tests.evidence_builders import ScriptedProvider, good
from worker.domain.canonical import sha256_hex
from worker.domain.evidence import NotYet
from worker.flow.accept_response import accept_response
from worker.flow.accept_submission import accept_submission
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.store.engine import reading
from worker.store.schema import evidence

Run = Callable[..., Any]
EVENT = change_event(target_locales=["de"])


def collected(home: Home, answer: Any) -> None:
    """Have the event accepted, and its one locale answered so."""
    accept_submission(home.services, signed(home.keys, EVENT, results_for(EVENT)))
    asking = replace(home.services, providers={"default": ScriptedProvider(answer)})
    collect_evidence(asking, None, ready=lambda _: None)


def rows(home: Home) -> list[tuple[str, str]]:
    with reading(home.engine) as conn:
        found = conn.execute(evidence.select().order_by(evidence.c.evidence_revision))
        return [(row.evidence_revision, row.status) for row in found]


@pytest.mark.parametrize("by", ["event", "job", "both"])
def test_retry_reopens_what_failed(locseal: Run, home: Home, by: str) -> None:
    """A new revision; the failed row stays; named by the event, the job or both."""
    collected(home, good(home.keys, quality_receipt=""))
    assert "locseal evidence retry event-1" in locseal("releases", "show", "event-1", "--json").json["next"]
    job_id = job_for(EVENT, "de").job_id
    named = {"event": ["event-1"], "job": ["--job", job_id], "both": ["event-1", "--job", job_id]}[by]
    done = locseal("evidence", "retry", *named, "--json")
    assert done.code == 0
    [reopened] = done.json["reopened"]
    assert reopened == {
        "event_id": "event-1",
        "job_id": job_id,
        "target_locale": "de",
        "request_id": request_for(EVENT, revision="r2").request_id,
        "evidence_revision": "r2",
    }
    assert done.json["request_id"].startswith("operator-")
    assert rows(home) == [("r1", "failed"), ("r2", "pending")]


def test_retry_happens_once_under_its_request_id(locseal: Run, home: Home) -> None:
    """The same id again gives the same answer, also once the new attempt has failed; a new id retries again."""
    collected(home, good(home.keys, quality_receipt=""))
    first = locseal("evidence", "retry", "event-1", "--request-id", "night-1", "--json")
    collected(home, good(home.keys, quality_receipt=""))
    again = locseal("evidence", "retry", "event-1", "--request-id", "night-1", "--json")
    assert (again.code, again.json) == (0, first.json)
    assert rows(home) == [("r1", "failed"), ("r2", "failed")]
    assert locseal("evidence", "retry", "event-1").code == 0
    assert rows(home) == [("r1", "failed"), ("r2", "failed"), ("r3", "pending")]
    other = locseal("evidence", "renew", "event-1", "--request-id", "night-1", "--json")
    assert (other.code, other.json["error"]["code"]) == (1, "operator.request_id.collision")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("retry", "event-1"), "evidence.nothing_failed"),
        (("retry", "event-9"), "coordinator.event_id.unknown"),
        (("retry", "--job", "job-9"), "evidence.nothing_failed"),
        (("renew", "event-1"), "evidence.nothing_to_renew"),
        (("renew", "event-9"), "coordinator.event_id.unknown"),
        (("retry", "event-1", "--request-id", "two words"), "operator.request_id.invalid"),
    ],
)
def test_what_cannot_be_asked_again_is_refused(locseal: Run, home: Home, arguments: tuple[str, ...], code: str) -> None:
    """With a code, exit 1, and nothing written."""
    collected(home, good(home.keys))
    before = rows(home)
    done = locseal("evidence", *arguments, "--json")
    assert (done.code, done.json["error"]["code"]) == (1, code)
    assert rows(home) == before


def test_retry_needs_to_be_told_what(locseal: Run, home: Home) -> None:
    """Neither an event nor a job is wrong usage."""
    assert locseal("evidence", "retry").code == 2


def test_renew_says_what_happens_to_the_open_delivery(locseal: Run, home: Home) -> None:
    """It stays sendable until its successor is prepared."""
    collected(home, good(home.keys))
    delivery_id = prepare_delivery(home.services, "event-1").delivery_id
    done = locseal("evidence", "renew", "event-1", "--all")
    assert f"delivery {delivery_id} stays sendable until its successor is prepared" in done.out
    assert "its approvals are being renewed" in locseal("releases", "show", "event-1").out
    collect_evidence(home.services, None, ready=lambda event_id: prepare_delivery(home.services, event_id) and None)
    shown = locseal("releases", "show", "event-1", "--json").json
    assert [(one["status"], one["code"]) for one in shown["deliveries"]] == [
        ("pending", None),
        ("failed", "cms.delivery.renewed"),
    ]
    assert "renewed" not in shown["waiting"]


def test_a_signed_response_goes_out_byte_for_byte(locseal: Run, home: Home, broker: Broker) -> None:
    """The message holds the file's exact text, and intake takes it."""
    collected(home, lambda _request: NotYet())
    text = signed_response(home.keys, request_for(EVENT))
    file = home.directory / "response.json"
    file.write_text(text)
    done = locseal("evidence", "submit", str(file), "--json")
    assert done.json == {
        "document_sha256": sha256_hex(text),
        "state": "sent",
        "at": None,
        "request_id": request_for(EVENT).request_id,
    }
    assert broker.take() == [{"task": "evidence.submit", "version": 1, "response": text}]
    assert accept_response(home.services, text).state == "accepted"


def test_an_unsigned_response_is_signed_here(locseal: Run, home: Home, broker: Broker) -> None:
    """With this machine's key of purpose `evidence`."""
    collected(home, lambda _request: NotYet())
    file = home.directory / "response.json"
    file.write_text(json.dumps(response_for(home.keys, request_for(EVENT))))
    assert locseal("evidence", "submit", str(file)).code == 0
    [message] = broker.take()
    assert accept_response(home.services, message["response"]).state == "accepted"


def test_a_file_that_is_no_response_is_not_sent(locseal: Run, home: Home, broker: Broker) -> None:
    """Refused here, with the code intake would give."""
    file = home.directory / "response.json"
    for text in ("{", "[]", '{"schema": "locseal.evidence-response.v1"}'):
        file.write_text(text)
        done = locseal("evidence", "submit", str(file), "--json")
        assert (done.code, done.json["error"]["code"]) == (1, "evidence.response.invalid")
    assert broker.take() == []


def test_show_says_when_a_long_review_is_given_up(locseal: Run, home: Home) -> None:
    """Fourteen days after the provider first said "not yet", not after so many attempts."""
    collected(home, lambda _request: NotYet(retry_after_seconds=600.0))
    shown = locseal("releases", "show", "event-1", "--json").json
    [locale] = shown["locales"]
    assert locale["gives_up_at"] == pytest.approx(locale["awaited_since_at"] + 14 * 86_400)
    assert "accepted by the reviewer, not finished since " in shown["waiting"]
