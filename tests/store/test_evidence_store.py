"""The public surface of the evidence machine: every state, code and time of its contract, on both databases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.store.rows import HASH, OTHER_HASH, contents, damage, key, refused, row, setbacks_of
from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceClaim, EvidenceStatus
from worker.store.engine import read_clock, reading
from worker.store.evidence import EvidenceStore


@pytest.fixture
def store(engine: Engine) -> EvidenceStore:
    return EvidenceStore(engine)


def take(store: EvidenceStore, name: str = "1", *, now: float = 100.0, **changed: Any) -> EvidenceClaim:
    """Claim a row that must be claimable."""
    whole = {"worker_id": "w-1", "now": now, "lease_seconds": 10.0, "max_attempts": 3, **changed}
    claim = store.claim(key(name), **whole)
    assert claim is not None
    return claim


# --- claim ----------------------------------------------------------------------------------------------------------


def test_the_first_claim_makes_the_row_and_leases_it(store: EvidenceStore, engine: Engine) -> None:
    """A row that is new is inserted pending and due now, and leased in the same transaction."""
    claim = take(store)
    assert claim == EvidenceClaim(
        request_id="evidence-1",
        lease_owner="w-1",
        lease_token=claim.lease_token,
        lease_expires_at=110.0,
        attempt=1,
        max_attempts=3,
    )
    assert len(bytes.fromhex(claim.lease_token)) == 32
    assert row(engine) == {
        "request_id": "evidence-1",
        "event_id": "event-1",
        "plan_id": "plan-1",
        "job_id": "job-1",
        "result_sha256": HASH,
        "evidence_revision": "r1",
        "status": "leased",
        "attempts": 1,
        "max_attempts": 3,
        "next_attempt_at": 100.0,
        "lease_owner": "w-1",
        "lease_token": claim.lease_token,
        "lease_expires_at": 110.0,
        "last_error_code": None,
        "created_at": 100.0,
        "updated_at": 100.0,
        "site_id": None,
        "provider": None,
        "last_woken_at": None,
        "renewed_at": None,
        "awaited_since_at": None,
    }


def test_a_claim_says_nothing_of_its_token(store: EvidenceStore) -> None:
    """The token proves the lease, so neither repr nor str of a claim shows it."""
    claim = take(store)
    assert claim.lease_token not in repr(claim) + str(claim)


def test_every_lease_has_a_token_of_its_own(store: EvidenceStore) -> None:
    """No two leases share a token, not even of one row and one worker."""
    first = take(store)
    store.release(first, "worker.drain", not_before=100.0, now=101.0)
    assert take(store, now=101.0).lease_token != first.lease_token


def test_a_live_lease_is_not_claimed_again(store: EvidenceStore, engine: Engine) -> None:
    """One instant before its end a lease still holds, whoever asks; nothing is written."""
    take(store)
    before = contents(engine)
    for worker in ("w-1", "w-2"):
        asked = store.claim(key(), worker_id=worker, now=math.nextafter(110.0, 0), lease_seconds=10, max_attempts=3)
        assert asked is None
    assert contents(engine) == before


def test_a_row_is_claimed_from_the_very_moment_it_is_due(store: EvidenceStore, engine: Engine) -> None:
    """Before next_attempt_at there is no claim; at next_attempt_at there is; leasing leaves that time unchanged."""
    store.fail(take(store), "evidence.unavailable", retryable=True, now=102.0)
    early = store.claim(key(), worker_id="w-2", now=math.nextafter(107.0, 0), lease_seconds=10, max_attempts=3)
    assert early is None
    claim = take(store, now=107.0, worker_id="w-2")
    assert (claim.attempt, claim.lease_expires_at) == (2, 117.0)
    stored = row(engine)
    assert (stored["next_attempt_at"], stored["updated_at"], stored["created_at"]) == (107.0, 107.0, 100.0)
    assert stored["last_error_code"] is None


def test_a_lease_that_ran_out_is_taken_over(store: EvidenceStore, engine: Engine) -> None:
    """At its very expiry a lease is over: the row waits again, due now, and this claim takes it as a new attempt."""
    first = take(store)
    second = take(store, now=110.0, worker_id="w-2")
    assert (second.attempt, second.lease_owner) == (2, "w-2")
    assert second.lease_token != first.lease_token
    stored = row(engine)
    assert (stored["next_attempt_at"], stored["updated_at"], stored["last_error_code"]) == (110.0, 110.0, None)
    assert setbacks_of(engine) == [(1, "w-1", "retry_wait", "lease_expired", 110.0)]


def test_the_expiry_of_the_last_attempt_is_stored_although_the_claim_is_refused(
    store: EvidenceStore, engine: Engine
) -> None:
    """With no attempt left the expired row becomes failed, which stays stored; the claim then raises."""
    take(store, max_attempts=1)
    with pytest.raises(Blocked) as caught:
        store.claim(key(), worker_id="w-2", now=111.0, lease_seconds=10, max_attempts=1)
    assert (caught.value.code, caught.value.retryable) == ("evidence.attempts_exhausted", False)
    stored = row(engine)
    assert (stored["status"], stored["attempts"], stored["last_error_code"]) == ("failed", 1, "lease_expired")
    assert (stored["next_attempt_at"], stored["updated_at"]) == (111.0, 111.0)
    assert (stored["lease_owner"], stored["lease_token"], stored["lease_expires_at"]) == (None, None, None)
    assert setbacks_of(engine) == [(1, "w-1", "failed", "lease_expired", 111.0)]


def test_another_binding_is_refused_before_an_expiry_is_stored(store: EvidenceStore, engine: Engine) -> None:
    """Binding and attempt policy are judged before the lease: the expired row is left as it is."""
    take(store)
    for changed in (
        {"event_id": "event-2"},
        {"plan_id": "plan-2"},
        {"job_id": "job-2"},
        {"result_sha256": OTHER_HASH},
        {"evidence_revision": "r2"},
    ):
        with refused(engine, "evidence.state.binding_mismatch"):
            store.claim(key(**changed), worker_id="w-2", now=200.0, lease_seconds=10, max_attempts=3)
    with refused(engine, "evidence.state.attempt_policy_changed"):
        store.claim(key(), worker_id="w-2", now=200.0, lease_seconds=10, max_attempts=4)
    with refused(engine, "evidence.state.binding_mismatch"):  # the binding comes before the policy
        store.claim(key(job_id="job-2"), worker_id="w-2", now=200.0, lease_seconds=10, max_attempts=4)


def test_a_binding_belongs_to_one_request_id(store: EvidenceStore, engine: Engine) -> None:
    """A new request id for a binding that has a row is refused and writes nothing, whatever became of that row."""
    claim = take(store)
    with refused(engine, "evidence.state.binding_mismatch"):
        store.claim(key(request_id="evidence-9"), worker_id="w", now=100.0, lease_seconds=10, max_attempts=3)
    store.succeed(claim, now=101.0)
    with refused(engine, "evidence.state.binding_mismatch"):
        store.claim(key(request_id="evidence-9"), worker_id="w", now=100.0, lease_seconds=10, max_attempts=3)
    another = key(request_id="evidence-9", evidence_revision="r2")
    assert store.claim(another, worker_id="w", now=100.0, lease_seconds=10, max_attempts=3) is not None


def test_an_ended_row_is_not_claimed(store: EvidenceStore, engine: Engine) -> None:
    """A succeeded revision is consumed, a failed one is exhausted; both say so and stay as they are."""
    store.succeed(take(store, "1"), now=101.0)
    store.fail(take(store, "2"), "evidence.response.invalid", retryable=False, now=101.0)
    with refused(engine, "evidence.revision.already_consumed"):
        store.claim(key("1"), worker_id="w", now=500.0, lease_seconds=10, max_attempts=3)
    with refused(engine, "evidence.attempts_exhausted"):
        store.claim(key("2"), worker_id="w", now=500.0, lease_seconds=10, max_attempts=3)


def test_a_row_written_by_hand_is_never_leased_beyond_its_bound(store: EvidenceStore, engine: Engine) -> None:
    """A waiting row whose attempts are used up is a valid row, and yet no attempt is left."""
    store.fail(take(store), "evidence.unavailable", retryable=True, now=102.0)
    damage(engine, "attempts = 3")
    with refused(engine, "evidence.attempts_exhausted"):
        store.claim(key(), worker_id="w", now=500.0, lease_seconds=10, max_attempts=3)


# --- succeed and fail -----------------------------------------------------------------------------------------------


def test_success_ends_the_row(store: EvidenceStore, engine: Engine) -> None:
    """The lease is cleared, both times are the settle's, and a second success of anybody is a no-op."""
    claim = take(store)
    store.succeed(claim, now=109.5)
    stored = row(engine)
    assert (stored["status"], stored["attempts"], stored["last_error_code"]) == ("succeeded", 1, None)
    assert (stored["next_attempt_at"], stored["updated_at"]) == (109.5, 109.5)
    assert (stored["lease_owner"], stored["lease_token"], stored["lease_expires_at"]) == (None, None, None)
    assert setbacks_of(engine) == []
    before = contents(engine)
    store.succeed(claim, now=500.0)
    store.fail(claim, "evidence.unavailable", retryable=True, now=500.0)
    store.succeed(replace(claim, lease_owner="w-9", lease_token="other"), now=500.0)
    assert contents(engine) == before


