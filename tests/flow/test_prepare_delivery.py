"""Preparing: only when every locale is approved, exactly once, the same bytes whoever prepares."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table, delete, update

from tests.builders import NOW, Keyring, approval_for, change_event, parsed, request_for
from tests.delivery_builders import approve, approved_event, stored_approval, submit
from tests.fakes import Checkpoints, Crash, FixedPolicies, RecordingQueue, counting
from worker.domain.approval import approval_id_of
from worker.domain.canonical import parse_strict, sha256_hex
from worker.domain.errors import Blocked
from worker.domain.policy import SitePolicy
from worker.domain.signature import verify_detached
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.retry_delivery import retry_delivery
from worker.flow.services import Services
from worker.store.approvals import insert_approvals
from worker.store.engine import writing
from worker.store.schema import approvals, deliveries, delivery_history, events, jobs, results

Rows = Callable[[Table], list[dict[str, Any]]]
At = Callable[[float], Services]


def run(engine: Engine, *statements: Any) -> None:
    """Change rows behind the product's back."""

    def work(conn: Any) -> None:
        for statement in statements:
            conn.execute(statement)

    writing(engine, work)


def code_of(services: Services) -> str:
    """Return the code that preparing raises."""
    with pytest.raises(Blocked) as refused:
        prepare_delivery(services, "event-1")
    return refused.value.code


def test_an_event_is_prepared_once_every_locale_is_approved(
    services: Services, keys: Keyring, rows: Rows, queue: RecordingQueue
) -> None:
    """Until then it waits for the first job of the plan that lacks an approval, and nothing is written or sent."""
    event = change_event()
    submit(services, keys, event)
    queue.take()
    first, second = parsed(event).jobs
    waiting = prepare_delivery(services, "event-1")
    assert (waiting.status, waiting.job_id, waiting.target_locale) == ("waiting", first.job_id, first.target_locale)
    approve(services, keys, event, locales=[first.target_locale])
    assert prepare_delivery(services, "event-1").job_id == second.job_id
    assert (rows(deliveries), queue.take()) == ([], [])
    approve(services, keys, event, locales=[second.target_locale])

    ready = prepare_delivery(services, "event-1")

    (row,) = rows(deliveries)
    assert (ready.status, ready.delivery_id) == ("delivery_ready", row["delivery_id"])
    assert (row["status"], row["attempts"], row["max_attempts"], row["in_doubt"]) == ("pending", 0, 5, False)
    assert (row["next_attempt_at"], row["created_at"], row["updated_at"]) == (NOW, NOW, NOW)
    assert row["payload_sha256"] == sha256_hex(row["payload"])
    verify_detached(keys.trust("publication"), row["payload"].encode(), row["signature"], code="bad")
    payload = parse_strict(row["payload"], max_bytes=1_000_000)
    assert [entry["locale"] for entry in payload["localizations"]] == ["de", "fr-CA"]
    assert queue.take() == [("delivery.publish", {"event_id": "event-1"})]


def test_preparing_again_returns_the_same_and_writes_nothing(
    services: Services, keys: Keyring, queue: RecordingQueue, everything: Callable[[], object]
) -> None:
    """Whether it runs twice, late, or after further approvals of the same jobs."""
    event = approved_event(services, keys)
    first = prepare_delivery(services, "event-1")
    before = everything()
    queue.take()
    assert prepare_delivery(services, "event-1") == first
    assert (everything(), queue.take()) == (before, [])
    approve(services, keys, event, approved_at=NOW + 1, revision="r2")
    assert prepare_delivery(services, "event-1") == first
    assert queue.take() == []


def test_preparing_takes_three_statements_and_one_commit(services: Services, keys: Keyring) -> None:
    """Load, lock, insert; the same for two locales as for many. A process's first also keeps the key it signed with."""
    counts = []
    for number, locales in enumerate((["de"], ["de", "fr", "es", "it", "nl", "pl", "pt", "sv", "da", "fi"])):
        approved_event(services, keys, event_id=f"e-{number}", source_id=f"s-{number}", target_locales=locales)
        with counting(services.engine) as counted:
            assert prepare_delivery(services, f"e-{number}").status == "delivery_ready"
        counts.append((len(counted.statements), counted.commits))
    assert counts == [(4, 1), (3, 1)]


