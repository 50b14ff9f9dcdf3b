"""Read models on both databases: every row in its place, pages that join without gap or repeat, no text anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
from sqlalchemy import Engine, insert, update

from tests.builders import NOW, Keyring, change_event, job_for, results_for, signed_submission
from tests.delivery_builders import approve, approved_event, submit
from tests.fakes import FixedPolicies, RecordingQueue, counting
from worker.domain.policy import SitePolicy
from worker.domain.waiting import EventFacts
from worker.flow.accept_submission import accept_submission
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.services import Deadlines, Services
from worker.store.delivery_views import list_deliveries
from worker.store.engine import reading, writing
from worker.store.event_lists import EventFilter, list_events
from worker.store.schema import approvals, deliveries, delivery_permits, events, evidence, jobs
from worker.store.views import (
    EventView,
    find_event_view,
    site_of_event,
    submission_state,
)

POLICY = SitePolicy()


@pytest.fixture
def keys() -> Keyring:
    return Keyring(sites=("site-1", "site-2"))


@pytest.fixture
def services(engine: Engine, keys: Keyring) -> Services:
    """Enough of the services for intake and preparation."""
    return Services(
        engine=engine,
        worker_id="w-test",
        policies=FixedPolicies(),
        providers={},
        verifiers={},
        cms=lambda _site: pytest.fail("nothing is sent here"),
        keys=keys,
        queue=RecordingQueue(),
        calls=None,  # type: ignore[arg-type]
        deadlines=Deadlines(),
        now=lambda: NOW,
    )


def view(engine: Engine, event_id: str = "event-1", *, now: float = NOW, **more: Any) -> EventView:
    options: dict[str, Any] = {"accepted": POLICY.accepted, "is_guided": False} | more
    with reading(engine) as conn:
        found = find_event_view(conn, event_id, now=now, **options)
    assert found is not None
    return found


def states(facts: EventFacts) -> dict[str, str]:
    return {one.target_locale: one.state for one in facts.locales}


def change(engine: Engine, *statements: Any) -> None:
    """Change rows behind the product's back."""

    def work(conn: Any) -> None:
        for statement in statements:
            conn.execute(statement)

    writing(engine, work)


def test_an_unknown_event_is_none(engine: Engine) -> None:
    """Neither a view nor a site."""
    with reading(engine) as conn:
        assert find_event_view(conn, "event-1", accepted=POLICY.accepted, is_guided=False) is None
        assert site_of_event(conn, "event-1") is None
        assert submission_state(conn, "0" * 64) is None


def test_every_state_of_a_locale(services: Services, keys: Keyring, engine: Engine) -> None:
    """Untranslated, due, retrying, leased, failed, lapsed, unasked and approved are told apart."""
    locales = ["de", "es", "fr-CA", "it", "ja", "ko", "nl", "pt-BR"]
    event = change_event(target_locales=locales)
    accept_submission(services, signed_submission(keys, event, results_for(event, locales=locales[1:])))
    approve(services, keys, event, locales=["pt-BR"])
    job = {name: job_for(event, name).job_id for name in locales}
    row = evidence.c.job_id
    change(
        engine,
        update(evidence)
        .where(row == job["fr-CA"])
        .values(status="retry_wait", attempts=2, next_attempt_at=NOW + 20, last_error_code="evidence.unavailable"),
        update(evidence)
        .where(row == job["it"])
        .values(status="leased", attempts=1, lease_owner="w-7", lease_token="canary", lease_expires_at=NOW + 300),
        update(evidence).where(row == job["ja"]).values(status="failed", attempts=5, last_error_code="evidence.x"),
        update(evidence).where(row == job["ko"]).values(status="succeeded", attempts=1),
        evidence.delete().where(row == job["nl"]),
    )
    found = view(engine)
    assert states(found.facts) == {
        "de": "untranslated",
        "es": "due",
        "fr-CA": "retrying",
        "it": "leased",
        "ja": "failed",
        "ko": "lapsed",
        "nl": "unasked",
        "pt-BR": "approved",
    }
    by_name = {one.target_locale: one for one in found.facts.locales}
    assert (by_name["fr-CA"].attempts, by_name["fr-CA"].max_attempts) == (2, 5)
    assert (by_name["fr-CA"].next_attempt_at, by_name["fr-CA"].code) == (NOW + 20, "evidence.unavailable")
    assert (by_name["it"].lease_owner, by_name["it"].lease_expires_at) == ("w-7", NOW + 300)
    assert by_name["pt-BR"].approval_expires_at == NOW + POLICY.approval_ttl_seconds
    assert by_name["de"].since is None
    assert "canary" not in repr(found)
    assert "Welcome" not in repr(found)
    assert [(one.kind, one.kid, one.accepted_at) for one in found.documents] == [("release", "submission-1", NOW)]