@pytest.mark.parametrize(
    ("attempts", "waits"),
    [(1, 5.0), (2, 10.0), (3, 20.0), (9, 1280.0), (10, 2560.0), (11, 3600.0), (12, 3600.0), (19, 3600.0)],
)
def test_a_failed_attempt_waits_twice_as_long_each_time(
    store: EvidenceStore, engine: Engine, attempts: int, waits: float
) -> None:
    """The wait is min(3600, 5 * 2^(attempts - 1)) seconds, exactly; the error and both times are stored."""
    claim = take(store, max_attempts=20)
    damage(engine, f"attempts = {attempts}")
    store.fail(claim, "evidence.unavailable", retryable=True, now=101.5)
    stored = row(engine)
    assert (stored["status"], stored["attempts"]) == ("retry_wait", attempts)
    assert (stored["next_attempt_at"], stored["updated_at"]) == (101.5 + waits, 101.5)
    assert stored["last_error_code"] == "evidence.unavailable"
    assert (stored["lease_owner"], stored["lease_token"], stored["lease_expires_at"]) == (None, None, None)
    assert setbacks_of(engine) == [(attempts, "w-1", "retry_wait", "evidence.unavailable", 101.5)]


@pytest.mark.parametrize(
    ("not_before", "due_at"),
    [
        (None, 107.0),
        (0.0, 107.0),
        (106.999, 107.0),
        (107.0, 107.0),
        (107.25, 107.25),
        (3702.0, 3702.0),
        (3702.5, 3702.0),
        (1e300, 3702.0),
    ],
)
def test_a_failure_may_ask_for_a_longer_wait_only(
    store: EvidenceStore, engine: Engine, not_before: float | None, due_at: float
) -> None:
    """not_before lengthens the back-off, never shortens it, and never beyond 3600 seconds from now."""
    store.fail(take(store), "evidence.unavailable", retryable=True, not_before=not_before, now=102.0)
    assert row(engine)["next_attempt_at"] == due_at