def test_preparers_at_once_make_one_delivery(services: Services, keys: Keyring, rows: Rows) -> None:
    """Whoever is last discards its bytes, and all of them say the same."""
    approved_event(services, keys)
    start = threading.Barrier(8)
    said: list[object] = []

    def prepare() -> None:
        start.wait()
        said.append(prepare_delivery(services, "event-1"))

    threads = [threading.Thread(target=prepare) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(rows(deliveries)) == 1
    assert len(said) == 8
    assert len(set(said)) == 1


@pytest.mark.parametrize("state", ["superseded", "withdrawn"])
def test_an_event_that_ended_is_not_prepared(
    services: Services, keys: Keyring, engine: Engine, rows: Rows, state: str
) -> None:
    """It says how it ended; nothing is signed or stored."""
    approved_event(services, keys)
    run(engine, update(events).values(state=state))
    assert prepare_delivery(services, "event-1").status == state
    assert rows(deliveries) == []


def test_an_event_that_ends_while_it_is_signed_is_not_prepared(
    services: Services, keys: Keyring, engine: Engine, rows: Rows
) -> None:
    """The state is asked again under the event's lock."""
    approved_event(services, keys)

    def supersede(name: str) -> None:
        if name == "prepare.signed":
            run(engine, update(events).values(state="superseded"))

    assert prepare_delivery(replace(services, checkpoint=supersede), "event-1").status == "superseded"
    assert rows(deliveries) == []


def test_an_approval_that_is_revoked_while_it_is_signed_forbids_the_delivery(
    services: Services, keys: Keyring, engine: Engine, rows: Rows
) -> None:
    """The approvals are asked again in the insert itself (case 127)."""
    event = approved_event(services, keys)

    def revoke(name: str) -> None:
        if name == "prepare.signed":
            run(engine, update(approvals).values(revoked_at=NOW))

    waiting = prepare_delivery(replace(services, checkpoint=revoke), "event-1")
    assert (waiting.status, waiting.job_id) == ("waiting", parsed(event).jobs[0].job_id)
    assert rows(deliveries) == []


def test_expired_approvals_make_the_event_wait(services: Services, keys: Keyring, at: At, rows: Rows) -> None:
    """At the very second of expiry an approval no longer stands."""
    approved_event(services, keys)
    assert prepare_delivery(at(NOW + 2_592_000), "event-1").status == "waiting"
    assert rows(deliveries) == []
    assert prepare_delivery(at(NOW + 2_591_999), "event-1").status == "delivery_ready"


def test_approvals_of_another_policy_do_not_count_unless_the_policy_lists_them(
    services: Services, keys: Keyring, policies: FixedPolicies
) -> None:
    """The site's current policy decides what satisfies it."""
    old = SitePolicy()
    approved_event(services, keys)
    policies.policy = SitePolicy(approval_ttl_seconds=86_400)
    assert prepare_delivery(services, "event-1").status == "waiting"
    policies.policy = SitePolicy(approval_ttl_seconds=86_400, compatible_policies=frozenset({old.sha256}))
    assert prepare_delivery(services, "event-1").status == "delivery_ready"


def test_a_guided_site_is_prepared_but_not_published(
    services: Services, keys: Keyring, policies: FixedPolicies, queue: RecordingQueue
) -> None:
    """Only a release run's step publishes there, so nobody is woken."""
    policies.policy = SitePolicy(publication="guided")
    approved_event(services, keys)
    queue.take()
    assert prepare_delivery(services, "event-1").status == "delivery_ready"
    assert queue.take() == []


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        (update(events).values(document=events.c.document + " "), "release.event.tampered"),
        (update(results).values(document=results.c.document + " "), "release.result.tampered"),
        (delete(results), "release.result.tampered"),
        (update(approvals).values(document=approvals.c.document + " "), "release.approval.tampered"),
        (update(approvals).values(target_sha256="0" * 64), "release.approval.tampered"),
    ],
)
def test_what_was_changed_in_the_database_stops_the_event(
    services: Services, keys: Keyring, engine: Engine, rows: Rows, statement: Any, code: str
) -> None:
    """With the code that says what was changed, and without a delivery."""
    approved_event(services, keys)
    run(engine, statement)
    with pytest.raises(Blocked) as refused:
        prepare_delivery(services, "event-1")
    assert refused.value.code == code
    assert rows(deliveries) == []


