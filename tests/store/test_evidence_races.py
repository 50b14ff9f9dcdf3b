"""Workers that pause, wake late and race on one clock that steps: what must hold whatever they do, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test
from sqlalchemy import Engine, select, text

from tests.store.rows import HASH, key
from worker.domain.attempt import due_after
from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceClaim
from worker.store.engine import reading, writing
from worker.store.evidence import EvidenceStore
from worker.store.leases import EVIDENCE
from worker.store.schema import evidence
from worker.store.setbacks import Ending

ROWS = ("1", "2", "3")
BOUND = 3
LEASE_SECONDS = 10.0
CONTRACT = {
    "evidence.revision.already_consumed",
    "evidence.attempts_exhausted",
    "evidence.lease_lost",
    "evidence.lease_expired",
}


def outcome(call: Callable[[], Any]) -> tuple[Any, str | None]:
    """Return what a call returned, or the code it was refused with."""
    try:
        return call(), None
    except Blocked as refusal:
        return None, refusal.code


class Workers(RuleBasedStateMachine):
    """A model of three rows beside the real ones: who may settle, how many attempts there were, what has ended."""

    engine: Engine
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.store = EvidenceStore(self.engine)
        self.now = 1000.0
        self.held: dict[str, EvidenceClaim] = {}  # the newest claim of each row, live or not, until it is settled
        self.attempts = dict.fromkeys(ROWS, 0)
        self.ended: dict[str, tuple[Any, ...]] = {}  # terminal rows as they were stored
        self.due = dict.fromkeys(ROWS, 0.0)
        self.tokens: set[str] = set()
        with self.engine.begin() as conn:
            conn.execute(text("DELETE FROM evidence"))
            conn.execute(text("DELETE FROM setbacks"))

    # --- what workers do --------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.0, 0.5, 4.0, 5.0, 9.5, 10.0, 40.0]))
    def clock_steps(self, seconds: float) -> None:
        self.now += seconds

    @rule(target=claims, name=st.sampled_from(ROWS), worker=st.sampled_from(["w-1", "w-2"]))
    def claim(self, name: str, worker: str) -> Any:
        request = f"evidence-{name}"
        held = self.held.get(request)
        is_live = held is not None and held.lease_expires_at > self.now
        if held is not None and not is_live:  # a claim takes it away first
            self.due[name] = self.now
            if self.attempts[name] >= BOUND:
                self.expect_end(request)
            del self.held[request]
        claim, code = outcome(
            lambda: self.store.claim(
                key(name), worker_id=worker, now=self.now, lease_seconds=LEASE_SECONDS, max_attempts=BOUND
            )
        )
        if code is not None:
            assert code in CONTRACT
            assert request in self.ended
            self.ended[request] = self.ended[request] or self.stored(request)
            return multiple()
        assert request not in self.ended
        if claim is None:
            assert is_live or self.due[name] > self.now
            return multiple()
        assert not is_live
        assert self.due[name] <= self.now
        self.attempts[name] += 1
        assert (claim.attempt, claim.lease_owner) == (self.attempts[name], worker)
        assert claim.lease_token not in self.tokens
        self.tokens.add(claim.lease_token)
        self.held[request] = claim
        return claim

    @rule(
        claim=claims,
        how=st.sampled_from(["succeed", "retryable", "terminal", "release"]),
        wait=st.sampled_from([None, 0.0, 30.0, 9000.0]),
    )
    def settle(self, claim: EvidenceClaim, how: str, wait: float | None) -> None:
        """Any claim that was ever handed out may come back at any time, by whoever slept on it."""
        request, name = claim.request_id, claim.request_id.removeprefix("evidence-")
        before = self.stored(request)
        is_held = self.held.get(request) == claim and claim.lease_expires_at > self.now
        not_before = None if wait is None else self.now + wait
        calls: dict[str, Callable[[], None]] = {
            "succeed": lambda: self.store.succeed(claim, now=self.now),
            "retryable": lambda: self.store.fail(
                claim, "evidence.unavailable", retryable=True, not_before=not_before, now=self.now
            ),
            "terminal": lambda: self.store.fail(claim, "evidence.response.invalid", retryable=False, now=self.now),
            "release": lambda: self.store.release(
                claim, "worker.drain", not_before=self.now + (wait or 0.0), now=self.now
            ),
        }
        _, code = outcome(calls[how])
        if code is not None:
            assert code in CONTRACT
            assert not is_held
            assert self.stored(request) == before
            return
        if not is_held:  # the no-op on a succeeded row
            assert before[0] == "succeeded"
            assert self.stored(request) == before
            return
        del self.held[request]
        if how == "release":
            self.attempts[name] -= 1
            self.due[name] = self.now + (wait or 0.0)
        elif how == "retryable" and self.attempts[name] < BOUND:
            self.due[name] = due_after(self.attempts[name], self.now, not_before)
        else:
            self.expect_end(request)
            self.ended[request] = self.stored(request)
            assert self.ended[request][0] == ("succeeded" if how == "succeed" else "failed")

    @rule()
    def sweep(self) -> None:
        moved = writing(self.engine, lambda conn: EVIDENCE.expire(conn, now=self.now))
        over = {request for request, claim in self.held.items() if claim.lease_expires_at <= self.now}
        assert set(moved) == over
        for request in over:
            name = request.removeprefix("evidence-")
            del self.held[request]
            self.due[name] = self.now
            if self.attempts[name] >= BOUND:
                assert moved[request] == "failed"
                self.ended[request] = self.stored(request)
            else:
                assert moved[request] == "retry_wait"

    @rule(claim=claims)
    def batch_settles_late(self, claim: EvidenceClaim) -> None:
        """The batch's own settle is guarded alike: a stale claim is not among the rows it moved."""
        request = claim.request_id
        before = self.stored(request)
        is_held = self.held.get(request) == claim and claim.lease_expires_at > self.now
        mine = Ending(row_id=request, owner=claim.lease_owner, token=claim.lease_token)
        done = writing(self.engine, lambda conn: EVIDENCE.succeed(conn, [mine], now=self.now))
        assert done == ({request} if is_held else frozenset())
        if is_held:
            del self.held[request]
            self.ended[request] = self.stored(request)
        else:
            assert self.stored(request) == before

    @rule(name=st.sampled_from(ROWS))
    def approve(self, name: str) -> None:
        """An approval succeeds even what had failed; it is the one thing that moves a terminal row."""
        request = f"evidence-{name}"
        self.store.mark_approved("event-1", "plan-1", f"job-{name}", HASH, now=self.now)
        if self.stored(request):
            self.held.pop(request, None)
            self.ended[request] = self.stored(request)
            assert self.ended[request][0] == "succeeded"

    # --- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def rows_are_as_the_model_says(self) -> None:
        with reading(self.engine) as conn:
            rows = conn.execute(select(evidence)).mappings().all()
        for found in rows:
            EVIDENCE.check(found)
            name = found["request_id"].removeprefix("evidence-")
            held = self.held.get(found["request_id"])
            assert 0 <= found["attempts"] <= found["max_attempts"] == BOUND
            assert found["attempts"] == self.attempts[name]
            assert (found["status"] == "leased") == (held is not None)
            if held is not None:  # never two live leases: the row knows one token, and it is the newest claim's
                assert found["lease_token"] == held.lease_token
            if found["request_id"] in self.ended:
                assert self.stored(found["request_id"]) == self.ended[found["request_id"]]

    def expect_end(self, request: str) -> None:
        self.ended.setdefault(request, ())

    def stored(self, request: str) -> tuple[Any, ...]:
        columns = [column for column in evidence.c if column.name not in ("request_id", "status")]
        with reading(self.engine) as conn:
            found = conn.execute(
                select(evidence.c.status, *columns).where(evidence.c.request_id == request)
            ).one_or_none()
        return () if found is None else tuple(found)


def test_racing_workers_never_break_the_machine(engine: Engine, request: pytest.FixtureRequest) -> None:
    """Never two live leases on a row; attempts never above the bound; a stale claim changes nothing; ends are final."""
    machine = type("WorkersHere", (Workers,), {"engine": engine})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