@pytest.mark.parametrize(("retryable", "max_attempts"), [(False, 3), (True, 1), (False, 1)])
def test_a_failure_ends_the_row_when_nothing_is_left_to_try(
    store: EvidenceStore, engine: Engine, retryable: bool, max_attempts: int
) -> None:
    """Not retryable, or no attempt left: failed, due time and update are the settle's, not_before says nothing."""
    claim = take(store, max_attempts=max_attempts)
    store.fail(claim, "evidence.response.invalid", retryable=retryable, not_before=900.0, now=103.0)
    stored = row(engine)
    assert (stored["status"], stored["attempts"]) == ("failed", 1)
    assert (stored["next_attempt_at"], stored["updated_at"]) == (103.0, 103.0)
    assert stored["last_error_code"] == "evidence.response.invalid"
    assert (stored["lease_owner"], stored["lease_token"], stored["lease_expires_at"]) == (None, None, None)
    assert setbacks_of(engine) == [(1, "w-1", "failed", "evidence.response.invalid", 103.0)]


def settles(store: EvidenceStore, claim: Any, now: float) -> list[Any]:
    """Return the three ways to settle a claim, as calls."""
    return [
        lambda: store.succeed(claim, now=now),
        lambda: store.fail(claim, "evidence.unavailable", retryable=True, now=now),
        lambda: store.release(claim, "worker.drain", not_before=now, now=now),
    ]


