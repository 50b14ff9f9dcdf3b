"""The one sentence about an event: exact words for every state it can wait in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from worker.domain.waiting import (
    DeliveryFacts,
    EventFacts,
    LocaleFacts,
    delivery_sentence,
    gives_up_at,
    next_commands,
    waiting_sentence,
)

NOON = 1_800_014_400.0  # 2027-01-15 12:00 UTC
MINUTE = 60.0


def locale(target_locale: str = "fr-CA", state: Any = "leased", **more: Any) -> LocaleFacts:
    """Return a locale whose row was touched at 11:58, first attempt of five under a lease until 12:03."""
    known: dict[str, Any] = {
        "target_locale": target_locale,
        "job_id": f"job-{target_locale}",
        "state": state,
        "attempts": 1,
        "max_attempts": 5,
        "next_attempt_at": NOON - 2 * MINUTE,
        "since": NOON - 2 * MINUTE,
    }
    if state == "leased":
        known |= {"lease_owner": "w-7", "lease_expires_at": NOON + 3 * MINUTE}
    return LocaleFacts(**(known | more))


def event(*locales: LocaleFacts, state: str = "open", **more: Any) -> EventFacts:
    return EventFacts(
        event_id="event-1",
        state=state,
        locales=locales,
        **({"superseded_by": None, "since": NOON - MINUTE, "now": NOON} | more),
    )


def delivery(status: str = "pending", **more: Any) -> DeliveryFacts:
    """Return a delivery prepared at 11:50."""
    known: dict[str, Any] = {
        "delivery_id": "delivery-1",
        "event_id": "event-1",
        "site_id": "www",
        "source_id": "home",
        "source_sequence": 1,
        "attempts": 0,
        "max_attempts": 5,
        "next_attempt_at": NOON - 10 * MINUTE,
        "lease_owner": None,
        "lease_expires_at": None,
        "code": None,
        "in_doubt": False,
        "doubt_since_at": None,
        "sent_at": None,
        "lookups": 0,
        "acknowledged_at": None,
        "created_at": NOON - 10 * MINUTE,
        "updated_at": NOON - 10 * MINUTE,
    }
    return DeliveryFacts(**(known | {"status": status} | more))


def test_the_sentence_of_the_contract() -> None:
    """What it waits for, since when, who holds the lease until when, and when it gives up."""
    facts = event(locale(need="human receipt"), locale("de", "approved"))
    # after 12:03 four more attempts: waits of 10, 20 and 40 seconds after the second, third and fourth
    assert waiting_sentence(facts) == (
        "waiting for: fr-CA, human receipt; since 11:58 UTC; lease held by w-7 until 12:03 UTC; gives up at 12:04 UTC"
    )
    assert next_commands(facts) == ()


def test_a_retry_says_when_and_after_what() -> None:
    """The next attempt, the code that stopped the last one, and how many are left."""
    one = locale(state="retrying", attempts=3, next_attempt_at=NOON + 20 * MINUTE, code="evidence.unavailable")
    assert waiting_sentence(event(one)) == (
        "waiting for: fr-CA, quality receipt; since 11:58 UTC; "
        "next attempt at 12:20 UTC after evidence.unavailable (3 of 5); gives up at 12:20 UTC"
    )


def test_a_translation_alone_has_no_since() -> None:
    """Nobody knows since when a translation is missing but the pipeline."""
    assert waiting_sentence(event(locale(state="untranslated", since=None))) == "waiting for: fr-CA, a translation"


def test_a_due_row_waits_for_a_worker() -> None:
    """Nothing but a free worker is missing; the fleet goes on by itself."""
    facts = event(locale(state="due", attempts=0))
    assert waiting_sentence(facts) == (
        "waiting for: fr-CA, quality receipt; since 11:58 UTC; due now, as soon as a worker is free; gives up at 12:01 UTC"
    )
    assert next_commands(facts) == ()


def test_many_locales_are_grouped_by_what_they_need() -> None:
    """Three names and a count for each need; several leases are told by one owner and the number of the others."""
    facts = event(
        *(locale(name, "untranslated", since=None) for name in ("es", "it", "de", "nl", "pt-BR")),
        locale("ja", lease_owner="w-9", need="independent or human receipt"),
        locale("ko", need="independent or human receipt", lease_expires_at=NOON + MINUTE),
    )
    assert waiting_sentence(facts) == (
        "waiting for: de, es, it and 2 more, a translation and ja, ko, independent or human receipt; since 11:58 UTC; "
        "leases held by w-7 and 1 more until 12:03 UTC; gives up at 12:04 UTC"
    )
    assert next_commands(facts) == ("locseal submit FILE",)


def test_a_failed_locale_waits_for_an_operator() -> None:
    """Nothing more happens by itself, so no time is promised; the command for it is named."""
    facts = event(locale(state="failed", code="evidence.human_receipt.required", need="human receipt"))
    assert waiting_sentence(facts) == (
        "waiting for: fr-CA, human receipt (failed); since 11:58 UTC; "
        "stopped by evidence.human_receipt.required, until an operator acts"
    )
    assert next_commands(facts) == ("locseal evidence retry event-1",)


@pytest.mark.parametrize(("state", "need"), [("lapsed", "a renewed approval"), ("unasked", "an operator's renewal")])
def test_what_only_a_renewal_can_mend(state: Any, need: str) -> None:
    """An approval that lapsed, or a result nobody was asked about."""
    facts = event(locale(state=state))
    assert waiting_sentence(facts) == f"waiting for: fr-CA, {need}; since 11:58 UTC"
    assert next_commands(facts) == ("locseal evidence renew event-1",)


def test_all_approved_waits_for_preparation() -> None:
    """The time is that of the last approval."""
    facts = event(locale(state="approved"), locale("de", "approved", since=NOON - 5 * MINUTE))
    assert waiting_sentence(facts) == (
        "waiting for: its delivery to be prepared; since 11:58 UTC; the next sweep does it"
    )


@pytest.mark.parametrize(
    ("one", "more", "sentence"),
    [
        (
            delivery(),
            {},
            (
                "waiting for: the CMS to accept the delivery; since 11:50 UTC; "
                "next attempt is due now, as soon as a worker is free; gives up at 12:01 UTC"
            ),
        ),
        (
            delivery("leased", lease_owner="w-3", lease_expires_at=NOON + MINUTE, in_doubt=True, doubt_since_at=NOON),
            {},
            "waiting for: the CMS's signed word; in doubt since 12:00 UTC; lease held by w-3 until 12:01 UTC",
        ),
        (
            delivery("retry_wait", attempts=2, next_attempt_at=NOON + 5 * MINUTE, code="cms.delivery.http_429"),
            {},
            (
                "waiting for: the CMS to accept the delivery; since 11:50 UTC; "
                "next attempt at 12:05 UTC after cms.delivery.http_429 (2 of 5); gives up at 12:06 UTC"
            ),
        ),
        (
            delivery(
                "retry_wait",
                attempts=2,
                next_attempt_at=NOON + 5 * MINUTE,
                code="cms.delivery.timeout",
                in_doubt=True,
                doubt_since_at=NOON - 3 * MINUTE,
            ),
            {},
            (
                "waiting for: the CMS's signed word; in doubt since 11:57 UTC; "
                "next look-up at 12:05 UTC after cms.delivery.timeout (2 of 5)"
            ),
        ),
        (
            delivery("retry_wait", attempts=5, in_doubt=True, doubt_since_at=NOON - 3 * MINUTE),
            {},
            (
                "waiting for: the CMS's signed word; in doubt since 11:57 UTC; "
                "next look-up is due now, as soon as a worker is free; gives up at 2027-01-16 11:57 UTC"
            ),
        ),
        (
            delivery(),
            {"older_delivery_id": "delivery-0"},
            (
                "waiting for: the CMS to accept the delivery; since 11:50 UTC; "
                "not before the older delivery delivery-0 is settled"
            ),
        ),
        (
            delivery(),
            {"needs_permit": True},
            (
                "waiting for: the CMS to accept the delivery; since 11:50 UTC; "
                "not before a release run publishes it, since the site is guided"
            ),
        ),
        (
            delivery("failed", code="cms.delivery.approval_expired"),
            {},
            "the delivery failed with cms.delivery.approval_expired at 11:50 UTC; nothing happens until an operator acts",
        ),
        (
            delivery("failed", code="cms.outcome_unknown", in_doubt=True),
            {},
            "waiting for: an operator's word on what the CMS has; outcome unknown since 11:50 UTC",
        ),
        (
            delivery("succeeded", acknowledged_at=NOON - 86_400),
            {"state": "delivered"},
            "published at 2027-01-14 12:00 UTC",
        ),
    ],
)
def test_sentences_of_deliveries(one: DeliveryFacts, more: dict[str, Any], sentence: str) -> None:
    """Each state of the delivery that speaks for the event has its sentence."""
    facts = event(locale(state="approved"), delivery=one, **more)
    assert waiting_sentence(facts) == sentence
    if not {"older_delivery_id", "needs_permit"} & set(more):
        assert delivery_sentence(one, now=NOON) == sentence


@pytest.mark.parametrize(
    ("one", "more", "commands"),
    [
        (delivery(), {}, ()),
        (delivery(), {"needs_permit": True}, ("locseal runs list",)),
        (delivery("failed", code="x"), {}, ("locseal deliveries retry event-1", "locseal evidence renew event-1")),
        (delivery("failed", code="cms.outcome_unknown"), {}, ("locseal deliveries reconcile delivery-1",)),
        (
            delivery("failed", code="cms.outcome_unknown"),
            {"state": "superseded"},
            ("locseal deliveries reconcile delivery-1",),
        ),
        (delivery("succeeded"), {"state": "delivered"}, ()),
        (delivery("failed", code="superseded"), {"state": "superseded"}, ()),
    ],
)
def test_commands_of_deliveries(one: DeliveryFacts, more: dict[str, Any], commands: tuple[str, ...]) -> None:
    """Only where an operator can do something a command is named."""
    assert next_commands(event(locale(state="approved"), delivery=one, **more)) == commands


def test_how_events_end() -> None:
    """Superseded and withdrawn say so; while a delivery of theirs is in flight, that comes first."""
    assert waiting_sentence(event(locale(), state="withdrawn")) == "withdrawn since 11:59 UTC"
    gone = event(locale(), state="superseded", superseded_by="event-2")
    assert waiting_sentence(gone) == "superseded by event-2 since 11:59 UTC"
    stale = replace(gone, superseded_by=None)
    assert waiting_sentence(stale) == "superseded by a newer sequence at the CMS since 11:59 UTC"
    flying = replace(gone, delivery=delivery("retry_wait", in_doubt=True, doubt_since_at=NOON))
    assert waiting_sentence(flying).startswith("waiting for: the CMS's signed word; in doubt since 12:00 UTC")
    closed = replace(gone, delivery=delivery("failed", code="superseded"))
    assert waiting_sentence(closed) == "superseded by event-2 since 11:59 UTC"


@pytest.mark.parametrize(
    ("attempts", "max_attempts", "seconds"),
    [(0, 1, 0.0), (0, 5, 75.0), (1, 5, 70.0), (4, 5, 0.0), (5, 5, 0.0), (0, 20, 37_515.0)],
)
def test_when_it_gives_up(attempts: int, max_attempts: int, seconds: float) -> None:
    """The last attempt is due after all the waits before it; the whole schedule of twenty attempts is 37,515 s."""
    assert gives_up_at(NOON, attempts, max_attempts) == NOON + seconds


def test_a_review_that_takes_days_is_given_up_at_its_deadline() -> None:
    """Since when the reviewer has it, when it is asked again, and the deadline of the policy in place of attempts."""
    one = locale(
        state="retrying",
        attempts=0,
        code="evidence.not_yet",
        need="human receipt",
        next_attempt_at=NOON + 30 * MINUTE,
        awaited_since_at=NOON - 60 * MINUTE,
        gives_up_at=NOON + 640 * MINUTE,
    )
    assert waiting_sentence(event(one)) == (
        "waiting for: fr-CA, human receipt; since 11:58 UTC; accepted by the reviewer, not finished since 11:00 UTC; "
        "asked again at 12:30 UTC; gives up at 22:40 UTC"
    )


def test_a_delivery_that_is_being_renewed_says_so() -> None:
    """In doubt it cannot give way, so then nothing is said of it."""
    renewed = delivery(renewal_asked_at=NOON - 5 * MINUTE)
    assert "its approvals are being renewed since 11:55 UTC" in waiting_sentence(event(delivery=renewed))
    doubtful = replace(renewed, in_doubt=True, doubt_since_at=NOON)
    assert "renewed" not in waiting_sentence(event(delivery=doubtful))


@pytest.mark.parametrize(
    ("one", "needs_permit", "commands"),
    [
        (delivery(), False, ("locseal evidence renew event-1",)),
        (delivery(), True, ("locseal runs list", "locseal evidence renew event-1")),
        (delivery("retry_wait", in_doubt=True, doubt_since_at=NOON), False, ()),
    ],
)
def test_approvals_that_lapsed_under_an_open_delivery(
    one: DeliveryFacts, needs_permit: bool, commands: tuple[str, ...]
) -> None:
    """A renewal is what helps, while it is unsent; in doubt its outcome comes first."""
    facts = event(locale(state="lapsed"), delivery=one, needs_permit=needs_permit)
    assert next_commands(facts) == commands
