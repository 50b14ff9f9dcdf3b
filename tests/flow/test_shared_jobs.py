"""Jobs that several events share: second results, replacements, approvals that stand already (SPEC section 3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import Engine, update

from tests.builders import (
    NOW,
    Keyring,
    change_event,
    job_for,
    request_for,
    result_for,
    results_for,
)
from tests.fakes import FixedPolicies, RecordingQueue, counting
from tests.intake_builders import (
    COLLECT,
    PREPARE,
    Everything,
    Rows,
    approve,
    asked,
    deliver,
    later,
    states,
    submit,
)
from worker.domain.canonical import hash_of
from worker.domain.policy import SitePolicy
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.evidence import EvidenceStore
from worker.store.schema import (
    deliveries,
    evidence,
    evidence_history,
    jobs,
    results,
)


def test_shared_job_is_asked_again_for_each_event_under_the_next_revision(
    services: Services, keys: Keyring, rows: Rows
) -> None:
    """A newer event with the same text shares the jobs: results need not come again, and the revision counts on."""
    submit(services, keys, change_event())
    assert submit(services, keys, later(target_locales=["de", "fr-CA", "it"]), []).state == "accepted"
    assert asked(rows) == {
        ("event-1", "r1", "failed", "evidence.superseded"),
        ("event-2", "r2", "pending", None),
    }
    assert len(rows(evidence)) == 4  # "it" has no result yet
    assert len(rows(jobs)) == 3 and len(rows(results)) == 2


def test_late_results_of_an_old_event_serve_the_newer_one(
    services: Services, keys: Keyring, queue: RecordingQueue, rows: Rows
) -> None:
    """Results that come with a superseded event are asked about for the open event that shares the job."""
    submit(services, keys, later(), [])
    queue.take()
    assert submit(services, keys, change_event()).state == "accepted"
    assert states(rows) == {"event-1": "superseded", "event-2": "open"}
    assert asked(rows) == {("event-2", "r1", "pending", None)} and len(rows(evidence)) == 2
    assert queue.take() == [(COLLECT, {"event_id": "event-2"})]


def test_second_result_is_a_conflict_and_the_first_stays(
    services: Services, keys: Keyring, queue: RecordingQueue, everything: Everything
) -> None:
    """Another result for a job that has one is refused with its place in the message; nothing of the message counts."""
    event = change_event(target_locales=["de", "it"])
    submit(services, keys, event, results_for(event, locales=["de"]))
    queue.take()
    before = everything()
    wrong = [*results_for(event, locales=["it"]), result_for(job_for(event, "de"), candidate="Anders.")]
    answer = submit(services, keys, event, wrong)
    assert (answer.code, answer.path) == ("submission.result.conflict", "results.1")
    for stale in ("0" * 64, hash_of(wrong[1])):
        answer = submit(services, keys, event, [wrong[1] | {"replaces": stale}])
        assert (answer.code, answer.path) == ("submission.result.conflict", "results.0")
    after = everything()
    assert len(after.pop("rejections")) == 3
    before.pop("rejections")
    assert after == before and queue.take() == []


def test_replacing_moves_the_old_rows_to_history_and_starts_afresh(
    services: Services, keys: Keyring, engine: Engine, queue: RecordingQueue, rows: Rows
) -> None:
    """`replaces` naming the current result: its rows leave for the history, leased ones too; holders settle nothing."""
    event = change_event(target_locales=["de", "it"])
    submit(services, keys, event)
    store = EvidenceStore(engine)
    old = request_for(event, "de")
    claim = store.claim(old.key, worker_id="w-7", now=NOW, lease_seconds=300, max_attempts=5)
    assert claim is not None
    queue.take()
    new = result_for(job_for(event, "de"), candidate="Willkommen zurück.")
    assert submit(services, keys, event, [new | {"replaces": old.key.result_sha256}]).state == "accepted"
    fresh = request_for(event, "de", result=new)
    found = {row["request_id"]: row for row in rows(evidence)}
    assert set(found) == {fresh.request_id, request_for(event, "it").request_id}
    assert (found[fresh.request_id]["status"], found[fresh.request_id]["evidence_revision"]) == ("pending", "r1")
    history = rows(evidence_history)
    assert [(row["request_id"], row["job_id"], row["moved_at"]) for row in history] == [
        (old.request_id, old.key.job_id, NOW)
    ]
    assert json.loads(history[0]["row_json"])["lease_owner"] == "w-7"
    assert {row["result_sha256"]: row["replaced_at"] for row in rows(results) if row["job_id"] == old.key.job_id} == {
        old.key.result_sha256: NOW,
        fresh.key.result_sha256: None,
    }
    assert queue.take() == [(COLLECT, {"event_id": "event-1"})]
    with pytest.raises(Exception, match=r"evidence\.") as lost:
        store.succeed(claim, now=NOW + 1)
    assert lost.value.code in {"evidence.lease_lost", "evidence.finish_lost"}
    assert old.request_id not in {status.request_id for status in store.statuses("event-1")}


def test_result_that_comes_back_gets_a_revision_it_never_had(services: Services, keys: Keyring, rows: Rows) -> None:
    """A result that was replaced and then replaces its successor is asked about anew, not under a consumed revision."""
    event = change_event(target_locales=["de"])
    first = result_for(job_for(event, "de"))
    second = result_for(job_for(event, "de"), candidate="Anders.")
    submit(services, keys, event, [first])
    submit(services, keys, event, [second | {"replaces": hash_of(first)}])
    assert submit(services, keys, event, [first | {"replaces": hash_of(second)}]).state == "accepted"
    assert [row["request_id"] for row in rows(evidence)] == [
        request_for(event, "de", result=first, revision="r2").request_id
    ]
    assert {row["result_sha256"]: row["replaced_at"] for row in rows(results)} == {
        hash_of(first): None,
        hash_of(second): NOW,
    }
    assert rows(jobs)[0]["current_result_sha256"] == hash_of(first)


def test_replacing_through_an_old_event_serves_the_open_one_and_closes_its_unsent_delivery(
    services: Services, keys: Keyring, engine: Engine, queue: RecordingQueue, rows: Rows
) -> None:
    """Every open event with the job gets new rows, and its prepared, unsent delivery with the old text is closed."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    submit(services, keys, later(target_locales=["de", "it"]))
    deliver(engine, later(target_locales=["de", "it"]))
    queue.take()
    new = result_for(job_for(event, "de"), candidate="Neu.")
    old = hash_of(result_for(job_for(event, "de")))
    assert submit(services, keys, event, [new | {"replaces": old}]).state == "accepted"
    assert [(row["status"], row["last_error_code"]) for row in rows(deliveries)] == [
        ("failed", "cms.delivery.result_replaced")
    ]
    fresh = [row for row in rows(evidence) if row["result_sha256"] == hash_of(new)]
    assert [(row["event_id"], row["status"], row["evidence_revision"]) for row in fresh] == [
        ("event-2", "pending", "r1")
    ]
    assert len(rows(evidence_history)) == 2
    assert queue.take() == [(COLLECT, {"event_id": "event-2"})]


