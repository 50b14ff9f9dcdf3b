"""Publishing: one send at a time under the lock of the source, and nothing sent again that may have arrived."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table, insert, update

from tests.builders import NOW, Keyring, acknowledgement_for, change_event, signed_withdrawal
from tests.delivery_builders import approve, approved_event, submit
from tests.fake_cms import FakeCms
from tests.fakes import FixedPolicies, RecordingQueue
from worker.domain.canonical import parse_strict, sha256_hex
from worker.domain.delivery import delivery_id_of
from worker.domain.errors import Blocked
from worker.domain.policy import SitePolicy
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.flow.withdraw_event import withdraw_event
from worker.store.engine import read_clock, reading, writing
from worker.store.schema import (
    approvals,
    deliveries,
    delivery_answers,
    delivery_permits,
    events,
    public_keys,
    setbacks,
)

Rows = Callable[[Table], list[dict[str, Any]]]
At = Callable[[float], Services]
DAY = 86_400.0


@pytest.fixture
def cms(keys: Keyring) -> FakeCms:
    """A CMS with a look-up that behaves unless it is told otherwise."""
    return FakeCms(keys=keys)


@pytest.fixture
def services(services: Services, cms: FakeCms) -> Services:
    """The services of a step, with a CMS."""
    return replace(services, cms=lambda _site_id: cms)


@pytest.fixture
def prepared(services: Services, keys: Keyring, queue: RecordingQueue) -> str:
    """An event that is approved and prepared; its delivery's id."""
    approved_event(services, keys)
    advance = prepare_delivery(services, "event-1")
    queue.take()
    assert advance.delivery_id is not None
    return advance.delivery_id


def run(engine: Engine, statement: Any) -> None:
    """Change rows behind the product's back."""
    writing(engine, lambda conn: conn.execute(statement))


def only(rows: Rows) -> dict[str, Any]:
    """Return the one delivery."""
    (row,) = rows(deliveries)
    return row


def state(rows: Rows) -> tuple[Any, ...]:
    """Return what a delivery's progress is told by."""
    row = only(rows)
    return row["status"], row["attempts"], row["in_doubt"], row["last_error_code"]


def code_of(services: Services, event_id: str = "event-1") -> str:
    """Return the code that publishing raises."""
    with pytest.raises(Blocked) as refused:
        publish_delivery(services, event_id)
    return refused.value.code


# --- the straight way -----------------------------------------------------------------------------------------------