def test_another_valid_document_in_the_place_of_the_accepted_one_stops_the_event(
    services: Services, keys: Keyring, engine: Engine, rows: Rows
) -> None:
    """Even with a hash that fits: an event must derive its plan, a result fit its job, an approval its result."""
    event = approved_event(services, keys)
    other = parsed(change_event(source_text="Another text"))
    run(engine, update(events).values(document=other.text, event_sha256=other.sha256))
    assert code_of(services) == "release.event.tampered"
    run(engine, update(events).values(document=parsed(event).text, event_sha256=parsed(event).sha256))
    (first, second) = rows(results)
    swapped = {"document": second["document"], "result_sha256": second["result_sha256"]}
    run(
        engine,
        update(results).where(results.c.job_id == first["job_id"]).values(**swapped),
        update(jobs).where(jobs.c.job_id == first["job_id"]).values(current_result_sha256=swapped["result_sha256"]),
        update(approvals).where(approvals.c.job_id == first["job_id"]).values(result_sha256=swapped["result_sha256"]),
    )
    assert code_of(services) == "release.result.tampered"
    assert rows(deliveries) == []


def test_an_approval_that_was_signed_for_another_locale_stops_the_event(
    services: Services, keys: Keyring, engine: Engine, rows: Rows
) -> None:
    """Our own signature under it changes nothing: it must be about exactly this result."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    document = dict(approval_for(keys, request_for(event, "de")).document) | {"target_locale": "fr"}
    signed = keys.sign("approval", document | {"approval_id": approval_id_of(document)})
    writing(engine, lambda conn: insert_approvals(conn, [stored_approval(signed)]))
    assert code_of(services) == "release.approval.tampered"
    assert rows(deliveries) == []


def test_a_revoked_approval_key_stops_the_event(services: Services, keys: Keyring, rows: Rows) -> None:
    """A signature that no longer verifies is as good as none (case 127)."""
    approved_event(services, keys)
    keys.revoke("approval")
    with pytest.raises(Blocked) as refused:
        prepare_delivery(services, "event-1")
    assert refused.value.code == "release.approval.tampered"
    assert rows(deliveries) == []


def test_other_bytes_beside_an_open_delivery_are_a_collision(
    services: Services, keys: Keyring, engine: Engine, everything: Callable[[], object]
) -> None:
    """Where the delivery's own approvals no longer stand, fresh ones do not slip in beside it."""
    event = approved_event(services, keys)
    prepare_delivery(services, "event-1")
    run(engine, update(approvals).values(revoked_at=NOW))
    approve(services, keys, event, approved_at=NOW, revision="r2")
    before = everything()
    with pytest.raises(Blocked) as refused:
        prepare_delivery(services, "event-1")
    assert refused.value.code == "cms.delivery.idempotency_collision"
    assert everything() == before


def failed(engine: Engine, code: str = "cms.delivery.http_422", *, in_doubt: bool = False) -> None:
    """Let the delivery have failed."""
    run(engine, update(deliveries).values(status="failed", last_error_code=code, in_doubt=in_doubt, sent_at=NOW))


def test_a_failed_delivery_is_followed_by_itself_only_after_a_renewal(
    services: Services, keys: Keyring, engine: Engine, rows: Rows
) -> None:
    """The same bytes do not come again by themselves; renewed approvals make other bytes, and a new revision."""
    event = approved_event(services, keys)
    first = prepare_delivery(services, "event-1")
    failed(engine)
    with pytest.raises(Blocked) as refused:
        prepare_delivery(services, "event-1")
    assert refused.value.code == "cms.delivery.failed"
    assert len(rows(deliveries)) == 1
    run(engine, update(approvals).values(revoked_at=NOW))
    approve(services, keys, event, approved_at=NOW, revision="r2")
    second = prepare_delivery(services, "event-1")
    assert second.status == "delivery_ready"
    assert second.delivery_id != first.delivery_id
    assert sorted(row["status"] for row in rows(deliveries)) == ["failed", "pending"]