def test_only_the_holder_settles(store: EvidenceStore, engine: Engine) -> None:
    """Another owner, another token, a row that is not there or not leased: the lease is lost, nothing changes."""
    claim = take(store)
    strangers = [
        replace(claim, lease_owner="w-2"),
        replace(claim, lease_token="0" * 64),
        replace(claim, request_id="evidence-9"),
    ]
    for stranger in strangers:
        for settle in settles(store, stranger, 101.0):
            with refused(engine, "evidence.lease_lost"):
                settle()
    store.fail(claim, "evidence.unavailable", retryable=True, now=102.0)
    for settle in settles(store, claim, 103.0):
        with refused(engine, "evidence.lease_lost"):
            settle()


def test_a_lease_ends_at_its_expiry(store: EvidenceStore, engine: Engine) -> None:
    """From its expiry on a lease settles nothing, even when nobody has taken the row over; the row judges, not the claim."""
    claim = take(store)
    longer = replace(claim, lease_expires_at=1e9)
    for held in (claim, longer):
        for settle in settles(store, held, 110.0):
            with refused(engine, "evidence.lease_expired"):
                settle()
    with refused(engine, "evidence.lease_lost"):  # whose it is comes before whether it is live
        store.succeed(replace(claim, lease_token="0" * 64), now=110.0)
    store.succeed(claim, now=math.nextafter(110.0, 0))
    assert row(engine)["status"] == "succeeded"


def test_a_stale_worker_never_finishes_a_newer_claim(store: EvidenceStore, engine: Engine) -> None:
    """Who wakes late finds the lease lost, also under its own name; the newer claim settles as if nothing had been."""
    stale = take(store)
    newer = take(store, now=115.0)
    for settle in settles(store, stale, 116.0):
        with refused(engine, "evidence.lease_lost"):
            settle()
    store.succeed(newer, now=116.0)
    assert (row(engine)["status"], row(engine)["attempts"]) == ("succeeded", 2)


def test_a_failed_row_is_settled_no_more(store: EvidenceStore, engine: Engine) -> None:
    """Failure is no success: settling again is refused, not a no-op."""
    claim = take(store)
    store.fail(claim, "evidence.response.invalid", retryable=False, now=101.0)
    for settle in settles(store, claim, 102.0):
        with refused(engine, "evidence.lease_lost"):
            settle()


def test_a_settle_that_meets_no_row_says_so(store: EvidenceStore, engine: Engine) -> None:
    """Where the job's result was replaced meanwhile, the guarded update meets no row, and nothing is written."""
    claim = take(store)
    with engine.begin() as conn:
        conn.execute(
            text(
                "INSERT INTO jobs (job_id, site_id, target_locale, current_result_sha256, created_at, updated_at)"
                f" VALUES ('job-1', 's', 'fr', '{OTHER_HASH}', 1, 1)"
            )
        )
    for settle in settles(store, claim, 101.0):
        with refused(engine, "evidence.finish_lost"):
            settle()
    with engine.begin() as conn:
        conn.execute(text(f"UPDATE jobs SET current_result_sha256 = '{HASH}'"))
    store.succeed(claim, now=101.0)
    assert row(engine)["status"] == "succeeded"


# --- release --------------------------------------------------------------------------------------------------------


def test_released_work_costs_no_attempt(store: EvidenceStore, engine: Engine) -> None:
    """The row waits until exactly not_before, the attempt is given back, and the next claim counts it anew."""
    claim = take(store, max_attempts=1)
    store.release(claim, "worker.drain", not_before=4000.125, now=105.0)
    stored = row(engine)
    assert (stored["status"], stored["attempts"], stored["last_error_code"]) == ("retry_wait", 0, "worker.drain")
    assert (stored["next_attempt_at"], stored["updated_at"]) == (4000.125, 105.0)
    assert (stored["lease_owner"], stored["lease_token"], stored["lease_expires_at"]) == (None, None, None)
    assert setbacks_of(engine) == [(1, "w-1", "released", "worker.drain", 105.0)]
    assert take(store, now=4000.125, max_attempts=1).attempt == 1


