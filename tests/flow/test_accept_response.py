"""Reviews that take days: "accepted, not yet" within a deadline, and finished answers that a reviewer hands in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, delete, update

from tests.builders import NOW, Keyring, change_event, request_for, results_for, signed_response, signed_withdrawal
from tests.evidence_builders import ScriptedProvider, ScriptedVerifier, good, with_provider
from tests.fakes import Checkpoints, Crash, FixedPolicies, RecordingQueue
from tests.intake_builders import COLLECT, Everything, Rows, change_row, later, submit
from worker.domain.acceptance import Acceptance
from worker.domain.canonical import sha256_hex
from worker.domain.errors import ProviderFailure
from worker.domain.evidence import EvidenceRequest, NotYet
from worker.domain.policy import SitePolicy
from worker.domain.review import Collected
from worker.flow.accept_response import accept_response
from worker.flow.collect_evidence import collect_evidence
from worker.flow.services import Services
from worker.flow.withdraw_event import withdraw_event
from worker.store.engine import writing
from worker.store.schema import approvals, evidence, pushed_responses, rejections, results, setbacks, submissions

DAY = 86_400.0
At = Callable[[float], Services]


def never(_request: EvidenceRequest) -> Any:
    """Be a provider that must not be asked."""
    raise AssertionError("the provider was asked")


def not_yet(_request: EvidenceRequest) -> NotYet:
    """Be a provider whose people need days."""
    return NotYet(retry_after_seconds=600.0)


def collect(services: Services, answer: Callable[[EvidenceRequest], Any], now: float = NOW) -> Collected:
    """Collect at a time with a provider that answers so."""
    here = with_provider(replace(services, now=lambda: now), ScriptedProvider(answer))
    return collect_evidence(here, None, ready=lambda _: None)


def waiting(services: Services, keys: Keyring, **changes: Any) -> EvidenceRequest:
    """Have one locale submitted and put off by its provider; return its request."""
    given = {"confidence": changes.pop("confidence")} if "confidence" in changes else {}
    event = change_event(target_locales=["de"], **changes)
    submit(services, keys, event, results_for(event, **given))
    assert collect(services, not_yet) == Collected(claimed=1)
    return request_for(event, "de", **given)


def only(rows: Rows) -> dict[str, Any]:
    """Return the one evidence row."""
    [row] = rows(evidence)
    return row


# --- accepted, not yet ------------------------------------------------------------------------------------------------


def test_not_yet_counts_no_attempt_and_keeps_its_first_time(services: Services, keys: Keyring, rows: Rows) -> None:
    """However often it is said: attempts stay 0, and waiting began with the first."""
    waiting(services, keys)
    for turn in range(1, 8):
        row = only(rows)
        assert (row["status"], row["attempts"], row["awaited_since_at"]) == ("retry_wait", 0, NOW)
        assert (row["next_attempt_at"], row["last_error_code"]) == (NOW + 600 * turn, "evidence.not_yet")
        assert collect(services, not_yet, NOW + 600 * turn) == Collected(claimed=1)
    assert [row["outcome"] for row in rows(setbacks)] == ["released"] * 8


def test_the_deadline_of_the_policy_ends_the_wait(
    services: Services, keys: Keyring, rows: Rows, policies: FixedPolicies
) -> None:
    """At the deadline it is asked once more; "not yet" then fails the row for good with a stable code."""
    policies.policy = SitePolicy(review_deadline_seconds=700)
    waiting(services, keys)
    assert collect(services, not_yet, NOW + 600) == Collected(claimed=1)
    assert only(rows)["next_attempt_at"] == NOW + 700
    assert collect(services, not_yet, NOW + 699) == Collected()
    assert collect(services, not_yet, NOW + 700) == Collected(claimed=1, failed=1)
    row = only(rows)
    assert (row["status"], row["last_error_code"]) == ("failed", "evidence.review_deadline_passed")
    assert rows(approvals) == []


def test_an_answer_at_the_deadline_still_counts(
    services: Services, keys: Keyring, rows: Rows, policies: FixedPolicies
) -> None:
    """The deadline bounds the wait for an answer, not the answer."""
    policies.policy = SitePolicy(review_deadline_seconds=700)
    waiting(services, keys)
    assert collect(services, good(keys), NOW + 800) == Collected(claimed=1, approved=1)


def test_fourteen_days_by_default(services: Services, keys: Keyring, rows: Rows) -> None:
    """The day before, it is still waited for; when they are over, no more."""
    waiting(services, keys)
    assert collect(services, not_yet, NOW + 14 * DAY - 1) == Collected(claimed=1)
    assert only(rows)["next_attempt_at"] == NOW + 14 * DAY
    assert collect(services, not_yet, NOW + 14 * DAY) == Collected(claimed=1, failed=1)


def test_a_failure_in_between_does_not_begin_the_wait_anew(
    services: Services, keys: Keyring, rows: Rows, policies: FixedPolicies
) -> None:
    """An outage counts its attempt; the deadline goes on from the first "not yet"."""
    policies.policy = SitePolicy(review_deadline_seconds=1000)
    waiting(services, keys)

    def down(_request: EvidenceRequest) -> Any:
        raise ProviderFailure("provider.status_503", retryable=True)

    assert collect(services, down, NOW + 600) == Collected(claimed=1, failed=1)
    assert (only(rows)["attempts"], only(rows)["awaited_since_at"]) == (1, NOW)
    assert collect(services, not_yet, NOW + 1000) == Collected(claimed=1, failed=1)
    assert only(rows)["last_error_code"] == "evidence.review_deadline_passed"


# --- handed in --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reviews", "purposes"),
    [
        ({"content_type": "legal"}, ["human"], ["human", "quality"]),
        ({"confidence": "low"}, ["human"], ["human", "quality"]),
        ({"confidence": "low"}, ["independent"], ["independent", "quality"]),
        ({}, [], ["quality"]),
    ],
    ids=["legal", "low, a human", "low, a second provider", "high"],
)
def test_a_finished_review_is_used_in_place_of_a_call(
    services: Services,
    keys: Keyring,
    rows: Rows,
    queue: RecordingQueue,
    changes: dict[str, Any],
    reviews: list[str],
    purposes: list[str],
) -> None:
    """The row is due at once, the provider is not asked, and the receipts are verified and kept like pulled ones."""
    request = waiting(services, keys, **changes)
    queue.take()
    text = signed_response(keys, request, reviews=reviews)
    later_on = replace(services, now=lambda: NOW + 9)
    assert accept_response(later_on, text) == Acceptance(
        document_sha256=sha256_hex(text), state="accepted", event_id="event-1"
    )
    assert queue.take() == [(COLLECT, {"event_id": "event-1"})]
    assert (only(rows)["next_attempt_at"], only(rows)["attempts"]) == (NOW + 9, 0)
    [kept] = [row for row in rows(submissions) if row["kind"] == "evidence"]
    assert (kept["body"], kept["site_id"], kept["event_id"], kept["kid"]) == (text, "site-1", "event-1", "evidence-1")
    assert collect(services, never, NOW + 9) == Collected(claimed=1, approved=1)
    [approval] = rows(approvals)
    document = json.loads(approval["document"])
    assert [name for name in ("human", "independent", "quality") if document[f"{name}_receipt_sha256"]] == purposes


def test_a_repeat_changes_nothing(services: Services, keys: Keyring, everything: Everything) -> None:
    """While it waits and after it was used: accepted, and the database stays as it is."""
    text = signed_response(keys, waiting(services, keys))
    first = accept_response(services, text)
    before = everything()
    assert accept_response(services, text) == first
    assert everything() == before
    collect(services, never)
    before = everything()
    assert accept_response(services, text) == first
    assert everything() == before


def test_a_review_may_come_before_the_first_call(services: Services, keys: Keyring, rows: Rows) -> None:
    """A row that nobody asked about yet is answered without a call."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    assert accept_response(services, signed_response(keys, request_for(event))).state == "accepted"
    assert collect(services, never) == Collected(claimed=1, approved=1)
    assert only(rows)["awaited_since_at"] is None