@pytest.mark.parametrize(
    ("changes", "confidence", "need"),
    [
        ({}, "high", "quality receipt"),
        ({}, "low", "independent or human receipt"),
        ({"content_type": "legal"}, "high", "human receipt"),
    ],
)
def test_the_receipt_that_a_result_needs(
    services: Services, keys: Keyring, engine: Engine, changes: dict[str, Any], confidence: str, need: str
) -> None:
    """Told by the flags of the stored result, on both databases alike."""
    event = change_event(target_locales=["de"], **changes)
    accept_submission(services, signed_submission(keys, event, results_for(event, confidence=confidence)))
    assert [one.need for one in view(engine).facts.locales] == [need]


def test_an_approval_counts_only_while_it_stands_for_the_policy_and_the_result(
    services: Services, keys: Keyring, engine: Engine
) -> None:
    """Expired, revoked, under another policy, or for a replaced result: not approved."""
    approved_event(services, keys, target_locales=["de"])
    change(engine, update(evidence).values(status="succeeded"))
    assert states(view(engine).facts) == {"de": "approved"}
    expires_at = NOW + POLICY.approval_ttl_seconds
    assert states(view(engine, now=expires_at - 0.5).facts) == {"de": "approved"}
    assert states(view(engine, now=expires_at).facts) == {"de": "lapsed"}
    assert states(view(engine, accepted=frozenset({"0" * 64})).facts) == {"de": "lapsed"}
    change(engine, update(jobs).values(current_result_sha256="1" * 64))
    assert states(view(engine).facts) == {"de": "unasked"}
    change(engine, update(jobs).values(current_result_sha256=None))
    assert states(view(engine).facts) == {"de": "untranslated"}


def test_the_delivery_that_speaks_and_what_holds_it_back(services: Services, keys: Keyring, engine: Engine) -> None:
    """A guided site's delivery needs a permit; an older unsettled one of the source goes first; failed ones come last."""
    approved_event(services, keys)
    delivery_id = prepare_delivery(services, "event-1").delivery_id
    free = view(engine).facts
    assert free.delivery is not None
    assert (free.delivery.delivery_id, free.delivery.status) == (delivery_id, "pending")
    assert (free.needs_permit, free.older_delivery_id) == (False, None)
    assert view(engine, is_guided=True).facts.needs_permit
    change(
        engine,
        insert(delivery_permits).values(delivery_id=delivery_id, run_id="r", attempt_id="a", granted_at=NOW),
    )
    assert not view(engine, is_guided=True).facts.needs_permit
    with reading(engine) as conn:
        stored = dict(conn.execute(deliveries.select()).mappings().one())
    older = stored | {"delivery_id": "delivery-older", "event_id": "event-0", "source_sequence": 0}
    older |= {"status": "failed", "last_error_code": "cms.outcome_unknown"}
    failed = stored | {"delivery_id": "delivery-failed", "status": "failed", "created_at": NOW + 5}
    change(engine, insert(deliveries).values(older), insert(deliveries).values(failed))
    held = view(engine)
    assert held.facts.older_delivery_id == "delivery-older"
    assert [one.delivery_id for one in held.deliveries] == [delivery_id, "delivery-failed"]
    assert held.facts.delivery == held.deliveries[0]