def test_event_with_a_delivery_in_doubt_is_not_asked_again(
    services: Services, keys: Keyring, engine: Engine, queue: RecordingQueue, rows: Rows
) -> None:
    """An event that a delivery speaks for gets no new rows: the delivery alone advances it."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    deliver(engine, event, status="retry_wait", in_doubt=True, attempts=1, last_error_code="cms.timeout")
    queue.take()
    new = result_for(job_for(event, "de"), candidate="Neu.")
    old = hash_of(result_for(job_for(event, "de")))
    assert submit(services, keys, event, [new | {"replaces": old}]).state == "accepted"
    assert rows(deliveries)[0]["status"] == "retry_wait"
    assert rows(evidence) == [] and queue.take() == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, "submission.result.approved"),
        ({"approved_at": NOW - 100, "ttl_seconds": 100.0}, None),
        ({"revoked_at": NOW - 1, "revoked_reason": "wrong"}, None),
    ],
)
def test_approved_result_is_not_replaced(
    services: Services, keys: Keyring, engine: Engine, everything: Everything, changes: dict[str, Any], code: str | None
) -> None:
    """While an unexpired, unrevoked approval of the job stands, its result cannot be replaced; afterwards it can."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    approve(engine, keys, request_for(event, "de"), **changes)
    before = everything()
    new = result_for(job_for(event, "de"), candidate="Neu.")
    answer = submit(services, keys, event, [new | {"replaces": hash_of(result_for(job_for(event, "de")))}])
    assert answer.code == code
    if code is not None:
        assert answer.path == "results.0"
        after = everything()
        del after["rejections"], before["rejections"]
        assert after == before