@pytest.mark.parametrize("not_before", [0, 5e-324, 0.1, 1732990000.1234567, 1e300])
def test_a_released_row_is_due_exactly_when_it_was_said(
    store: EvidenceStore, engine: Engine, not_before: float
) -> None:
    """A release has no longest wait, and its time is stored to the last bit."""
    store.release(take(store), "worker.drain", not_before=not_before, now=105.0)
    assert row(engine)["next_attempt_at"] == not_before


def test_a_succeeded_row_is_not_released(store: EvidenceStore, engine: Engine) -> None:
    """A release has no no-op: there is no lease to hand back."""
    claim = take(store)
    store.succeed(claim, now=101.0)
    with refused(engine, "evidence.lease_lost"):
        store.release(claim, "worker.drain", not_before=101.0, now=102.0)


# --- mark_approved --------------------------------------------------------------------------------------------------


def approve(store: EvidenceStore, *, now: float, result_sha256: str = HASH) -> None:
    store.mark_approved("event-1", "plan-1", "job-1", result_sha256, now=now)


def test_an_approval_succeeds_every_row_of_the_job(store: EvidenceStore, engine: Engine) -> None:
    """Whatever state and revision: pending, leased, retry_wait and failed rows succeed; succeeded ones stay as they are."""
    revisions = {"evidence-p": "r1", "evidence-l": "r2", "evidence-w": "r3", "evidence-f": "r4", "evidence-s": "r5"}
    claims = {
        name: store.claim(
            key("1", request_id=name, evidence_revision=revision),
            worker_id="w-1",
            now=100.0,
            lease_seconds=10,
            max_attempts=3,
        )
        for name, revision in revisions.items()
    }
    others = [
        key("2"),
        key("1", request_id="evidence-e", event_id="event-2"),
        key("1", request_id="evidence-q", plan_id="plan-2"),
    ]
    for other in others:
        store.claim(other, worker_id="w-1", now=100.0, lease_seconds=10, max_attempts=3)
    assert all(claims.values())
    damage(
        engine,
        "status = 'pending', attempts = 0, lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL",
        "evidence-p",
    )
    store.fail(claims["evidence-w"], "evidence.unavailable", retryable=True, now=102.0)
    store.fail(claims["evidence-f"], "evidence.response.invalid", retryable=False, now=102.0)
    store.succeed(claims["evidence-s"], now=102.0)
    untouched = {name: row(engine, name) for name in ("evidence-s", *(other.request_id for other in others))}
    approve(store, now=200.0)
    for name in ("evidence-p", "evidence-l", "evidence-w", "evidence-f"):
        stored = row(engine, name)
        assert (stored["status"], stored["last_error_code"]) == ("succeeded", None)
        assert (stored["next_attempt_at"], stored["updated_at"], stored["created_at"]) == (200.0, 200.0, 100.0)
        assert (stored["lease_owner"], stored["lease_token"], stored["lease_expires_at"]) == (None, None, None)
        assert stored["attempts"] == (0 if name == "evidence-p" else 1)
    assert {name: row(engine, name) for name in untouched} == untouched


def test_an_approval_of_another_result_changes_nothing(store: EvidenceStore, engine: Engine) -> None:
    """One row about another result, in whatever state, refuses them all."""
    take(store)
    other = key("1", request_id="evidence-9", result_sha256=OTHER_HASH, evidence_revision="r2")
    claim = store.claim(other, worker_id="w", now=100.0, lease_seconds=10, max_attempts=3)
    with refused(engine, "evidence.state.binding_mismatch"):
        approve(store, now=101.0)
    with refused(engine, "evidence.state.binding_mismatch"):
        approve(store, now=101.0, result_sha256=OTHER_HASH)
    store.succeed(claim, now=101.0)
    with refused(engine, "evidence.state.binding_mismatch"):
        approve(store, now=102.0)


