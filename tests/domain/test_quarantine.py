"""What poison means for sentences, commands and limits of the policy file; the counting itself is in tests/flow."""

from __future__ import annotations

from worker.domain.limits import FleetLimits, calls_allowed, next_call_after, refilled_at
from worker.domain.policy_file import read_policy_file
from worker.domain.turn import DELIVERY_QUARANTINED, UNKNOWN_CODES, Over, Promise, Standing, next_turn
from worker.domain.waiting import DeliveryFacts, EventFacts, delivery_sentence, next_commands

AT = 1_800_000_000.0


def quarantined() -> DeliveryFacts:
    return DeliveryFacts(
        delivery_id="delivery-1",
        event_id="event-1",
        site_id="site-1",
        source_id="home",
        source_sequence=7,
        status="failed",
        attempts=1,
        max_attempts=5,
        next_attempt_at=AT,
        lease_owner=None,
        lease_expires_at=None,
        code=DELIVERY_QUARANTINED,
        in_doubt=True,
        doubt_since_at=AT - 60,
        sent_at=AT - 60,
        lookups=2,
        acknowledged_at=None,
        created_at=AT - 90,
        updated_at=AT,
    )


def test_a_quarantined_delivery_says_that_it_is_in_doubt() -> None:
    """Its sentence names the code and what is waited for, and the command is to reconcile it, not to send it again."""
    found = quarantined()
    said = delivery_sentence(found, now=AT)
    assert "an operator's word on what the CMS has; cms.delivery.quarantined, in doubt, since" in said
    facts = EventFacts(
        event_id="event-1", state="open", superseded_by=None, since=AT, now=AT, locales=(), delivery=found
    )
    assert next_commands(facts) == ("locseal deliveries reconcile delivery-1",)


def test_a_quarantined_delivery_has_no_turn() -> None:
    """It is over, whatever its CMS promises."""
    standing = Standing(
        status="failed",
        code=DELIVERY_QUARANTINED,
        attempts=1,
        max_attempts=5,
        next_attempt_at=AT,
        in_doubt=True,
        event_state="open",
        is_older_unsettled=False,
        is_permitted=True,
        approvals_code=None,
        now=AT,
    )
    for promise in (Promise(has_lookup=True, is_idempotent=True), Promise(has_lookup=False, is_idempotent=False)):
        assert next_turn(standing, promise) == Over(status="failed", code=DELIVERY_QUARANTINED)
    assert DELIVERY_QUARANTINED in UNKNOWN_CODES


def test_the_rates_of_a_policy_file() -> None:
    """Those of a route, of a named site, and of every other site for itself."""
    found = read_policy_file(
        {
            "default": {"review_limits": {"calls_per_second": 2}},
            "sites": {"shop": {"review_limits": {"concurrent_calls": 4}}, "blog": {}},
            "providers": {"lab": {"limits": {"calls_per_second": 9}}},
        }
    ).limits
    assert found == FleetLimits(
        rates={"lab": 9.0},
        sites={"shop": 4, "blog": None},
        site_rates={"shop": None, "blog": 2.0},
        other_sites_rate=2.0,
    )
    assert (found.rate_of_site("shop"), found.rate_of_site("blog"), found.rate_of_site("any")) == (None, 2.0, 2.0)
    assert (found.is_any, found.has_rates, FleetLimits(site_rates={"shop": None}).is_any) == (True, True, False)


def test_a_rate_allows_a_call_when_it_says() -> None:
    """At the very moment that `refilled_at` names, and not before."""
    for rate in (0.1, 3.0, 7.0, 1000.0):
        after = next_call_after(rate, 0.0, AT, calls_allowed(rate, 0.0, AT))
        free_at = refilled_at(rate, after)
        assert calls_allowed(rate, after, free_at - 0.5 / rate) == 0
        assert calls_allowed(rate, after, free_at + 1e-6) == 1