def test_standing_approval_answers_the_rows_of_a_new_event_at_once(
    services: Services, keys: Keyring, engine: Engine, queue: RecordingQueue, rows: Rows
) -> None:
    """Where every job is approved already, nothing is asked: the rows are born succeeded and the delivery is woken."""
    event = change_event()
    submit(services, keys, event)
    for locale in ("de", "fr-CA"):
        approve(engine, keys, request_for(event, locale))
    queue.take()
    with counting(engine) as counted:
        submit(services, keys, later(), [])
    assert [row["status"] for row in rows(evidence) if row["event_id"] == "event-2"] == ["succeeded"] * 2
    assert queue.take() == [(PREPARE, {"event_id": "event-2"})]
    assert counted.commits == 1


def test_standing_approval_of_one_locale_leaves_the_others_to_be_asked(
    services: Services, keys: Keyring, engine: Engine, queue: RecordingQueue, rows: Rows
) -> None:
    """Only the locale without an approval is due, and only evidence is woken."""
    event = change_event()
    submit(services, keys, event)
    approve(engine, keys, request_for(event, "de"))
    queue.take()
    submit(services, keys, later(), [])
    found = {row["job_id"]: row["status"] for row in rows(evidence) if row["event_id"] == "event-2"}
    assert found == {job_for(event, "de").job_id: "succeeded", job_for(event, "fr-CA").job_id: "pending"}
    assert queue.take() == [(COLLECT, {"event_id": "event-2"})]


OTHER_POLICY = SitePolicy(approval_ttl_seconds=1000)


@pytest.mark.parametrize(
    "changes",
    [
        {"approved_at": NOW - 100, "ttl_seconds": 100.0},
        {"revoked_at": NOW - 1},
        {"policy": OTHER_POLICY},
        {"signature": "e30..AAAA"},
        {"expires_at": NOW + 1e9},
        {"target_sha256": "0" * 64},
    ],
)
def test_approval_that_does_not_hold_answers_nothing(
    services: Services, keys: Keyring, engine: Engine, queue: RecordingQueue, rows: Rows, changes: dict[str, Any]
) -> None:
    """An expired, revoked, tampered approval, or one under a policy that is not accepted, leaves the row to be asked."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    approve(engine, keys, request_for(event, "de"), **changes)
    queue.take()
    submit(services, keys, later(target_locales=["de"]), [])
    assert [row["status"] for row in rows(evidence) if row["event_id"] == "event-2"] == ["pending"]
    assert queue.take() == [(COLLECT, {"event_id": "event-2"})]


def test_approval_under_a_compatible_policy_answers(
    services: Services, keys: Keyring, engine: Engine, policies: FixedPolicies, rows: Rows
) -> None:
    """An approval given under a policy that the present one lists as compatible still counts."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    approve(engine, keys, request_for(event, "de"), policy=OTHER_POLICY)
    policies.policy = SitePolicy(compatible_policies=frozenset({OTHER_POLICY.sha256}))
    submit(services, keys, later(target_locales=["de"]), [])
    assert [row["status"] for row in rows(evidence) if row["event_id"] == "event-2"] == ["succeeded"]


def test_tampered_result_is_not_asked_about(services: Services, keys: Keyring, engine: Engine, rows: Rows) -> None:
    """A new event whose shared job has an altered stored text is refused with a stable code, and not taken in."""
    submit(services, keys, change_event())
    writing(engine, lambda conn: conn.execute(update(results).values(document="{}")))
    answer = submit(services, keys, later(), [])
    assert (answer.state, answer.code) == ("rejected", "submission.result.tampered")
    assert states(rows) == {"event-1": "open"}
