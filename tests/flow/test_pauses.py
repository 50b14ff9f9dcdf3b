"""Pauses: rows that claims, deliveries and sweeps respect, on both databases, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select

from tests.builders import NOW, Keyring, change_event
from tests.delivery_builders import approved_event
from tests.fake_cms import FakeCms
from tests.fakes import RecordingQueue
from tests.intake_builders import submit
from worker.domain.errors import Blocked
from worker.domain.hold import Pause
from worker.domain.review import Collected
from worker.domain.waiting import waiting_sentence
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.engine import reading, writing
from worker.store.pauses import Held, held_by, pause, pauses_in_force, resume
from worker.store.schema import deliveries, pauses
from worker.store.views import find_event_view

At = Callable[[float], Services]
ALL = Pause(scope="all", name="", owner="ops", reason="index rebuild")
SITE = Pause(scope="site", name="site-1", owner="ops", reason="launch", until_at=NOW + 600)
ROUTE = Pause(scope="provider", name="default", owner="ops", reason="contract", until_at=NOW + 600)


def stop(engine: Engine, wanted: Pause) -> None:
    writing(engine, lambda conn: pause(conn, wanted, now=NOW))


def go_on(engine: Engine, wanted: Pause, now: float = NOW) -> bool:
    return writing(engine, lambda conn: resume(conn, wanted.scope, wanted.name, now=now))


def collect(services: Services) -> Collected:
    return collect_evidence(services, None, ready=lambda _: None)


def sentence(services: Services, event_id: str = "event-1") -> str:
    accepted = services.policies.for_site("site-1").accepted
    with reading(services.engine) as conn:
        view = find_event_view(
            conn, event_id, accepted=accepted, is_guided=False, review_deadline_seconds=3600.0, now=services.now()
        )
    assert view is not None
    return waiting_sentence(view.facts)


@pytest.mark.parametrize("wanted", [ALL, SITE, ROUTE], ids=lambda one: one.scope)
def test_nothing_new_is_asked_while_paused(wanted: Pause, services: Services, keys: Keyring, engine: Engine) -> None:
    """Each scope stops the claim; the resume says that it was paused, and everything goes on with no attempt lost."""
    submit(services, keys, change_event(target_locales=["de", "fr"]))
    stop(engine, wanted)
    assert collect(services) == Collected()
    assert go_on(engine, wanted) is True
    assert go_on(engine, wanted) is False
    assert collect(services) == Collected(claimed=2, approved=2)


def test_other_sites_and_routes_go_on(services: Services, keys: Keyring, engine: Engine) -> None:
    """A pause of another site and of another route holds nothing here back."""
    submit(services, keys, change_event(target_locales=["de"]))
    stop(engine, replace(SITE, name="site-2"))
    stop(engine, replace(ROUTE, name="lawyers"))
    assert collect(services) == Collected(claimed=1, approved=1)


def test_a_pause_ends_by_itself(services: Services, at: At, keys: Keyring, engine: Engine) -> None:
    """Until its end it holds, from its end on it does not, and it is listed no more."""
    submit(services, keys, change_event(target_locales=["de"]))
    stop(engine, SITE)
    assert collect(at(NOW + 599.0)) == Collected()
    with reading(engine) as conn:
        assert pauses_in_force(conn, now=NOW + 599.0) == (SITE,)
        assert pauses_in_force(conn, now=NOW + 600.0) == ()
    assert collect(at(NOW + 600.0)) == Collected(claimed=1, approved=1)


def test_a_delivery_is_not_sent_while_paused(services: Services, at: At, keys: Keyring, engine: Engine) -> None:
    """Its claim reads the pause under the lock of the source; no attempt, no call, and the sentence says who and why."""
    cms = FakeCms(keys)
    services = replace(services, cms=lambda _: cms)
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    stop(engine, SITE)
    assert publish_delivery(services, "event-1").status == "delivery_ready"
    assert cms.requests == []
    with reading(engine) as conn:
        row = conn.execute(select(deliveries)).mappings().one()
    assert (row["status"], row["attempts"]) == ("pending", 0)
    assert "paused by ops until " in sentence(services)
    assert sentence(services).endswith(": launch")
    go_on(engine, SITE)
    assert publish_delivery(services, "event-1").status == "delivered"


def test_a_delivery_in_doubt_is_still_looked_up(services: Services, at: At, keys: Keyring, engine: Engine) -> None:
    """A look-up starts nothing new, so it goes on; what is absent then is not sent again before the resume."""
    cms = FakeCms(keys, sends=["timeout"])
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    publish_delivery(replace(services, cms=lambda _: cms), "event-1")
    stop(engine, ALL)
    later = replace(at(NOW + 300.0), cms=lambda _: cms)
    assert publish_delivery(later, "event-1").status == "delivery_ready"
    assert (len(cms.questions), len(cms.requests)) == (1, 1)
    with reading(engine) as conn:
        row = conn.execute(select(deliveries)).mappings().one()
    assert (row["in_doubt"], row["last_error_code"]) == (False, "cms.delivery.waits_for_pause")


def test_a_sweep_wakes_nothing_that_is_paused(services: Services, at: At, keys: Keyring, engine: Engine) -> None:
    """Neither locales nor deliveries are woken; after the resume both are, within the recovery bound."""
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    submit(services, keys, change_event(event_id="event-2", source_id="other", target_locales=["de"]))
    stop(engine, ALL)
    queue = RecordingQueue()
    swept = sweep_fleet(replace(services, queue=queue))
    assert (swept.publishes, swept.collects, queue.sent) == ((), (), [])
    go_on(engine, ALL)
    swept = sweep_fleet(replace(at(NOW + 11.0), queue=queue))
    assert (swept.publishes, swept.collects) == (("event-1",), ("event-2",))


def test_a_dry_run_says_how_much_would_run(services: Services, keys: Keyring, engine: Engine) -> None:
    """Due locales and deliveries of the scope, less what another pause keeps back anyway; nothing changes."""
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    submit(services, keys, change_event(event_id="event-2", source_id="other", target_locales=["de", "fr"]))
    stop(engine, ALL)
    stop(engine, ROUTE)
    with reading(engine) as conn:
        assert held_by(conn, "all", "", now=NOW) == Held(evidence=0, deliveries=1)
        assert held_by(conn, "provider", "default", now=NOW) == Held(evidence=0, deliveries=0)
        assert held_by(conn, "all", "", now=NOW + 600.0) == Held(evidence=2, deliveries=1)
        assert len(pauses_in_force(conn, now=NOW)) == 2


def test_the_sentence_of_a_paused_locale(services: Services, keys: Keyring, engine: Engine) -> None:
    """It names owner, end and reason in place of what would happen next."""
    submit(services, keys, change_event(target_locales=["de"]))
    stop(engine, ROUTE)
    said = sentence(services)
    assert "; paused by ops until " in said
    assert said.endswith(": contract")
    assert "due now" not in said


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"name": "a b"}, "pause.name.invalid"),
        ({"name": ""}, "pause.name.invalid"),
        ({"owner": "A. Nother"}, "pause.owner.invalid"),
        ({"reason": " "}, "pause.reason.invalid"),
        ({"reason": "two\nlines"}, "pause.reason.invalid"),
        ({"reason": "x" * 201}, "pause.reason.invalid"),
        ({"until_at": NOW}, "pause.until.invalid"),
        ({"until_at": float("nan")}, "pause.until.invalid"),
    ],
)
def test_a_pause_that_says_too_little_is_refused(changed: dict[str, Any], code: str, engine: Engine) -> None:
    """Each fault has its code, and nothing is stored."""
    with pytest.raises(Blocked) as refused:
        stop(engine, replace(SITE, **changed))
    assert refused.value.code == code
    with reading(engine) as conn:
        assert conn.execute(select(pauses)).all() == []
