"""Advancing: where an event stands, told from rows that are verified again. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, delete, update

from tests.builders import NOW, Keyring, change_event, parsed
from tests.delivery_builders import approve, approved_event, submit
from tests.fake_cms import FakeCms
from worker.domain.errors import Blocked
from worker.flow.advance_event import advance_event
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.schema import approvals, deliveries, events

At = Callable[[float], Services]
EXPIRED_AT = NOW + 2_592_000


@pytest.fixture
def services(services: Services, keys: Keyring) -> Services:
    """The services of a step, with a CMS that accepts."""
    cms = FakeCms(keys=keys)
    return replace(services, cms=lambda _site_id: cms)


def run(engine: Engine, statement: Any) -> None:
    """Change rows behind the product's back."""
    writing(engine, lambda conn: conn.execute(statement))


def code_of(services: Services) -> str:
    """Return the code that advancing raises."""
    with pytest.raises(Blocked) as refused:
        advance_event(services, "event-1")
    return refused.value.code


def test_every_outcome_on_the_straight_way(services: Services, keys: Keyring, everything: Callable[[], object]) -> None:
    """waiting, waiting, approved, delivery_ready, delivered; with the members that apply and no others."""
    event = change_event()
    submit(services, keys, event)
    first, second = parsed(event).jobs
    schema = {"schema": "locseal.outcome.v1", "event_id": "event-1", "plan_id": parsed(event).plan_id}
    waiting = schema | {"status": "waiting"}
    assert advance_event(services, "event-1").to_json() == waiting | {
        "job_id": first.job_id,
        "target_locale": first.target_locale,
    }
    approve(services, keys, event, locales=[first.target_locale])
    assert advance_event(services, "event-1").to_json() == waiting | {
        "job_id": second.job_id,
        "target_locale": second.target_locale,
    }
    approve(services, keys, event, locales=[second.target_locale])
    assert advance_event(services, "event-1").to_json() == schema | {"status": "approved"}
    delivery_id = prepare_delivery(services, "event-1").delivery_id
    before = everything()
    assert advance_event(services, "event-1").to_json() == schema | {
        "status": "delivery_ready",
        "delivery_id": delivery_id,
    }
    assert everything() == before
    publish_delivery(services, "event-1")
    assert advance_event(services, "event-1").to_json() == schema | {
        "status": "delivered",
        "delivery_id": delivery_id,
    }


def test_an_approved_event_of_one_locale_names_its_approval(services: Services, keys: Keyring) -> None:
    """And the job that it stands for."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    (approval_id,) = approve(services, keys, event)
    (job,) = parsed(event).jobs
    advance = advance_event(services, "event-1")
    assert (advance.status, advance.job_id, advance.target_locale, advance.approval_id) == (
        "approved",
        job.job_id,
        "de",
        approval_id,
    )


def test_a_delivery_is_ready_only_with_current_approvals(
    services: Services, keys: Keyring, engine: Engine, at: At
) -> None:
    """Expired or revoked since: `cms.delivery.approval_expired`; a second before, it is ready."""
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    assert advance_event(at(EXPIRED_AT - 1), "event-1").status == "delivery_ready"
    assert code_of(at(EXPIRED_AT)) == "cms.delivery.approval_expired"
    run(engine, update(approvals).values(revoked_at=NOW))
    assert code_of(services) == "cms.delivery.approval_expired"


def test_a_delivered_event_is_history_that_never_expires(
    services: Services, keys: Keyring, engine: Engine, at: At
) -> None:
    """Expiry and revocation after the send are not asked; bytes, hashes and signatures are."""
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    publish_delivery(services, "event-1")
    run(engine, update(approvals).values(revoked_at=NOW))
    assert advance_event(at(EXPIRED_AT + 1), "event-1").status == "delivered"
    run(engine, update(approvals).values(document=approvals.c.document + " "))
    assert code_of(services) == "release.approval.tampered"
    run(engine, update(deliveries).values(payload=deliveries.c.payload + " "))
    assert code_of(services) == "cms.delivery.tampered"


@pytest.mark.parametrize("state", ["superseded", "withdrawn"])
@pytest.mark.parametrize("is_prepared", [True, False])
def test_an_event_that_ended_says_how(
    services: Services, keys: Keyring, engine: Engine, state: str, *, is_prepared: bool
) -> None:
    """With or without a delivery."""
    approved_event(services, keys)
    delivery_id = prepare_delivery(services, "event-1").delivery_id if is_prepared else None
    run(engine, update(events).values(state=state))
    advance = advance_event(services, "event-1")
    assert (advance.status, advance.delivery_id) == (state, delivery_id)


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        ("cms.delivery.http_422", "cms.delivery.failed"),
        ("cms.delivery.approval_expired", "cms.delivery.failed"),
        ("cms.outcome_unknown", "cms.delivery.failed"),
    ],
)
def test_a_failed_delivery_raises(services: Services, keys: Keyring, engine: Engine, code: str, raised: str) -> None:
    """Whatever it failed with."""
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    run(engine, update(deliveries).values(status="failed", last_error_code=code))
    assert code_of(services) == raised


@pytest.mark.parametrize("code", ["cms.delivery.result_replaced", "cms.delivery.renewed"])
def test_a_delivery_that_gave_way_to_a_successor_is_no_failure(
    services: Services, keys: Keyring, engine: Engine, code: str
) -> None:
    """The event goes on by its approvals."""
    event = approved_event(services, keys)
    prepare_delivery(services, "event-1")
    run(engine, update(deliveries).values(status="failed", last_error_code=code))
    assert advance_event(services, "event-1").status == "approved"
    run(engine, delete(approvals))
    assert advance_event(services, "event-1").job_id == parsed(event).jobs[0].job_id


def test_a_tampered_approval_stops_the_event(services: Services, keys: Keyring, engine: Engine) -> None:
    """It is not reported as approved."""
    approved_event(services, keys)
    run(engine, update(approvals).values(signature="e30..AAAA"))
    assert code_of(services) == "release.approval.tampered"


def test_an_unknown_event_is_refused(services: Services) -> None:
    """With its own code."""
    assert code_of(services) == "coordinator.event_id.unknown"