def test_a_route_that_is_not_known_needs_none(services: Services, keys: Keyring, rows: Rows) -> None:
    """People may review what no endpoint serves: the answer in hand does not need one."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    accept_response(services, signed_response(keys, request_for(event)))
    assert collect_evidence(replace(services, providers={}), None, ready=lambda _: None).approved == 1


def test_it_is_due_at_once_even_when_it_came_during_the_call(services: Services, keys: Keyring, rows: Rows) -> None:
    """The leased row is left to its holder; as soon as that settles without an answer, the row is due."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)

    def meanwhile(request: EvidenceRequest) -> NotYet:
        assert accept_response(services, signed_response(keys, request)).state == "accepted"
        assert only(rows)["status"] == "leased"
        return NotYet(retry_after_seconds=600.0)

    assert collect(services, meanwhile) == Collected(claimed=1)
    assert (only(rows)["status"], only(rows)["next_attempt_at"]) == ("retry_wait", NOW)
    assert collect(services, never) == Collected(claimed=1, approved=1)


def test_a_verifier_that_is_away_does_not_use_it_up(services: Services, keys: Keyring, rows: Rows) -> None:
    """The attempt waits for its back-off like any other, and the next claim uses the answer again."""
    request = waiting(services, keys)
    accept_response(services, signed_response(keys, request))

    def away(*_: Any) -> Any:
        raise ProviderFailure("verifier.unreachable", retryable=True)

    cut_off = replace(services, verifiers={"quality": ScriptedVerifier(away)})
    assert collect(cut_off, never) == Collected(claimed=1, failed=1)
    assert (only(rows)["attempts"], only(rows)["next_attempt_at"]) == (1, NOW + 5)
    assert collect(services, never, NOW + 5) == Collected(claimed=1, approved=1)


