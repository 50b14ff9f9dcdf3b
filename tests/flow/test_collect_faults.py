"""Collecting evidence while things go wrong: late workers, a database that goes away, a process that dies anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert
from sqlalchemy.exc import OperationalError

from tests.builders import NOW, Keyring, change_event, job_for, request_for, response_for, result_for, results_for
from tests.evidence_builders import ScriptedProvider, ScriptedVerifier, failing, good, with_provider
from tests.fakes import Checkpoints, Crash
from tests.intake_builders import Everything, Rows, submit
from worker.domain.errors import ProviderFailure, Unavailable
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.collecting.slot import Collecting
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.leases import EVIDENCE
from worker.store.schema import approvals, deliveries, evidence, receipts, setbacks

CHECKPOINTS = ["collect.claimed", "collect.answered", "collect.signed", "collect.settled", "collect.ready"]


def ignore(_event_id: str) -> None:
    """Do nothing with a ready event."""


def another(services: Services, **changes: Any) -> Services:
    """Return the services of another worker process on the same database."""
    return replace(services, worker_id="w-other", collecting=Collecting(), **changes)


def expire(services: Services, now: float) -> None:
    """Do what the sweeper does with leases that ran out."""
    writing(services.engine, lambda conn: EVIDENCE.expire(conn, now=now))


def one_locale(services: Services, keys: Keyring) -> None:
    """Submit an event of one locale."""
    submit(services, keys, change_event(target_locales=["de"]))


# --- the operation guard and late workers ---------------------------------------------------------------------------


def test_no_call_begins_without_a_live_lease(services: Services, keys: Keyring, rows: Rows) -> None:
    """When the lease is nearly over before the call begins, nobody is asked and the row stays as it is."""
    one_locale(services, keys)
    ticks = iter([1000.0, *[1295.0] * 9])  # before the claim, then 300 s of lease less 5 s of margin later
    provider = ScriptedProvider(good(keys))
    asked = with_provider(services, provider, monotonic=lambda: next(ticks))
    assert collect_evidence(asked, None, ready=ignore) == Collected(claimed=1)
    [row] = rows(evidence)
    assert (row["status"], row["attempts"], row["lease_owner"], row["lease_expires_at"], row["last_error_code"]) == (
        "leased",
        1,
        "w-test",
        NOW + 300,
        None,
    )
    assert (provider.asked, rows(setbacks), rows(approvals)) == ([], [], [])


def test_no_verification_begins_without_a_live_lease(services: Services, keys: Keyring, rows: Rows) -> None:
    """When the provider took nearly the whole lease, no receipt is shown to anybody and the attempt is retried."""
    one_locale(services, keys)
    tick = [1000.0]

    def answer(request: Any) -> Any:
        tick[0] = 1295.0
        return response_for(keys, request)

    verifier = ScriptedVerifier(lambda _receipt, _binding: None)
    asked = with_provider(
        services, ScriptedProvider(answer), verifiers={"quality": verifier}, monotonic=lambda: tick[0]
    )
    assert collect_evidence(asked, None, ready=ignore) == Collected(claimed=1, failed=1)
    [row] = rows(evidence)
    assert (row["status"], row["last_error_code"], row["next_attempt_at"]) == (
        "retry_wait",
        "release.receipt.operation_guard",
        NOW + 5,
    )
    assert (verifier.shown, rows(approvals)) == ([], [])


@pytest.mark.parametrize("outcome", ["good", "refused", "retryable"])
def test_worker_that_wakes_late_changes_nothing(
    services: Services, keys: Keyring, everything: Everything, rows: Rows, outcome: str
) -> None:
    """A worker paused beyond its lease finds its row done by another: whatever it brings, nothing is changed by it."""
    one_locale(services, keys)
    now = [NOW]
    stored: list[Any] = []

    def overtake() -> None:
        now[0] = NOW + 301
        expire(services, now[0])
        other = with_provider(another(services, now=lambda: NOW + 301), ScriptedProvider(good(keys)))
        assert collect_evidence(other, None, ready=ignore) == Collected(claimed=1, approved=1)
        stored.append(everything())

    async def late(request: Any) -> Any:
        await asyncio.to_thread(overtake)
        if outcome == "retryable":
            raise ProviderFailure("evidence.busy", retryable=True)
        return response_for(keys, request) if outcome == "good" else None

    paused = with_provider(services, ScriptedProvider(late), now=lambda: now[0])
    assert collect_evidence(paused, None, ready=ignore) == Collected(claimed=1)
    assert [everything()] == stored
    assert [row["approved_at"] for row in rows(approvals)] == [NOW + 301]


def test_lease_that_ran_out_unnoticed_is_worth_nothing(
    services: Services, keys: Keyring, everything: Everything
) -> None:
    """A lease that is over when the answer comes settles nothing, even if nobody took the row away."""
    one_locale(services, keys)
    now = [NOW]
    claimed: list[Any] = []

    def late(request: Any) -> Any:
        claimed.append(everything())
        now[0] = NOW + 300
        return response_for(keys, request)

    paused = with_provider(services, ScriptedProvider(late), now=lambda: now[0])
    assert collect_evidence(paused, None, ready=ignore) == Collected(claimed=1)
    assert [everything()] == claimed


def test_replaced_result_is_not_approved(services: Services, keys: Keyring, rows: Rows) -> None:
    """A result that is replaced while its evidence is on the way gets no approval; the new one is asked and does."""
    event_ = change_event(target_locales=["de"])
    submit(services, keys, event_)
    [old] = results_for(event_)
    new = result_for(job_for(event_, "de"), candidate="neu", replaces=request_for(event_, result=old).key.result_sha256)

    def answer(request: Any) -> Any:
        if request.document["target_text"] != "neu":
            assert submit(services, keys, event_, [new]).state == "accepted"
        return response_for(keys, request)

    provider = ScriptedProvider(answer)
    done = collect_evidence(with_provider(services, provider), None, ready=ignore)
    if len(provider.asked) == 1:  # whether the new row was due in time for the first collection is a matter of luck
        done = collect_evidence(with_provider(services, provider), None, ready=ignore)
    assert done.approved == 1
    assert [row["target_sha256"] for row in rows(approvals)] == [new["target_sha256"]]
    assert [row["status"] for row in rows(evidence)] == ["succeeded"]


# --- the database ---------------------------------------------------------------------------------------------------


def test_row_that_breaks_a_constraint_is_settled_alone(
    services: Services, engine: Engine, keys: Keyring, rows: Rows
) -> None:
    """A row whose receipt cannot be stored waits with a code of its own; the others of its batch are approved."""
    event_ = change_event(target_locales=["de", "fr", "it"])
    submit(services, keys, event_)
    bad = request_for(event_, "fr").request_id
    taken = {"purpose": "quality", "receipt": "x", "receipt_sha256": "0" * 64, "binding": "{}", "verified_at": NOW}
    writing(engine, lambda conn: conn.execute(insert(receipts).values(request_id=bad, **taken)))
    done = collect_evidence(with_provider(services, ScriptedProvider(good(keys))), None, ready=ignore)
    assert done == Collected(claimed=3, approved=2, failed=1)
    ended = {
        row["request_id"]: (row["status"], row["last_error_code"], row["next_attempt_at"]) for row in rows(evidence)
    }
    assert ended.pop(bad) == ("retry_wait", "release.approval.store.failed", NOW + 5)
    assert set(ended.values()) == {("succeeded", None, NOW)}
    assert {row["request_id"] for row in rows(approvals)} == set(ended)


@contextmanager
def away(engine: Engine, word: str, times: int) -> Iterator[list[str]]:
    """Let the next statements that begin with a word fail like a lost connection."""
    failed: list[str] = []

    def fail(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.lstrip().startswith(word) and len(failed) < times:
            failed.append(statement)
            raise OperationalError("", {}, ConnectionError("gone"))

    event.listen(engine, "before_cursor_execute", fail)
    try:
        yield failed
    finally:
        event.remove(engine, "before_cursor_execute", fail)


def test_answers_outlast_a_database_that_is_away(services: Services, engine: Engine, keys: Keyring, rows: Rows) -> None:
    """Answers are kept while the database is away and settled when it is back: one attempt, one call."""
    one_locale(services, keys)
    provider = ScriptedProvider(good(keys))
    ready: list[str] = []
    with away(engine, "INSERT INTO receipts", 2) as failed:
        done = collect_evidence(with_provider(services, provider), None, ready=ready.append)
    assert len(failed) == 2
    assert (done, ready, len(provider.asked)) == (Collected(claimed=1, approved=1), ["event-1"], 1)
    assert [(row["status"], row["attempts"]) for row in rows(evidence)] == [("succeeded", 1)]
    assert len(rows(approvals)) == 1


def test_answers_are_given_up_with_their_leases(services: Services, engine: Engine, keys: Keyring, rows: Rows) -> None:
    """When the lease is over before the database is back, the answer is dropped and the fault is told."""
    one_locale(services, keys)
    tick = [0.0]

    def answer(request: Any) -> Any:
        tick[0] = 290.0
        return response_for(keys, request)

    def passing() -> float:
        tick[0] += 2.5
        return tick[0]

    asked = with_provider(services, ScriptedProvider(answer), monotonic=passing)
    with away(engine, "INSERT INTO receipts", 1_000), pytest.raises(Unavailable):
        collect_evidence(asked, None, ready=ignore)
    assert [row["status"] for row in rows(evidence)] == ["leased"]
    assert rows(approvals) == []


def test_fault_before_anything_is_claimed_is_told(services: Services, engine: Engine, keys: Keyring) -> None:
    """With nothing in hand a fault of the database is raised, and the next call collects."""
    one_locale(services, keys)
    with away(engine, "WITH", 1), pytest.raises(Unavailable):
        collect_evidence(services, None, ready=ignore)
    assert collect_evidence(services, None, ready=ignore) == Collected(claimed=1, approved=1)


# --- death at every checkpoint --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_death_anywhere_ends_in_the_same_state(
    services: Services, keys: Keyring, checkpoints: Checkpoints, rows: Rows, name: str
) -> None:
    """A process that dies at any checkpoint is made good by the next: two approvals, one delivery, in the end."""
    event_ = change_event(target_locales=["de", "fr"])
    submit(services, keys, event_)
    checkpoints.crash_at = name
    with pytest.raises(Crash):
        collect_evidence(services, None, ready=ignore)
    checkpoints.crash_at = None
    later = another(services, now=lambda: NOW + 301)
    expire(later, NOW + 301)
    collect_evidence(later, None, ready=ignore)
    prepare_delivery(later, "event-1")
    assert {row["status"] for row in rows(evidence)} == {"succeeded"}
    assert {row["attempts"] for row in rows(evidence)} <= {1, 2}
    assert {row["job_id"] for row in rows(approvals)} == {job_for(event_, one).job_id for one in ("de", "fr")}
    assert (len(rows(approvals)), len(rows(receipts)), len(rows(deliveries))) == (2, 2, 1)


def test_death_inside_the_provider_frees_the_process(services: Services, keys: Keyring, rows: Rows) -> None:
    """A call that dies in a way nobody foresaw ends its own attempt retryably and nothing else."""
    event_ = change_event(target_locales=["de", "fr"])
    submit(services, keys, event_)

    def answer(request: Any) -> Any:
        return failing(Crash())(request) if request.document["target_locale"] == "de" else response_for(keys, request)

    done = collect_evidence(with_provider(services, ScriptedProvider(answer)), None, ready=ignore)
    assert done == Collected(claimed=2, approved=1, failed=1)
    assert {(row["status"], row["last_error_code"]) for row in rows(evidence)} == {
        ("succeeded", None),
        ("retry_wait", "evidence.unavailable"),
    }
