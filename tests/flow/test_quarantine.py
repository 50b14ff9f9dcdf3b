"""Poison: work whose lease ran out three times in 72 hours is failed, shown with its suspect step, and released anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table

from tests.builders import NOW, Keyring, change_event
from tests.delivery_builders import approved_event, submit
from tests.fake_cms import FakeCms
from tests.fakes import Crash, FixedPolicies, RecordingQueue
from tests.flow.releasing import Release
from tests.store.rows import key, row
from worker.domain.errors import Blocked
from worker.domain.policy import SitePolicy
from worker.domain.quarantine import Quarantine, Setback, Suspect, expiries_of
from worker.flow.audit_database import audit_database
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.reconcile_delivery import reconcile_delivery
from worker.flow.retry_delivery import retry_delivery
from worker.flow.retry_evidence import retry_evidence
from worker.flow.run_step import run_step
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.drains import announce_drain
from worker.store.due_evidence import claim_due
from worker.store.engine import reading, writing
from worker.store.evidence import EvidenceStore
from worker.store.quarantine_views import find_quarantined, list_quarantined
from worker.store.schema import deliveries, evidence, run_commands, setbacks

Rows = Callable[[Table], list[dict[str, Any]]]
HOUR = 3600.0
LEASE = 300.0


@pytest.fixture
def asked(services: Services, keys: Keyring) -> None:
    """One locale, due."""
    submit(services, keys, change_event(target_locales=["de"]))


def die(services: Services, now: float, worker_id: str = "w-dead") -> int:
    """Let a worker take what is due and never come back; a sweep takes its lease away. Return the rows it took."""
    taken = claim_due(services.engine, worker_id=worker_id, limit=5, lease_seconds=LEASE, now=now)
    sweep_fleet(replace(services, now=lambda: now + LEASE))
    return len(taken)


def suspects(engine: Engine) -> tuple[Suspect, ...]:
    with reading(engine) as conn:
        return list_quarantined(conn)


def test_a_third_expiry_quarantines(services: Services, asked: None, engine: Engine, rows: Rows) -> None:
    """It fails with attempts left, is never claimed a fourth time, and is listed with the review that was suspect."""
    assert [die(services, NOW + n * HOUR, f"w-{n}") for n in range(4)] == [1, 1, 1, 0]
    (found,) = rows(evidence)
    assert (found["status"], found["last_error_code"], found["attempts"]) == ("failed", "evidence.quarantined", 3)
    assert [(one["outcome"], one["code"]) for one in rows(setbacks)] == [
        ("retry_wait", "lease_expired"),
        ("retry_wait", "lease_expired"),
        ("failed", "lease_expired"),
    ]
    (suspect,) = suspects(engine)
    assert (suspect.row_id, suspect.event_id, suspect.job_id) == (found["request_id"], "event-1", found["job_id"])
    assert (suspect.step, suspect.doing) == ("evidence.collect", "the review by default")
    assert [(one.worker_id, one.at) for one in suspect.expiries] == [
        (f"w-{n}", NOW + n * HOUR + LEASE) for n in range(3)
    ]
    with reading(engine) as conn:
        assert list_quarantined(conn, site_id="site-2") == ()
    assert audit_database(engine).violation_count == 0


def test_a_sweep_says_what_it_quarantined(services: Services, asked: None, rows: Rows) -> None:
    """By the row's id, in the sweep that took the third lease away; such a row is not woken."""
    die(services, NOW)
    die(services, NOW + HOUR)
    claim_due(services.engine, worker_id="w-3", limit=5, lease_seconds=LEASE, now=NOW + 2 * HOUR)
    swept = sweep_fleet(replace(services, now=lambda: NOW + 3 * HOUR))
    assert (swept.quarantined, swept.collects) == ((rows(evidence)[0]["request_id"],), ())


def test_released_as_a_new_revision(services: Services, asked: None, engine: Engine, rows: Rows) -> None:
    """The old row stays as history and is no longer listed; the new one begins with no expiry against it."""
    for n in range(3):
        die(services, NOW + n * HOUR)
    (old,) = rows(evidence)
    later = replace(services, now=lambda: NOW + 4 * HOUR)
    retry_evidence(later, event_id="event-1", job_id=old["job_id"], request_id="release-1")
    assert suspects(engine) == ()
    assert die(services, NOW + 5 * HOUR) == 1
    after = {one["evidence_revision"]: (one["status"], one["attempts"]) for one in rows(evidence)}
    assert after == {"r1": ("failed", 3), "r2": ("retry_wait", 1)}
    assert collect_evidence(replace(services, now=lambda: NOW + 6 * HOUR), None, ready=lambda _: None).claimed == 1
    assert {one["status"] for one in rows(evidence)} == {"succeeded"}  # the approval answers the old row too