def test_receipts_that_do_not_prove_the_request_are_refused_like_pulled_ones(
    services: Services, keys: Keyring, rows: Rows
) -> None:
    """A receipt for another revision is well-formed, so it is taken in; verified at the claim, it fails the row."""
    request = waiting(services, keys)
    other = request_for(change_event(target_locales=["de"]), "de", revision="r2")
    forged = json.loads(signed_response(keys, other))["document"] | {"request_id": request.request_id}
    assert accept_response(services, keys.sign("evidence", forged).to_text()).state == "accepted"
    assert collect(services, never) == Collected(claimed=1, failed=1)
    assert (only(rows)["status"], only(rows)["last_error_code"]) == ("failed", "release.quality.receipt.rejected")
    assert rows(approvals) == []


def test_of_two_answers_the_newest_is_used(services: Services, keys: Keyring, at: At, rows: Rows) -> None:
    """A reviewer may correct what was handed in, until a claim has used it."""
    request = waiting(services, keys, confidence="low")
    accept_response(at(NOW + 1), signed_response(keys, request, reviews=["independent"]))
    accept_response(at(NOW + 2), signed_response(keys, request, reviews=["human"]))
    assert len(rows(pushed_responses)) == 2
    assert collect(services, never, NOW + 3) == Collected(claimed=1, approved=1)
    assert json.loads(rows(approvals)[0]["document"])["human_receipt_sha256"] is not None


def bad(keys: Keyring, request: EvidenceRequest) -> dict[str, tuple[str, str, str]]:
    """Return wrong documents by what is wrong with them, each with its code and path."""
    good_one = json.loads(signed_response(keys, request))

    def signed(purpose: str = "evidence", **changes: Any) -> str:
        return keys.sign(purpose, good_one["document"] | changes).to_text()

    legal = request_for(change_event(target_locales=["de"], event_id="elsewhere"))
    return {
        "no JSON": ("{", "evidence.response.invalid", ""),
        "unsigned": (json.dumps(good_one["document"]), "evidence.response.invalid", ""),
        "too large": (json.dumps(good_one) + " " * 1024 * 1024, "evidence.response.invalid", ""),
        "another purpose": (signed("submission"), "evidence.response.signature.invalid", "signature"),
        "no request": (signed(request_id=5), "evidence.response.invalid", "request_id"),
        "unknown request": (signed(request_id=legal.request_id), "evidence.request.unknown", "request_id"),
        "another result": (signed(result_sha256="0" * 64), "evidence.response.binding_mismatch", ""),
        "another schema": (signed(schema="locseal.evidence-response.v2"), "evidence.response.binding_mismatch", ""),
        "no receipt": (signed(quality_receipt=""), "evidence.quality_receipt.invalid", ""),
        "a human unasked": (signed(human_review_receipt="h"), "evidence.review_escalation.unexpected", ""),
        "a member more": (signed(note="hello"), "evidence.response.invalid", ""),
    }


@pytest.mark.parametrize(
    "what",
    [
        "no JSON",
        "unsigned",
        "too large",
        "another purpose",
        "no request",
        "unknown request",
        "another result",
        "another schema",
        "no receipt",
        "a human unasked",
        "a member more",
    ],
)
def test_a_bad_answer_is_a_rejection_and_costs_the_request_nothing(
    services: Services, keys: Keyring, rows: Rows, queue: RecordingQueue, what: str
) -> None:
    """A rejection row with its code; the evidence row waits on, and nobody is woken."""
    request = waiting(services, keys)
    before, _ = only(rows), queue.take()
    text, code, path = bad(keys, request)[what]
    answer = accept_response(services, text)
    assert (answer.state, answer.code) == ("rejected", code)
    assert answer.path is None or path in answer.path
    [rejection] = rows(rejections)
    assert (rejection["code"], rejection["message"], rejection["body"]) == (code, "evidence.submit", None)
    assert (only(rows), queue.take(), rows(pushed_responses)) == (before, [], [])