def test_an_approval_without_rows_is_no_failure(store: EvidenceStore, engine: Engine) -> None:
    """A job that was never asked about needs no row to be approved."""
    before = contents(engine)
    approve(store, now=100.0)
    assert contents(engine) == before


def test_an_approval_ends_the_lease_of_a_worker(store: EvidenceStore, engine: Engine) -> None:
    """Who was at work meanwhile settles nothing: success and failure are no-ops on the succeeded row."""
    claim = take(store)
    approve(store, now=101.0)
    before = contents(engine)
    store.succeed(claim, now=102.0)
    store.fail(claim, "evidence.response.invalid", retryable=False, now=102.0)
    assert contents(engine) == before


# --- statuses -------------------------------------------------------------------------------------------------------


def test_statuses_come_by_creation_and_then_id(store: EvidenceStore) -> None:
    """Content-free, without owner and token, of one event only, oldest first."""
    take(store, "b", now=100.0)
    take(store, "c", now=99.0)
    take(store, "a", now=100.0)
    store.claim(key("x", event_id="event-2"), worker_id="w", now=1.0, lease_seconds=10, max_attempts=3)
    failing = take(store, "d", now=101.0)
    store.fail(failing, "evidence.unavailable", retryable=True, now=102.0)
    found = store.statuses("event-1")
    assert [status.request_id for status in found] == ["evidence-c", "evidence-a", "evidence-b", "evidence-d"]
    assert found[0] == EvidenceStatus(
        request_id="evidence-c",
        event_id="event-1",
        plan_id="plan-1",
        job_id="job-c",
        result_sha256=HASH,
        evidence_revision="r1",
        status="leased",
        attempts=1,
        max_attempts=3,
        next_attempt_at=99.0,
        lease_expires_at=109.0,
        last_error_code=None,
        schema="locseal.evidence-status.v1",
    )
    assert (found[3].status, found[3].last_error_code, found[3].lease_expires_at) == (
        "retry_wait",
        "evidence.unavailable",
        None,
    )
    assert store.statuses("event-9") == ()


def test_statuses_are_ordered_alike_under_every_collation(postgres_engine: Engine) -> None:
    """Ids are ordered by their characters, also where the database would put `a` before `B`."""
    collate = 'ALTER TABLE evidence ALTER request_id TYPE varchar COLLATE "{}"'
    store = EvidenceStore(postgres_engine)
    for name in ("b", "B", "a", "-"):
        take(store, name)
    with postgres_engine.begin() as conn:
        conn.execute(text(collate.format("en-x-icu")))
    try:
        found = [status.request_id for status in store.statuses("event-1")]
    finally:
        with postgres_engine.begin() as conn:
            conn.execute(text(collate.format("default")))
    assert found == ["evidence--", "evidence-B", "evidence-a", "evidence-b"]


# --- the database's clock -------------------------------------------------------------------------------------------


def test_without_a_time_the_database_is_asked(store: EvidenceStore, engine: Engine) -> None:
    """Every operation works by the database's own clock, to which the stored times belong."""

    def clock() -> float:
        with reading(engine) as conn:
            return read_clock(conn, None)

    before = clock()
    claim = store.claim(key(), worker_id="w", lease_seconds=60, max_attempts=3)
    assert claim is not None
    assert before + 60 <= claim.lease_expires_at <= clock() + 60
    store.fail(claim, "evidence.unavailable", retryable=True)
    assert before + 5 <= row(engine)["next_attempt_at"] <= clock() + 5
    assert store.claim(key(), worker_id="w", lease_seconds=60, max_attempts=3) is None
    other = store.claim(key("2"), worker_id="w", lease_seconds=60, max_attempts=3)
    assert other is not None
    store.release(other, "worker.drain", not_before=0.0)
    again = store.claim(key("2"), worker_id="w", lease_seconds=60, max_attempts=3)
    assert again is not None
    store.succeed(again)
    assert before <= row(engine, "evidence-2")["updated_at"] <= clock()
    store.mark_approved("event-1", "plan-1", "job-1", HASH)
    assert before <= row(engine)["next_attempt_at"] <= clock()