def test_a_worker_that_announced_its_end_does_not_count(services: Services, asked: None, rows: Rows) -> None:
    """Neither among the earlier expiries nor as the last one."""
    writing(services.engine, lambda conn: announce_drain(conn, "w-drained", now=NOW))
    for n, worker in enumerate(("w-1", "w-drained", "w-2", "w-drained")):
        assert die(services, NOW + n * HOUR, worker) == 1
    assert (rows(evidence)[0]["status"], rows(evidence)[0]["attempts"]) == ("retry_wait", 4)
    assert die(services, NOW + 5 * HOUR, "w-3") == 1
    assert rows(evidence)[0]["last_error_code"] == "evidence.quarantined"


def test_who_drains_after_its_lease_ran_out_is_not_excused(services: Services, asked: None, rows: Rows) -> None:
    """A worker that hung past the end of its lease, and was then told to stop, counts like one that died."""
    for n in range(2):
        die(services, NOW + n * HOUR)
    taken_at = NOW + 3 * HOUR
    claim_due(services.engine, worker_id="w-hung", limit=5, lease_seconds=LEASE, now=taken_at)
    writing(services.engine, lambda conn: announce_drain(conn, "w-hung", now=taken_at + LEASE + 1))
    sweep_fleet(replace(services, now=lambda: taken_at + LEASE + 2))
    assert rows(evidence)[0]["last_error_code"] == "evidence.quarantined"


def test_expiries_count_for_72_hours(services: Services, asked: None, rows: Rows) -> None:
    """The third comes when the first is older than the span: it is as if there had been two."""
    for hours in (0.0, 1.0, 72.5):
        assert die(services, NOW + hours * HOUR) == 1
    assert rows(evidence)[0]["status"] == "retry_wait"
    assert die(services, NOW + 72.9 * HOUR) == 1
    assert rows(evidence)[0]["last_error_code"] == "evidence.quarantined"


def test_the_bounds_are_settings(services: Services, asked: None, rows: Rows) -> None:
    """Two within an hour: two in two hours are none, two in half an hour are."""
    bounded = replace(services, quarantine=Quarantine(expiries=2, within_seconds=HOUR))
    for hours in (0.0, 2.0):
        die(bounded, NOW + hours * HOUR)
    assert rows(evidence)[0]["status"] == "retry_wait"
    die(bounded, NOW + 2.5 * HOUR)
    assert rows(evidence)[0]["last_error_code"] == "evidence.quarantined"


def test_other_ends_of_attempts_do_not_count(services: Services, asked: None, rows: Rows) -> None:
    """A row that failed, was handed back and lost two leases waits on."""
    store = EvidenceStore(services.engine)
    (found,) = rows(evidence)
    asks = key(**{name: found[name] for name in ("request_id", "event_id", "plan_id", "job_id", "result_sha256")})
    for n, end in enumerate(("fail", "release", "expire", "expire")):
        now = NOW + n * 2 * HOUR
        claim = store.claim(asks, worker_id=f"w-{n}", lease_seconds=LEASE, max_attempts=5, now=now)
        assert claim is not None
        if end == "fail":
            store.fail(claim, "evidence.unavailable", retryable=True, now=now + 1)
        elif end == "release":
            store.release(claim, "worker.drain", not_before=now + 1, now=now + 1)
    sweep_fleet(replace(services, now=lambda: NOW + 20 * HOUR))
    assert (rows(evidence)[0]["status"], rows(evidence)[0]["attempts"]) == ("retry_wait", 3)


def test_rows_of_the_store_alone_are_never_quarantined(engine: Engine) -> None:
    """What only the store's own surface made keeps its machine: it fails when its attempts are used up, not before."""
    store = EvidenceStore(engine)
    for n in range(5):
        taken = store.claim(key(), worker_id="w-1", lease_seconds=10, max_attempts=5, now=100.0 + 20 * n)
        assert taken is not None
        assert taken.attempt == n + 1
    with pytest.raises(Blocked) as caught:
        store.claim(key(), worker_id="w-1", lease_seconds=10, max_attempts=5, now=300.0)
    assert caught.value.code == "evidence.attempts_exhausted"
    assert row(engine)["last_error_code"] == "lease_expired"


# --- deliveries -------------------------------------------------------------------------------------------------------


@pytest.fixture
def cms(keys: Keyring) -> FakeCms:
    return FakeCms(keys=keys)


@pytest.fixture
def sending(services: Services, keys: Keyring, cms: FakeCms, queue: RecordingQueue) -> Services:
    """A prepared delivery, and a CMS."""
    fleet = replace(services, cms=lambda _site_id: cms)
    approved_event(fleet, keys)
    prepare_delivery(fleet, "event-1")
    queue.take()
    return fleet


def die_sending(fleet: Services, at: str, now: float) -> None:
    """Let a worker die at a checkpoint of its visit."""

    def crash(name: str) -> None:
        if name == at:
            raise Crash(name)

    with pytest.raises(Crash):
        publish_delivery(replace(fleet, now=lambda: now, checkpoint=crash), "event-1")


def quarantine(fleet: Services, at: str) -> None:
    """Let three workers die: one in the send, two in look-ups; the next one that comes meets the third expiry."""
    die_sending(fleet, at, NOW)
    for n in (1, 2):
        die_sending(fleet, "publish.claimed", NOW + n * HOUR)
    with pytest.raises(Blocked) as failed:
        publish_delivery(replace(fleet, now=lambda: NOW + 3 * HOUR), "event-1")
    assert failed.value.code == "cms.delivery.failed"