@pytest.mark.parametrize("in_doubt", [True, False])
def test_nothing_follows_a_delivery_of_unknown_outcome(
    services: Services, keys: Keyring, engine: Engine, rows: Rows, *, in_doubt: bool
) -> None:
    """Not even renewed approvals: its text may be live."""
    event = approved_event(services, keys)
    prepare_delivery(services, "event-1")
    failed(engine, "cms.outcome_unknown", in_doubt=in_doubt)
    run(engine, update(approvals).values(revoked_at=NOW))
    approve(services, keys, event, approved_at=NOW, revision="r2")
    with pytest.raises(Blocked) as refused:
        prepare_delivery(services, "event-1")
    assert refused.value.code == "cms.delivery.failed"
    assert len(rows(deliveries)) == 1
    with pytest.raises(Blocked) as refused:
        retry_delivery(services, "event-1")
    assert refused.value.code == "cms.outcome_unknown"
    assert (len(rows(deliveries)), rows(delivery_history)) == (1, [])


def test_a_retry_keeps_the_failed_row_as_history_and_prepares_the_same_bytes(
    services: Services, keys: Keyring, engine: Engine, rows: Rows, queue: RecordingQueue
) -> None:
    """An operator's retry after a refusal: the new revision has a fresh budget, the old one stays to be read."""
    approved_event(services, keys)
    first = prepare_delivery(services, "event-1")
    failed(engine)
    (old,) = rows(deliveries)
    queue.take()
    assert retry_delivery(services, "event-1").status == "approved"
    assert queue.take() == [("delivery.prepare", {"event_id": "event-1"})]
    assert prepare_delivery(services, "event-1") == first
    (row,), (kept,) = rows(deliveries), rows(delivery_history)
    assert (row["status"], row["attempts"], row["payload"]) == ("pending", 0, old["payload"])
    assert (kept["delivery_id"], kept["event_id"], kept["moved_at"]) == (first.delivery_id, "event-1", NOW)
    assert parse_strict(kept["row_json"], max_bytes=100_000)["last_error_code"] == "cms.delivery.http_422"


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        (update(deliveries).values(status="pending"), "cms.delivery.not_failed"),
        (update(deliveries).values(status="succeeded"), "cms.delivery.not_failed"),
        (delete(deliveries), "cms.delivery.not_failed"),
        (update(events).values(state="superseded"), "cms.delivery.event_ended"),
        (update(events).values(event_id="another"), "coordinator.event_id.unknown"),
    ],
)
def test_only_a_failed_delivery_of_an_open_event_is_retried(
    services: Services, keys: Keyring, engine: Engine, everything: Callable[[], object], statement: Any, code: str
) -> None:
    """Everything else is refused, and nothing moves."""
    approved_event(services, keys)
    prepare_delivery(services, "event-1")
    failed(engine)
    run(engine, statement)
    before = everything()
    with pytest.raises(Blocked) as refused:
        retry_delivery(services, "event-1")
    assert refused.value.code == code
    assert everything() == before


@pytest.mark.parametrize("name", ["prepare.signed", "prepare.committed"])
def test_a_crash_while_preparing_changes_nothing_about_the_end(
    services: Services, keys: Keyring, checkpoints: Checkpoints, rows: Rows, name: str
) -> None:
    """Running it again gives one delivery."""
    approved_event(services, keys)
    checkpoints.crash_at = name
    with pytest.raises(Crash):
        prepare_delivery(services, "event-1")
    checkpoints.crash_at = None
    assert prepare_delivery(services, "event-1").status == "delivery_ready"
    assert len(rows(deliveries)) == 1


def test_an_unknown_event_is_refused(services: Services) -> None:
    """With its own code."""
    with pytest.raises(Blocked) as refused:
        prepare_delivery(services, "event-9")
    assert refused.value.code == "coordinator.event_id.unknown"