@pytest.mark.parametrize("end", ["succeeded", "failed", "superseded", "withdrawn"])
def test_a_finished_request_takes_no_answer(
    services: Services, keys: Keyring, rows: Rows, queue: RecordingQueue, end: str
) -> None:
    """It would never be used: `evidence.request.finished`, and nothing but the rejection is written."""
    event = change_event(target_locales=["de"])
    request = waiting(services, keys)
    if end == "succeeded":
        collect(services, good(keys), NOW + 600)
    elif end == "failed":
        collect(services, good(keys, quality_receipt=""), NOW + 600)
    elif end == "superseded":
        submit(services, keys, later(source_text="New text."))
    else:
        withdraw_event(services, signed_withdrawal(keys, event))
    before, _ = rows(evidence), queue.take()
    answer = accept_response(services, signed_response(keys, request))
    assert (answer.state, answer.code, answer.path) == ("rejected", "evidence.request.finished", "request_id")
    assert (rows(evidence), queue.take(), rows(pushed_responses)) == (before, [], [])


def test_a_key_that_is_revoked_before_the_claim_counts_no_more(services: Services, keys: Keyring, rows: Rows) -> None:
    """What it had signed is not used: the provider is asked after all."""
    request = waiting(services, keys)
    accept_response(services, signed_response(keys, request))
    keys.revoke("evidence")
    provider = ScriptedProvider(good(keys))
    done = collect_evidence(with_provider(services, provider), None, ready=lambda _: None)
    assert (done, provider.asked) == (Collected(claimed=1, approved=1), [request])


def test_a_key_that_is_retired_before_the_claim_still_counts(services: Services, keys: Keyring) -> None:
    """It was handed in while the key was active."""
    request = waiting(services, keys)
    accept_response(services, signed_response(keys, request))
    keys.retire("evidence", retired_at=NOW + 1)
    assert collect(services, never, NOW + 5) == Collected(claimed=1, approved=1)


def test_bytes_that_were_altered_in_the_database_stop_the_row(
    services: Services, engine: Engine, keys: Keyring, rows: Rows
) -> None:
    """`evidence.response.tampered`, terminal; nobody is asked, nothing is approved."""
    accept_response(services, signed_response(keys, waiting(services, keys)))
    altered = update(submissions).where(submissions.c.kind == "evidence").values(body=submissions.c.body + " ")
    writing(engine, lambda conn: conn.execute(altered))
    assert collect(services, never) == Collected(claimed=1, failed=1)
    assert (only(rows)["status"], only(rows)["last_error_code"]) == ("failed", "evidence.response.tampered")
    assert rows(approvals) == []


def test_a_damaged_row_is_left_as_it_is(services: Services, engine: Engine, keys: Keyring, rows: Rows) -> None:
    """The answer is rejected with the row's code; an intake task must never wait for it."""
    request = waiting(services, keys)
    change_row(engine, only(rows), attempts=99)
    before = only(rows)
    answer = accept_response(services, signed_response(keys, request))
    assert (answer.state, answer.code) == ("rejected", "evidence.state.invalid")
    assert only(rows) == before


def test_a_request_whose_event_was_altered_takes_no_answer(
    services: Services, engine: Engine, keys: Keyring, rows: Rows
) -> None:
    """What is stored no longer derives the request, so nothing can be judged against it."""
    request = waiting(services, keys)
    writing(engine, lambda conn: conn.execute(delete(results)))
    assert accept_response(services, signed_response(keys, request)).code == "evidence.request.tampered"
    assert rows(pushed_responses) == []


@pytest.mark.parametrize("name", ["respond.verified", "respond.committed"])
def test_a_crash_on_the_way_in_loses_nothing(
    services: Services, keys: Keyring, rows: Rows, checkpoints: Checkpoints, name: str
) -> None:
    """The message comes again; whatever was written before, the answer lies in the inbox once."""
    text = signed_response(keys, waiting(services, keys))
    checkpoints.crash_at = name
    with pytest.raises(Crash):
        accept_response(services, text)
    checkpoints.crash_at = None
    assert accept_response(services, text).state == "accepted"
    assert len(rows(pushed_responses)) == 1
    assert collect(services, never) == Collected(claimed=1, approved=1)