def test_a_delivery_stays_in_doubt(sending: Services, cms: FakeCms, engine: Engine, rows: Rows, keys: Keyring) -> None:
    """It fails, is listed with what each worker had begun, holds up newer texts, and nothing of it is sent again."""
    quarantine(sending, "publish.answered")
    (found,) = rows(deliveries)
    assert (found["status"], found["in_doubt"], found["last_error_code"]) == (
        "failed",
        True,
        "cms.delivery.quarantined",
    )
    (suspect,) = suspects(engine)
    assert [one.doing for one in suspect.expiries] == ["send", "look-up", "look-up"]
    assert (suspect.step, suspect.doing) == ("delivery.publish", "look-up")
    later = replace(sending, now=lambda: NOW + 4 * HOUR)
    for refuse in (retry_delivery, publish_delivery):
        with pytest.raises(Blocked) as caught:
            refuse(later, "event-1")
        assert caught.value.code in {"cms.outcome_unknown", "cms.delivery.failed"}
    approved_event(later, keys, event_id="event-2", source_sequence=8, source_text="Newer")
    prepare_delivery(later, "event-2")
    assert publish_delivery(later, "event-2").status == "delivery_ready"
    assert len(cms.requests) == 1
    assert [one for one in audit_database(engine).violations if one.code.startswith("audit.delivery.")] == []


def test_the_cms_has_it(sending: Services, cms: FakeCms, engine: Engine, rows: Rows) -> None:
    """Asked by a signed look-up, it says so: the event is delivered, and nothing was sent twice."""
    quarantine(sending, "publish.answered")
    delivery_id = rows(deliveries)[0]["delivery_id"]
    assert reconcile_delivery(replace(sending, now=lambda: NOW + 4 * HOUR), delivery_id).status == "delivered"
    assert (len(cms.requests), suspects(engine)) == (1, ())


def test_the_cms_does_not_have_it(sending: Services, cms: FakeCms, engine: Engine, rows: Rows) -> None:
    """Then it is closed; the retry prepares the same bytes anew, and earlier expiries do not count against them."""
    quarantine(sending, "publish.claimed")
    delivery_id = rows(deliveries)[0]["delivery_id"]
    later = replace(sending, now=lambda: NOW + 4 * HOUR)
    assert reconcile_delivery(later, delivery_id).status == "approved"
    retry_delivery(later, "event-1")
    assert prepare_delivery(later, "event-1").delivery_id == delivery_id
    die_sending(sending, "publish.claimed", NOW + 5 * HOUR)
    assert publish_delivery(replace(sending, now=lambda: NOW + 6 * HOUR), "event-1").status == "delivered"
    assert (len(cms.requests), suspects(engine)) == (1, ())


# --- commands of release runs -----------------------------------------------------------------------------------------


def test_a_command_of_a_run(
    services: Services, queue: RecordingQueue, keys: Keyring, policies: FixedPolicies, engine: Engine, rows: Rows
) -> None:
    """Three visits of a read-only step die: it waits for an operator, who resumes the run and starts it anew."""
    policies.policy = SitePolicy(publication="guided")
    release = Release(services=services, queue=queue, keys=keys, cms=FakeCms(keys=keys))
    release.approve(["home"])
    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()

    def crash(_name: str) -> None:
        raise Crash

    for _ in range(3):
        with pytest.raises(Crash):
            run_step(replace(release.born(), checkpoint=crash), **ids)
        release.now += 400
    assert run_step(release.born(), **ids).status == "idle"
    (found,) = rows(run_commands)
    assert (found["status"], found["last_error_code"]) == ("failed", "run.command.quarantined")
    with reading(engine) as conn:
        suspect = find_quarantined(conn, ids["attempt_id"])
    assert suspect is not None
    assert (suspect.run_id, suspect.step, suspect.doing) == (release.run_id, "run.step", "the step preflight")
    release.resume()
    assert suspects(engine) == ()
    release.retry("preflight")
    release.live(2)
    assert release.step("preflight") == ("succeeded", "preflight_passed")


def test_what_an_expired_lease_was_taken_for() -> None:
    """A send counts an attempt and ends it once; whatever runs out under the same number later was a look-up."""

    def setback(attempt: int, outcome: str, code: str = "lease_expired") -> Setback:
        return Setback(attempt=attempt, outcome=outcome, code=code, worker_id="w", ended_at=1.0)

    history = [
        setback(1, "retry_wait", "cms.delivery.timeout"),
        setback(1, "retry_wait"),
        setback(2, "released", "cms.send_window_missed"),
        setback(2, "retry_wait"),
        setback(2, "failed"),
    ]
    assert [(one.attempt, one.doing) for one in expiries_of(history)] == [(1, "look-up"), (2, "send"), (2, "look-up")]
    assert [one.doing for one in expiries_of([setback(0, "retry_wait")])] == ["look-up"]
