"""Intake beside everything else: whatever the order or the moment, the end is the same (HOUSE, law 8)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from typing import Any

import pytest
from sqlalchemy import Engine, update

from tests.builders import (
    NOW,
    Keyring,
    approval_for,
    change_event,
    job_for,
    request_for,
    result_for,
    results_for,
    signed_submission,
    signed_withdrawal,
)
from tests.intake_builders import Rows, states, submit
from worker.domain.acceptance import Acceptance
from worker.domain.canonical import canonical_text, hash_of
from worker.flow.accept_submission import accept_submission
from worker.flow.services import Services
from worker.flow.withdraw_event import withdraw_event
from worker.store.approvals import StoredApproval
from worker.store.engine import writing
from worker.store.evidence import EvidenceStore
from worker.store.schema import approvals, events, evidence, jobs
from worker.store.settlements import Batch, Settled, Success, settle

Step = tuple[Callable[[Services, str], Acceptance], str]


def run_at_once(services: Services, steps: list[Step]) -> list[Acceptance]:
    """Run steps in threads of their own and return their answers."""
    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(lambda step: step[0](services, step[1]), steps))


def history(keys: Keyring, name: str) -> list[Step]:
    """Return three changes of one source that share a locale, and the withdrawal of the second."""
    steps: list[Step] = []
    for sequence in (1, 2, 3):
        locales = ["de", "fr-CA", "it"][:sequence]
        event = change_event(
            event_id=f"{name}-{sequence}", source_id=name, source_sequence=sequence, target_locales=locales
        )
        steps.append((accept_submission, signed_submission(keys, event, results_for(event, locales=["de", "it"]))))
        if sequence == 2:
            steps.append((withdraw_event, signed_withdrawal(keys, event)))
    return steps


def outcome(rows: Rows, name: str) -> tuple[list[str], set[tuple[str, str]]]:
    """Return the states of a source's events in order, and the (event, status) of what is asked."""
    ended = [state for event_id, state in sorted(states(rows).items()) if event_id.startswith(f"{name}-")]
    asked = {
        (row["event_id"].removeprefix(f"{name}-"), row["status"])
        for row in rows(evidence)
        if row["event_id"].startswith(f"{name}-") and row["status"] != "failed"
    }
    return ended, asked


EXPECTED = (["superseded", "withdrawn", "open"], {("3", "pending")})


def test_order_of_arrival_does_not_matter(services: Services, keys: Keyring, rows: Rows) -> None:
    """Three changes and a withdrawal end alike in each of their 24 orders; only the newest is asked about."""
    for number, order in enumerate(permutations(range(4))):
        steps = history(keys, f"s{number}")
        assert [steps[place][0](services, steps[place][1]).state for place in order] == ["accepted"] * 4
    assert [outcome(rows, f"s{number}") for number in range(24)] == [EXPECTED] * 24
    per_source = {f"s{number}": 0 for number in range(24)}
    for row in rows(evidence):
        if row["status"] == "pending":
            per_source[row["event_id"].split("-")[0]] += 1
    assert set(per_source.values()) == {2}  # de and it; fr-CA has no result


def test_all_at_once_and_twice_ends_the_same(services: Services, keys: Keyring, rows: Rows) -> None:
    """The same messages, each twice and all at once: the same end, no error, no rejection."""
    for number in range(4):
        answers = run_at_once(services, history(keys, f"s{number}") * 2)
        assert {answer.state for answer in answers} == {"accepted"}
    assert [outcome(rows, f"s{number}") for number in range(4)] == [EXPECTED] * 4


def test_settle_and_replacement_never_both_win(services: Services, keys: Keyring, engine: Engine, rows: Rows) -> None:
    """Either the old result is approved and its replacement refused, or it is replaced and its holder settles nothing."""
    ends = set()
    for number in range(10):
        event = change_event(event_id=f"event-{number}", source_id=f"s-{number}", target_locales=["de"])
        submit(services, keys, event)
        request = request_for(event, "de")
        claim = EvidenceStore(engine).claim(request.key, worker_id="w", now=NOW, lease_seconds=300, max_attempts=5)
        assert claim is not None
        batch = Batch(successes=(Success(claim=claim, approval=stored_approval(keys, request), receipts=()),))
        new = result_for(job_for(event, "de"), candidate="Neu.")
        text = signed_submission(keys, event, [new | {"replaces": request.key.result_sha256}])
        with ThreadPoolExecutor(2) as pool:
            settled = pool.submit(settle, engine, batch, now=NOW)
            answer = pool.submit(accept_submission, services, text)
            approved = settled.result().approved
            code = answer.result().code
        current = next(row for row in rows(jobs) if row["job_id"] == request.key.job_id)["current_result_sha256"]
        stands = [row for row in rows(approvals) if row["job_id"] == request.key.job_id]
        if code is None:
            assert (approved, current, stands) == (frozenset(), hash_of(new), [])
        else:
            assert (code, approved) == ("submission.result.approved", {request.request_id})
            assert (current, len(stands)) == (request.key.result_sha256, 1)
        ends.add(code)
    assert ends <= {None, "submission.result.approved"}


def stored_approval(keys: Keyring, request: Any) -> StoredApproval:
    """Return the row of a signed approval."""
    signed = approval_for(keys, request)
    document = dict(signed.document)
    names = ("approval_id", "job_id", "result_sha256", "target_sha256", "request_id", "policy_sha256")
    return StoredApproval(
        **{name: document[name] for name in names},
        site_id="site-1",
        approved_at=document["approved_at"],
        expires_at=document["expires_at"],
        revoked_at=None,
        document=canonical_text(document),
        signature=signed.signature,
        kid=signed.kid,
    )


def test_settle_after_replacement_is_lost(services: Services, keys: Keyring, engine: Engine, rows: Rows) -> None:
    """A worker that comes back late with an answer about a replaced result changes nothing."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    request = request_for(event, "de")
    claim = EvidenceStore(engine).claim(request.key, worker_id="w", now=NOW, lease_seconds=300, max_attempts=5)
    assert claim is not None
    new = result_for(job_for(event, "de"), candidate="Neu.")
    submit(services, keys, event, [new | {"replaces": request.key.result_sha256}])
    before = rows(evidence)
    success = Success(claim=claim, approval=stored_approval(keys, request), receipts=())
    assert settle(engine, Batch(successes=(success,)), now=NOW) == Settled()
    assert rows(approvals) == [] and rows(evidence) == before


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_intake_waits_for_nobody_elses_source(services: Services, keys: Keyring, engine: Engine, rows: Rows) -> None:
    """On PostgreSQL a lock on one source does not hold up intake for another."""
    submit(services, keys, change_event())

    def hold(conn: Any) -> str:
        conn.execute(update(events).values(updated_at=NOW + 1))
        with ThreadPoolExecutor(1) as pool:
            return (
                pool.submit(submit, services, keys, change_event(event_id="other", source_id="other"))
                .result(timeout=5)
                .state
            )

    assert writing(engine, hold) == "accepted"
    assert set(states(rows)) == {"event-1", "other"}