def test_a_signed_acknowledgement_delivers_the_event(
    services: Services, keys: Keyring, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """The stored bytes are sent as they are; the answer, its key and the event's end are kept together."""
    stored = only(rows)
    advance = publish_delivery(services, "event-1")
    assert (advance.status, advance.delivery_id) == ("delivered", prepared)
    row = only(rows)
    assert state(rows) == ("succeeded", 1, False, None)
    assert (row["acknowledged_at"], row["sent_at"], row["lease_token"], row["next_attempt_at"]) == (NOW, NOW, None, NOW)
    body = '{"document":' + stored["payload"] + ',"signature":"' + stored["signature"] + '"}'
    assert cms.requests == [(prepared, body.encode())]
    (event,) = rows(events)
    assert event["state"] == "delivered"
    (answer,) = rows(delivery_answers)
    assert (answer["kind"], answer["outcome"], answer["nonce"], answer["answered_at"]) == (
        "acknowledgement",
        "accepted",
        None,
        NOW,
    )
    payload = parse_strict(row["payload"], max_bytes=1_000_000)
    assert parse_strict(answer["document"], max_bytes=10_000) == acknowledgement_for(payload)
    assert ("acknowledgement", answer["kid"]) in {(key["purpose"], key["kid"]) for key in rows(public_keys)}


def test_a_delivered_event_is_never_sent_again(
    services: Services, cms: FakeCms, prepared: str, everything: Callable[[], object]
) -> None:
    """However often it is woken."""
    publish_delivery(services, "event-1")
    before = everything()
    assert publish_delivery(services, "event-1").status == "delivered"
    assert (len(cms.requests), everything()) == (1, before)


def test_in_doubt_is_set_before_anything_is_sent(services: Services, rows: Rows, cms: FakeCms, prepared: str) -> None:
    """While the request is open the row is leased and in doubt, and no connection is held."""
    seen: list[tuple[Any, ...]] = []
    cms.during_send = lambda: seen.append((*state(rows), only(rows)["sent_at"], services.engine.pool.checkedout()))  # type: ignore[attr-defined]
    publish_delivery(services, "event-1")
    assert seen == [("leased", 1, True, None, NOW, 0)]


def test_an_event_without_a_delivery_waits(services: Services, keys: Keyring, cms: FakeCms) -> None:
    """A late or doubled wake does nothing."""
    submit(services, keys, change_event())
    assert publish_delivery(services, "event-1").status == "waiting"
    assert code_of(services, "event-9") == "coordinator.event_id.unknown"
    assert cms.requests == []


def test_a_draining_process_begins_nothing(services: Services, cms: FakeCms, rows: Rows, prepared: str) -> None:
    """The row stays as it is for another worker."""
    assert publish_delivery(replace(services, draining=lambda: True), "event-1").status == "delivery_ready"
    assert (state(rows), cms.requests) == (("pending", 0, False, None), [])


def test_the_database_s_own_clock_drives_the_whole_way(
    services: Services, keys: Keyring, engine: Engine, rows: Rows, cms: FakeCms
) -> None:
    """No fixed time anywhere: prepared, sent in vain, in doubt, and due later by the database's word."""
    by_clock = replace(services, now=lambda: None)
    with reading(engine) as conn:
        began = read_clock(conn, None)
    submit(by_clock, keys, change_event())
    approve(by_clock, keys, change_event(), approved_at=began)
    assert prepare_delivery(by_clock, "event-1").status == "delivery_ready"
    cms.sends, cms.lookups = ["timeout"], ["silent"]
    assert publish_delivery(by_clock, "event-1").status == "delivery_ready"
    row = only(rows)
    assert began <= row["created_at"] <= row["sent_at"] <= row["updated_at"] <= began + 60
    assert row["next_attempt_at"] - row["updated_at"] == pytest.approx(5, abs=0.01)
    assert publish_delivery(by_clock, "event-1").status == "delivery_ready"
    assert cms.questions == []
    run(engine, update(deliveries).values(next_attempt_at=began, sent_at=began - 61, last_woken_at=began - 10))
    assert sweep_fleet(by_clock).publishes == ("event-1",)
    assert publish_delivery(by_clock, "event-1").status == "delivery_ready"
    run(engine, update(deliveries).values(next_attempt_at=began))
    assert publish_delivery(by_clock, "event-1").status == "delivered"
    assert (len(cms.questions), len(cms.requests)) == (2, 2)


# --- what is tried again, and what is not -----------------------------------------------------------------------------


def test_what_was_certainly_not_sent_is_tried_again_with_the_same_bytes(
    services: Services, at: At, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """Three attempts, one key, one sequence of bytes, no look-up; a wait that was asked for is kept (cases 71, 73)."""
    cms.sends = ["unreachable", "not_now"]
    assert publish_delivery(services, "event-1").status == "delivery_ready"
    assert state(rows) == ("retry_wait", 1, False, "cms.delivery.connect_failed")
    assert only(rows)["next_attempt_at"] == NOW + 5
    again = replace(services, now=lambda: NOW + 5)
    assert publish_delivery(again, "event-1").status == "delivery_ready"
    assert state(rows) == ("retry_wait", 2, False, "cms.delivery.http_429")
    assert only(rows)["next_attempt_at"] == NOW + 125
    assert publish_delivery(replace(services, now=lambda: NOW + 124), "event-1").status == "delivery_ready"
    assert len(cms.requests) == 1
    last = replace(services, now=lambda: NOW + 125, worker_id="w-other")
    assert publish_delivery(last, "event-1").status == "delivered"
    assert len(cms.requests) == 2
    assert len(set(cms.requests)) == 1
    assert cms.questions == []
    assert [(row["outcome"], row["code"], row["attempt"], row["retry_after_seconds"]) for row in rows(setbacks)] == [
        ("retry_wait", "cms.delivery.connect_failed", 1, None),
        ("retry_wait", "cms.delivery.http_429", 2, 120.0),
    ]


def test_attempts_that_were_certainly_not_sent_run_out(
    services: Services, engine: Engine, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """The last one fails the delivery; it may be followed."""
    run(engine, update(deliveries).values(attempts=4))
    cms.sends = ["unreachable"]
    assert code_of(services) == "cms.delivery.failed"
    assert state(rows) == ("failed", 5, False, "cms.delivery.connect_failed")


@pytest.mark.parametrize(
    ("word", "after"),
    [
        ("refuse", ("failed", 1, False, "cms.delivery.http_422")),
        ("unverifiable", ("failed", 1, True, "cms.outcome_unknown")),
    ],
)
def test_a_terminal_answer_ends_the_delivery(
    services: Services, rows: Rows, cms: FakeCms, prepared: str, word: str, after: tuple[Any, ...]
) -> None:
    """A refusal is certain; an answer that cannot be verified leaves the outcome unknown (cases 91, 131)."""
    cms.sends = [word]
    assert code_of(services) == "cms.delivery.failed"
    assert state(rows) == after
    assert (rows(delivery_answers), rows(events)[0]["state"]) == ([], "open")
    assert code_of(services) == "cms.delivery.failed"
    assert len(cms.requests) == 1


def test_a_stale_answer_closes_the_delivery_as_superseded(
    services: Services, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """The CMS knows a newer text; the event ends with it."""
    cms.sends = ["stale"]
    assert publish_delivery(services, "event-1").status == "superseded"
    assert state(rows) == ("failed", 1, False, "superseded")
    assert rows(events)[0]["state"] == "superseded"
    assert publish_delivery(services, "event-1").status == "superseded"
    assert len(cms.requests) == 1


# --- in doubt -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["lost", "timeout"])
def test_no_verified_answer_leaves_the_delivery_in_doubt(
    services: Services, rows: Rows, cms: FakeCms, prepared: str, word: str
) -> None:
    """Neither success nor failure: it is due again, to be looked up."""
    cms.sends = [word]
    assert publish_delivery(services, "event-1").status == "delivery_ready"
    assert state(rows) == ("retry_wait", 1, True, "cms.delivery.timeout")
    assert only(rows)["next_attempt_at"] == NOW + 5


def test_in_doubt_a_signed_accepted_succeeds_without_sending(
    services: Services, at: At, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """The answer was lost, not the text; the look-up names nonce, id and hash and is kept (cases 69, 89)."""
    cms.sends = ["lost"]
    publish_delivery(services, "event-1")
    later = replace(services, now=lambda: NOW + 5)
    assert publish_delivery(later, "event-1").status == "delivered"
    assert (len(cms.requests), len(cms.questions), list(cms.ledger)) == (1, 1, [prepared])
    assert state(rows) == ("succeeded", 1, False, None)
    (answer,) = rows(delivery_answers)
    assert (answer["kind"], answer["outcome"], answer["nonce"]) == ("lookup", "accepted", cms.questions[0].nonce)
    assert len(cms.questions[0].nonce) == 64
    assert cms.questions[0].payload_sha256 == only(rows)["payload_sha256"]


def test_an_absent_counts_only_after_the_send_deadline_and_thirty_seconds(
    services: Services, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """Before, the send may still arrive: nothing is sent, and it is asked again once an absent counts."""
    cms.sends = ["timeout"]
    publish_delivery(services, "event-1")
    for now in (NOW + 5, NOW + 60):
        run(services.engine, update(deliveries).values(next_attempt_at=now))
        assert publish_delivery(replace(services, now=lambda now=now: now), "event-1").status == "delivery_ready"
        assert state(rows) == ("retry_wait", 1, True, "cms.lookup.absent_too_early")
        assert len(cms.requests) == 1
    assert only(rows)["next_attempt_at"] == NOW + 60 + 10
    run(services.engine, update(deliveries).values(next_attempt_at=NOW + 61))
    assert publish_delivery(replace(services, now=lambda: NOW + 61), "event-1").status == "delivered"
    assert len(cms.requests) == 2
    assert len(set(cms.requests)) == 1
    assert [row["outcome"] for row in rows(delivery_answers)] == ["absent", "absent", "absent", "accepted"]
    row = only(rows)
    assert (row["attempts"], row["lookups"], row["sent_at"]) == (2, 3, NOW + 61)


def test_an_early_absent_waits_until_it_would_count(
    services: Services, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """The next look-up is due one second after the bound, not by the short back-off."""
    cms.sends = ["timeout"]
    publish_delivery(services, "event-1")
    publish_delivery(replace(services, now=lambda: NOW + 5), "event-1")
    assert only(rows)["next_attempt_at"] == NOW + 61


def test_look_ups_count_no_attempt_and_back_off(services: Services, rows: Rows, cms: FakeCms, prepared: str) -> None:
    """An unsigned answer is no answer; the wait doubles with each look-up."""
    cms.sends, cms.lookups = ["timeout"], ["silent"] * 4
    publish_delivery(services, "event-1")
    now = NOW + 5
    for wait in (5, 10, 20, 40):
        moment = now
        publish_delivery(replace(services, now=lambda moment=moment: moment), "event-1")
        assert state(rows) == ("retry_wait", 1, True, "cms.lookup.http_404")
        assert only(rows)["next_attempt_at"] == now + wait
        now += wait
    assert len(cms.requests) == 1


def test_with_no_attempt_left_look_ups_go_on_for_a_day(
    services: Services, engine: Engine, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """Then the outcome is unknown, and only reconciling may move it."""
    run(engine, update(deliveries).values(attempts=4))
    cms.sends, cms.lookups = ["timeout"], ["silent"] * 100
    publish_delivery(services, "event-1")
    assert state(rows) == ("retry_wait", 5, True, "cms.delivery.timeout")
    now = only(rows)["next_attempt_at"]
    while now < NOW + DAY:
        moment = now
        assert publish_delivery(replace(services, now=lambda moment=moment: moment), "event-1").status == (
            "delivery_ready"
        )
        now = only(rows)["next_attempt_at"]
    assert now == NOW + DAY
    assert code_of(replace(services, now=lambda: NOW + DAY)) == "cms.delivery.failed"
    assert state(rows) == ("failed", 5, True, "cms.outcome_unknown")
    assert len(cms.requests) == 1
    assert len(cms.questions) > 20


def test_a_signed_absent_with_no_attempt_left_fails_for_certain(
    services: Services, engine: Engine, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """It is not live, so it may be followed."""
    run(engine, update(deliveries).values(attempts=4))
    cms.sends = ["timeout"]
    publish_delivery(services, "event-1")
    assert code_of(replace(services, now=lambda: NOW + 100)) == "cms.delivery.failed"
    assert state(rows) == ("failed", 5, False, "cms.delivery.attempts_exhausted")
    assert [row["outcome"] for row in rows(delivery_answers)] == ["absent"]


def test_an_unverifiable_look_up_leaves_the_outcome_unknown(
    services: Services, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """A wrong binding or a bad signature is terminal."""
    cms.sends, cms.lookups = ["timeout"], ["unverifiable"]
    publish_delivery(services, "event-1")
    assert code_of(replace(services, now=lambda: NOW + 5)) == "cms.delivery.failed"
    assert state(rows) == ("failed", 1, True, "cms.outcome_unknown")


def test_a_stale_answer_after_a_signed_absent_supersedes(
    services: Services, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """The absent ended the doubt, so the stale answer is about this send alone."""
    cms.sends = ["timeout", "stale"]
    publish_delivery(services, "event-1")
    assert publish_delivery(replace(services, now=lambda: NOW + 61), "event-1").status == "superseded"
    assert state(rows) == ("failed", 2, False, "superseded")


# --- a CMS without a look-up ------------------------------------------------------------------------------------------


def test_without_a_look_up_an_idempotent_cms_gets_the_same_bytes_again(
    services: Services, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """Until it answers; the doubt lasts from the first send."""
    cms.has_lookup, cms.is_idempotent = False, True
    cms.sends = ["lost"]
    publish_delivery(services, "event-1")
    assert publish_delivery(replace(services, now=lambda: NOW + 5), "event-1").status == "delivered"
    assert len(set(cms.requests)) == 1
    assert (len(cms.requests), list(cms.ledger)) == (2, [prepared])
    assert only(rows)["doubt_since_at"] == NOW


@pytest.mark.parametrize("word", ["stale", "unreachable"])
def test_without_a_look_up_an_earlier_doubt_outlives_a_later_answer(
    services: Services, rows: Rows, cms: FakeCms, prepared: str, word: str
) -> None:
    """Stale in doubt is of unknown outcome; what did not go out says nothing about what did."""
    cms.has_lookup, cms.is_idempotent = False, True
    cms.sends = ["timeout", word]
    publish_delivery(services, "event-1")
    second = replace(services, now=lambda: NOW + 5)
    if word == "stale":
        assert code_of(second) == "cms.delivery.failed"
        assert state(rows) == ("failed", 2, True, "cms.outcome_unknown")
    else:
        assert publish_delivery(second, "event-1").status == "delivery_ready"
        assert state(rows) == ("retry_wait", 2, True, "cms.delivery.connect_failed")


def test_without_a_look_up_the_last_attempt_in_doubt_is_of_unknown_outcome(
    services: Services, engine: Engine, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """Nobody can be asked any more."""
    cms.has_lookup, cms.is_idempotent = False, True
    run(engine, update(deliveries).values(attempts=4))
    cms.sends = ["timeout"]
    assert code_of(services) == "cms.delivery.failed"
    assert state(rows) == ("failed", 5, True, "cms.outcome_unknown")


@pytest.mark.parametrize("word", ["lost", "timeout"])
def test_a_cms_that_promises_nothing_fails_in_doubt_at_once(
    services: Services, rows: Rows, cms: FakeCms, prepared: str, word: str
) -> None:
    """Neither asked nor sent again."""
    cms.has_lookup = False
    cms.sends = [word]
    assert code_of(services) == "cms.delivery.failed"
    assert state(rows) == ("failed", 1, True, "cms.outcome_unknown")
    assert code_of(replace(services, now=lambda: NOW + 500)) == "cms.delivery.failed"
    assert (len(cms.requests), cms.questions) == (1, [])


# --- what forbids a send ----------------------------------------------------------------------------------------------


def outlasting(seconds: float) -> float:
    """Return the time at which approvals of `NOW` last so many seconds more."""
    return NOW + 2_592_000 - seconds


def test_approvals_must_outlast_the_send(services: Services, rows: Rows, cms: FakeCms, prepared: str) -> None:
    """Thirty seconds are the send deadline; one that ends with it closes the delivery unsent."""
    too_late = replace(services, now=lambda: outlasting(30))
    assert code_of(too_late) == "cms.delivery.approval_expired"
    assert state(rows) == ("failed", 0, False, "cms.delivery.approval_expired")
    assert code_of(too_late) == "cms.delivery.failed"
    assert cms.requests == []


def test_approvals_that_outlast_the_send_are_enough(
    services: Services, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """By a second."""
    assert publish_delivery(replace(services, now=lambda: outlasting(31)), "event-1").status == "delivered"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (update(approvals).values(revoked_at=NOW), "cms.delivery.approval_expired"),
        (update(approvals).values(document=approvals.c.document + " "), "release.approval.tampered"),
        (approvals.delete(), "release.approval.tampered"),
    ],
)
def test_a_delivery_whose_approvals_fell_away_is_not_sent(
    services: Services, engine: Engine, rows: Rows, cms: FakeCms, prepared: str, change: Any, code: str
) -> None:
    """It is closed, with the reason (case 127)."""
    run(engine, change)
    assert code_of(services) == code
    assert state(rows) == ("failed", 0, False, code)
    assert cms.requests == []


def test_a_publication_that_disagrees_with_its_approvals_is_not_sent(
    services: Services, keys: Keyring, engine: Engine, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """Our own signature under it changes nothing: it may not claim a longer approval than there is."""
    document = parse_strict(only(rows)["payload"], max_bytes=1_000_000)
    document["localizations"][0]["approval_expires_at"] += 1
    signed = keys.sign("publication", document | {"delivery_id": delivery_id_of(document)})
    payload = signed.payload().decode()
    forged = {"payload": payload, "payload_sha256": sha256_hex(payload), "signature": signed.signature}
    run(engine, update(deliveries).values(delivery_id=signed.document["delivery_id"], **forged))
    assert code_of(services) == "release.approval.tampered"
    assert (state(rows)[0], cms.requests) == ("failed", [])


def test_a_revoked_approval_key_forbids_the_send(
    services: Services, keys: Keyring, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """What it signed proves nothing any more (case 127)."""
    keys.revoke("approval")
    assert code_of(services) == "release.approval.tampered"
    assert (state(rows)[0], cms.requests) == ("failed", [])


def test_a_retired_publication_key_still_delivers(
    services: Services, keys: Keyring, cms: FakeCms, prepared: str
) -> None:
    """A prepared delivery keeps its one valid signature through a rotation (case 81)."""
    keys.retire("publication", retired_at=NOW + 1)
    assert publish_delivery(replace(services, now=lambda: NOW + 10), "event-1").status == "delivered"


def test_expiry_and_revocation_after_the_send_undo_nothing(
    services: Services, engine: Engine, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """An accepted answer stands, at once or by look-up."""
    cms.during_send = lambda: run(engine, update(approvals).values(revoked_at=NOW))
    cms.sends = ["lost"]
    assert code_of(services) == "cms.delivery.approval_expired"
    assert state(rows) == ("retry_wait", 1, True, "cms.delivery.timeout")
    assert publish_delivery(replace(services, now=lambda: NOW + 5), "event-1").status == "delivered"


def test_an_absent_after_the_approvals_expired_is_not_sent_again(
    services: Services, engine: Engine, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """All checks are made again before the same bytes go again."""
    cms.sends = ["timeout"]
    publish_delivery(services, "event-1")
    run(engine, update(approvals).values(revoked_at=NOW))
    assert code_of(replace(services, now=lambda: NOW + 61)) == "cms.delivery.failed"
    assert state(rows) == ("failed", 1, False, "cms.delivery.approval_expired")
    assert len(cms.requests) == 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"payload": deliveries.c.payload + " "}, "cms.delivery.tampered"),
        ({"payload_sha256": "0" * 64}, "cms.delivery.tampered"),
        ({"signature": "e30..AAAA"}, "cms.delivery.tampered"),
        ({"source_sequence": 7}, "cms.delivery.tampered"),
        ({"attempts": 9}, "cms.delivery.invalid"),
        ({"status": "sent"}, "cms.delivery.invalid"),
        ({"in_doubt": True}, "cms.delivery.invalid"),
        ({"lease_owner": "w-1"}, "cms.delivery.invalid"),
    ],
)
def test_a_row_that_is_not_ours_is_refused_and_left_as_it_is(
    services: Services,
    engine: Engine,
    cms: FakeCms,
    prepared: str,
    everything: Callable[[], object],
    change: dict[str, Any],
    code: str,
) -> None:
    """Tampered bytes and damaged rows are nobody's to move."""
    run(engine, update(deliveries).values(**change))
    before = everything()
    assert code_of(services) == code
    assert (everything(), cms.requests, cms.questions) == (before, [], [])


# --- order ------------------------------------------------------------------------------------------------------------


def newer(services: Services, keys: Keyring, **changes: Any) -> None:
    """Submit, approve and prepare the next change of the same source."""
    approved_event(services, keys, event_id="event-2", source_sequence=2, source_text="Second text", **changes)


def test_a_superseded_delivery_that_waits_is_never_sent(
    services: Services, keys: Keyring, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """ver-7 waits for a retry, ver-8 is delivered, ver-7 becomes due (case 93)."""
    cms.sends = ["unreachable"]
    publish_delivery(services, "event-1")
    newer(services, keys)
    prepare_delivery(services, "event-2")
    assert publish_delivery(services, "event-2").status == "delivered"
    assert publish_delivery(replace(services, now=lambda: NOW + 60), "event-1").status == "superseded"
    assert [delivery_id for delivery_id, _ in cms.requests] == [
        row["delivery_id"] for row in rows(deliveries) if row["event_id"] == "event-2"
    ]
    assert cms.live == {"home.hero": 2}


def test_a_newer_delivery_waits_for_an_older_one_in_doubt(
    services: Services, keys: Keyring, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """Until the look-up says what became of it: accepted is recorded as published, and then the newer one goes."""
    cms.sends = ["lost"]
    publish_delivery(services, "event-1")
    newer(services, keys)
    prepare_delivery(services, "event-2")
    assert publish_delivery(services, "event-2").status == "delivery_ready"
    assert len(cms.requests) == 1
    later = replace(services, now=lambda: NOW + 5)
    assert publish_delivery(later, "event-1").status == "delivered"
    assert publish_delivery(later, "event-2").status == "delivered"
    assert cms.live == {"home.hero": 2}
    assert [(row["event_id"], row["state"]) for row in rows(events)] == [
        ("event-1", "delivered"),
        ("event-2", "delivered"),
    ]


def test_in_doubt_and_superseded_an_absent_closes_without_sending(
    services: Services, keys: Keyring, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """It is looked up, but never sent again."""
    cms.sends = ["timeout"]
    publish_delivery(services, "event-1")
    newer(services, keys)
    prepare_delivery(services, "event-2")
    later = replace(services, now=lambda: NOW + 61)
    assert publish_delivery(later, "event-1").status == "superseded"
    assert [row["last_error_code"] for row in rows(deliveries) if row["event_id"] == "event-1"] == ["superseded"]
    assert len(cms.requests) == 1
    assert publish_delivery(later, "event-2").status == "delivered"


def test_an_older_delivery_of_unknown_outcome_holds_the_newer_one(
    services: Services, keys: Keyring, engine: Engine, cms: FakeCms, prepared: str
) -> None:
    """For as long as nobody reconciles it."""
    cms.sends = ["unverifiable"]
    assert code_of(services) == "cms.delivery.failed"
    newer(services, keys)
    prepare_delivery(services, "event-2")
    assert publish_delivery(replace(services, now=lambda: NOW + DAY), "event-2").status == "delivery_ready"
    assert len(cms.requests) == 1


def test_in_doubt_superseded_and_nobody_to_ask_is_of_unknown_outcome(
    services: Services, keys: Keyring, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """An idempotent CMS without a look-up does not get a superseded text again."""
    cms.has_lookup, cms.is_idempotent = False, True
    cms.sends = ["timeout"]
    publish_delivery(services, "event-1")
    newer(services, keys)
    assert code_of(replace(services, now=lambda: NOW + 5)) == "cms.outcome_unknown"
    assert [(row["status"], row["in_doubt"]) for row in rows(deliveries)] == [("failed", True)]
    assert len(cms.requests) == 1


def test_other_sources_are_untouched_by_a_doubt(services: Services, keys: Keyring, cms: FakeCms, prepared: str) -> None:
    """Only the same source of the same site waits."""
    cms.sends = ["lost"]
    publish_delivery(services, "event-1")
    approved_event(services, keys, event_id="event-2", source_id="home.footer")
    prepare_delivery(services, "event-2")
    assert publish_delivery(services, "event-2").status == "delivered"


def test_a_withdrawn_delivery_is_not_sent(
    services: Services, keys: Keyring, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """It was closed with its event; one in flight refuses the withdrawal."""
    word = signed_withdrawal(keys, change_event())
    cms.sends = ["timeout"]
    publish_delivery(services, "event-1")
    assert withdraw_event(services, word).code == "withdrawal.in_flight"
    run(services.engine, update(deliveries).values(in_doubt=False))
    assert withdraw_event(services, word).state == "accepted"
    assert publish_delivery(replace(services, now=lambda: NOW + 61), "event-1").status == "withdrawn"
    assert len(cms.requests) == 1


# --- leases -----------------------------------------------------------------------------------------------------------


def test_two_workers_at_once_send_once(services: Services, cms: FakeCms, prepared: str) -> None:
    """The second finds the lease taken, and returns."""
    second: list[str] = []
    cms.during_send = lambda: second.append(publish_delivery(services, "event-1").status)
    assert publish_delivery(services, "event-1").status == "delivered"
    assert (second, len(cms.requests)) == (["delivery_ready"], 1)


def test_a_lost_lease_changes_nothing_and_the_look_up_finds_the_text(
    services: Services, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """W1 sleeps through its lease with the answer in hand; its settle touches no row, W2 asks and delivers."""
    moments = iter([NOW, NOW + 400])  # claim, settle

    def settled_late(name: str) -> None:
        if name == "publish.answered":
            assert publish_delivery(replace(services, now=lambda: NOW + 301, worker_id="w-2"), "event-1").status == (
                "delivered"
            )

    slow = replace(services, now=lambda: next(moments, NOW + 400), checkpoint=settled_late)
    assert publish_delivery(slow, "event-1").status == "delivery_ready"
    assert state(rows) == ("succeeded", 1, False, None)
    assert (len(cms.requests), len(cms.questions)) == (1, 1)
    assert [row["kind"] for row in rows(delivery_answers)] == ["lookup"]
    assert [(row["outcome"], row["code"]) for row in rows(setbacks)] == [("retry_wait", "lease_expired")]


def test_an_expired_lease_in_flight_is_in_doubt(services: Services, rows: Rows, cms: FakeCms, prepared: str) -> None:
    """At the very second of expiry; the crash counts its attempt."""
    run(
        services.engine,
        update(deliveries).values(
            status="leased",
            attempts=5,
            lease_owner="w-dead",
            lease_token="f" * 64,
            lease_expires_at=NOW + 300,
            in_doubt=True,
            sent_at=NOW,
            doubt_since_at=NOW,
        ),
    )
    assert publish_delivery(replace(services, now=lambda: NOW + 299.9), "event-1").status == "delivery_ready"
    assert cms.questions == []
    cms.lookups = ["silent"]
    assert publish_delivery(replace(services, now=lambda: NOW + 300), "event-1").status == "delivery_ready"
    assert state(rows) == ("retry_wait", 5, True, "cms.lookup.http_404")
    assert cms.requests == []


def test_a_process_that_was_held_up_before_its_send_sends_nothing(
    services: Services, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """So that `sent_at` and the deadline bound every send; no attempt is counted, and no doubt remains."""
    moments = iter([0.0, 15.0])
    held_up = replace(services, monotonic=lambda: next(moments))
    assert publish_delivery(held_up, "event-1").status == "delivery_ready"
    assert state(rows) == ("retry_wait", 0, False, "cms.send_window_missed")
    assert (only(rows)["next_attempt_at"], cms.requests) == (NOW, [])


# --- guided sites -----------------------------------------------------------------------------------------------------


def test_a_guided_site_is_published_only_under_a_permit(
    services: Services, engine: Engine, rows: Rows, cms: FakeCms, policies: FixedPolicies, prepared: str
) -> None:
    """A release run's step writes it; without one nothing is claimed."""
    policies.policy = SitePolicy(publication="guided")
    assert publish_delivery(services, "event-1").status == "delivery_ready"
    assert (state(rows), cms.requests) == (("pending", 0, False, None), [])
    permit = {"delivery_id": prepared, "run_id": "rr-1", "attempt_id": "a-1", "granted_at": NOW}
    run(engine, insert(delivery_permits).values(**permit))
    assert publish_delivery(services, "event-1").status == "delivered"


def test_in_doubt_a_guided_site_is_asked_without_a_permit_but_not_sent_to(
    services: Services, engine: Engine, rows: Rows, cms: FakeCms, policies: FixedPolicies, prepared: str
) -> None:
    """Asking changes nothing; the same bytes go again only under a permit."""
    cms.sends = ["timeout"]
    publish_delivery(services, "event-1")
    policies.policy = SitePolicy(publication="guided")
    assert publish_delivery(replace(services, now=lambda: NOW + 61), "event-1").status == "delivery_ready"
    assert state(rows) == ("retry_wait", 1, False, "cms.delivery.waits_for_permit")
    assert len(cms.requests) == 1


# --- a race -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_", range(6))
def test_a_newer_sequence_racing_a_publication_never_ends_with_the_older_text(
    services: Services, keys: Keyring, rows: Rows, cms: FakeCms, prepared: str, round_: int
) -> None:
    """Intake of the newer text and the older text's send, at once, with answers lost: the newer one is live last."""
    cms.sends = [["accept"], ["lost"], ["timeout"]][round_ % 3]
    start = threading.Barrier(3)
    faults: list[Exception] = []

    def guarded(work: Callable[[], object]) -> Callable[[], None]:
        def runs() -> None:
            start.wait()
            try:
                work()
            except Blocked as refused:
                if refused.code not in {"cms.delivery.failed", "cms.delivery.approval_expired"}:
                    faults.append(refused)

        return runs

    def arrive() -> None:
        newer(services, keys)
        prepare_delivery(services, "event-2")
        publish_delivery(replace(services, worker_id="w-2"), "event-2")

    works = [
        guarded(arrive),
        guarded(lambda: publish_delivery(replace(services, worker_id="w-1"), "event-1")),
        guarded(lambda: publish_delivery(replace(services, worker_id="w-3"), "event-1")),
    ]
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    for seconds in (61, 200, 400):
        moment = NOW + seconds
        for event_id in ("event-2", "event-1", "event-2"):
            publish_delivery(replace(services, now=lambda moment=moment: moment), event_id)
    assert cms.live == {"home.hero": 2}
    sequences = [parse_strict(body, max_bytes=100_000)["document"]["source_sequence"] for _, body in cms.requests]
    assert sequences == sorted(sequences)
    assert sum(row["status"] == "succeeded" and row["event_id"] == "event-2" for row in rows(deliveries)) == 1


def test_renewed_approvals_publish_the_successor(
    services: Services, keys: Keyring, engine: Engine, rows: Rows, cms: FakeCms, prepared: str
) -> None:
    """A delivery that was closed for its approvals is followed by one with fresh ones, and one text goes live."""
    run(engine, update(approvals).values(revoked_at=NOW))
    assert code_of(services) == "cms.delivery.approval_expired"
    approve(services, keys, change_event(), revision="r2")
    successor = prepare_delivery(services, "event-1").delivery_id
    assert publish_delivery(services, "event-1").status == "delivered"
    assert [delivery_id for delivery_id, _ in cms.requests] == [successor]
    assert successor != prepared