def test_events_are_listed_in_pages_newest_first(services: Services, keys: Keyring, engine: Engine) -> None:
    """Pages join without gap or repeat also where times are equal; filters narrow; counts and deliveries are right."""
    for number in range(7):
        at = replace(services, now=lambda number=number: NOW + number // 2)
        event = change_event(event_id=f"event-{number}", source_id=f"source-{number}", site_id=f"site-{1 + number % 2}")
        submit(at, keys, event)
        if number == 3:
            approve(at, keys, event, locales=["de"])
        if number == 4:
            approve(at, keys, event)
            prepare_delivery(at, "event-4")
    change(engine, update(events).where(events.c.event_id == "event-5").values(state="withdrawn"))
    with reading(engine) as conn:
        pages, before = [], None
        while page := list_events(conn, limit=3, before=before, now=NOW + 10):
            pages.append([one.event_id for one in page])
            before = (page[-1].created_at, page[-1].event_id)
        assert pages == [["event-6", "event-5", "event-4"], ["event-3", "event-2", "event-1"], ["event-0"]]
        found = {one.event_id: one for one in list_events(conn, limit=50, now=NOW + 10)}
        assert [one.event_id for one in list_events(conn, EventFilter(state="withdrawn"), limit=9)] == ["event-5"]
        assert len(list_events(conn, EventFilter(site_id="site-2"), limit=9)) == 3
        assert list_events(conn, EventFilter(website_version="none"), limit=9) == ()
    assert (found["event-3"].approved, found["event-3"].locales, found["event-3"].delivery_status) == (1, 2, None)
    assert (found["event-4"].approved, found["event-4"].locales, found["event-4"].delivery_status) == (2, 2, "pending")
    assert (found["event-0"].approved, found["event-5"].state) == (0, "withdrawn")


def test_deliveries_are_listed_in_pages_and_filtered(services: Services, keys: Keyring, engine: Engine) -> None:
    """Newest first, equal times by id; each filter by itself."""
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    with reading(engine) as conn:
        stored = dict(conn.execute(deliveries.select()).mappings().one())
    change(engine, deliveries.delete())
    rows = [
        stored | {"delivery_id": f"d-{number}", "event_id": f"e-{number}", "created_at": NOW + number // 2}
        for number in range(5)
    ]
    rows[1] |= {"status": "failed", "last_error_code": "cms.outcome_unknown", "in_doubt": True}
    rows[2] |= {"site_id": "other"}
    change(engine, *(insert(deliveries).values(row) for row in rows))
    with reading(engine) as conn:

        def ids(**wanted: Any) -> list[str]:
            return [one.delivery_id for one in list_deliveries(conn, limit=2, **wanted)]

        assert ids() == ["d-4", "d-3"]
        assert ids(before=(NOW + 1, "d-3")) == ["d-2", "d-1"]
        assert ids(before=(NOW, "d-1")) == ["d-0"]
        assert ids(status="failed") == ids(code="cms.outcome_unknown") == ids(in_doubt=True) == ["d-1"]
        assert ids(site_id="other") == ["d-2"]
        assert ids(event_id="e-4") == ["d-4"]
        (one,) = list_deliveries(conn, limit=1, event_id="e-1")
    assert (one.code, one.in_doubt) == ("cms.outcome_unknown", True)
    assert "payload" not in asdict(one)


def test_what_became_of_a_submission(services: Services, keys: Keyring, engine: Engine) -> None:
    """Accepted with its time; rejected with its code, until the same bytes are accepted after all."""
    event = change_event()
    good = accept_submission(services, signed_submission(keys, event))
    bad = accept_submission(services, "{")
    with reading(engine) as conn:
        accepted = submission_state(conn, good.document_sha256)
        rejected = submission_state(conn, bad.document_sha256)
    assert accepted is not None
    assert (accepted.state, accepted.code, accepted.at) == ("accepted", None, NOW)
    assert rejected is not None
    assert (rejected.state, rejected.code, rejected.at) == ("rejected", "submission.invalid", NOW)


def test_a_view_costs_the_same_for_any_number_of_locales(services: Services, keys: Keyring, engine: Engine) -> None:
    """One event of one or of eight locales is read with the same seven statements at most, a list with one."""

    def cost(look: Callable[[], object]) -> int:
        with counting(engine) as counted:
            look()
        return len(counted.statements)

    submit(services, keys, change_event(target_locales=["de"]))
    submit(
        services,
        keys,
        change_event(
            event_id="event-2", source_id="b", target_locales=["de", "es", "fr", "it", "ja", "ko", "nl", "pl"]
        ),
    )
    assert cost(lambda: view(engine)) == cost(lambda: view(engine, "event-2")) == 8
    with reading(engine) as conn:
        assert cost(lambda: list_events(conn, limit=50, now=NOW)) == 2


def test_unused_tables_stay_empty_after_looking(services: Services, keys: Keyring, engine: Engine) -> None:
    """Looking writes nothing."""
    approved_event(services, keys)
    with reading(engine) as conn:
        before = [tuple(row) for row in conn.execute(events.select())] + [
            tuple(row) for row in conn.execute(approvals.select())
        ]
    view(engine)
    with reading(engine) as conn:
        after = [tuple(row) for row in conn.execute(events.select())] + [
            tuple(row) for row in conn.execute(approvals.select())
        ]
    assert before == after
