"""Random commands from two stores on one database, against a small model of the rules that shares no code with them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import Engine, delete

from tests.run_builders import (
    SECOND,
    WORKSPACE,
    localization_input,
    localization_plan,
    software_input,
    software_plan,
    step,
)
from worker.domain.errors import RunConflict, RunCorrupt, RunError, RunNotFound
from worker.store.engine import writing
from worker.store.runs import RunStore
from worker.store.schema import release_runs

# id -> (mutating, planned status)
PLANNED = {
    "look": (False, "planned"),
    "send": (True, "planned"),
    "check": (False, "planned"),
    "tag": (True, "needs-executor"),
}
STEP_IDS = st.sampled_from([*PLANNED, "nowhere", "bad id"])
REQUEST_IDS = st.sampled_from([f"request-{number}" for number in range(6)] + ["short"])
ATTEMPT_IDS = st.sampled_from([f"request-{number}" for number in range(6)])  # the same names, another name space
CODES = st.sampled_from(["done", "broken", "process_interrupted", "reconciled_effect_succeeded", "Bad"])
OUTCOMES = st.sampled_from(["effect_absent", "effect_succeeded", "unresolved", "other"])
WORDS = st.sampled_from(["RECONCILE"] * 5 + ["reconcile"])


class Refused(Exception):
    """The model refuses with a kind of error."""

    def __init__(self, kind: type[RunError]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


@dataclass
class Model:
    """What release-runs says, as plainly as it can be said. No digests, no times, no storage."""

    is_blocked: bool
    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(PLANNED, "pending"))
    results: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(PLANNED))
    holders: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(PLANNED))
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLANNED, 0))
    attempts: dict[str, tuple[str, str, str | None]] = field(default_factory=dict)  # step, outcome, code
    requests: dict[str, tuple[str, str | None, str | None]] = field(default_factory=dict)
    events: list[tuple[str, str | None, str | None]] = field(default_factory=lambda: [("run_created", None, None)])

    def say(self, kind: str, step_id: str | None = None, code: str | None = None) -> None:
        """Append to the timeline."""
        self.events.append((kind, step_id, code))

    def require(self, condition: bool, kind: type[RunError] = RunConflict) -> None:
        """Refuse unless a condition holds."""
        if not condition:
            raise Refused(kind)

    def is_replay(self, request: str, what: tuple[str, str | None, str | None]) -> bool:
        """Tell whether a request was made before; refuse another one under its name."""
        if request in self.requests:
            self.require(self.requests[request] == what)
            return True
        return False

    def startable(self, step_id: str) -> bool:
        """Tell whether a step may start now."""
        order = list(PLANNED)
        earlier = order[: order.index(step_id)]
        return (
            not self.is_blocked
            and self.states[step_id] == "pending"
            and PLANNED[step_id][1] == "planned"
            and all(self.states[one] == "succeeded" for one in earlier)
        )

    def start(self, step_id: str, attempt: str) -> None:
        """Claim a step."""
        self.require(step_id != "bad id")
        if attempt in self.attempts:
            self.require(self.attempts[attempt][0] == step_id)
            return
        self.require(step_id in PLANNED, RunNotFound)
        self.require(self.startable(step_id))
        self.states[step_id], self.holders[step_id] = "running", attempt
        self.counts[step_id] += 1
        self.attempts[attempt] = (step_id, "running", None)
        self.say("step_started", step_id)

    def finish(self, step_id: str, attempt: str, succeeded: bool, code: str) -> None:
        """End an attempt."""
        self.require(step_id != "bad id" and code != "Bad")
        self.require(step_id in PLANNED, RunNotFound)
        known = self.attempts.get(attempt)
        self.require(known is not None and known[0] == step_id)
        assert known is not None
        outcome = "succeeded" if succeeded else "failed"
        if known[1] != "running":
            self.require(known[1:] == (outcome, code))
            return
        self.require(code != "reconciled_effect_succeeded", RunCorrupt)
        self.states[step_id], self.results[step_id] = outcome, code
        self.attempts[attempt] = (step_id, outcome, code)
        self.say(f"step_{outcome}", step_id, code)

    def resume(self, request: str) -> None:
        """Interrupt what runs."""
        self.require(request != "short")
        if self.is_replay(request, ("resume", None, None)):
            return
        for step_id, state in self.states.items():
            if state == "running":
                self.states[step_id], self.results[step_id] = "interrupted", "process_interrupted"
                holder = self.holders[step_id]
                assert holder is not None
                self.attempts[holder] = (step_id, "interrupted", "process_interrupted")
                self.say("step_interrupted", step_id, "process_interrupted")
        self.say("run_resumed")
        self.requests[request] = ("resume", None, None)

    def retry(self, step_id: str, request: str) -> None:
        """Set a step back."""
        self.require(step_id != "bad id" and request != "short")
        if self.is_replay(request, ("retry", step_id, None)):
            return
        self.require(step_id in PLANNED, RunNotFound)
        state = self.states[step_id]
        self.require(state == "failed" or (state == "interrupted" and not PLANNED[step_id][0]))
        self.say("step_retry_requested", step_id, "known_failure" if state == "failed" else "read_only_interruption")
        self.reset(step_id)
        self.requests[request] = ("retry", step_id, None)

    def reconcile(self, step_id: str, request: str, outcome: str, word: str) -> None:
        """Say what became of a step."""
        self.require(step_id != "bad id" and outcome != "other" and word == "RECONCILE" and request != "short")
        if self.is_replay(request, ("reconcile", step_id, outcome)):
            return
        self.require(step_id in PLANNED, RunNotFound)
        self.require(self.states[step_id] == "interrupted" and PLANNED[step_id][0])
        if outcome == "effect_absent":
            self.reset(step_id)
        elif outcome == "effect_succeeded":
            self.states[step_id], self.results[step_id] = "succeeded", "reconciled_effect_succeeded"
        self.say("step_reconciled", step_id, outcome)
        self.requests[request] = ("reconcile", step_id, outcome)

    def reset(self, step_id: str) -> None:
        """Make a step pending again; its count stays."""
        self.states[step_id], self.results[step_id], self.holders[step_id] = "pending", None, None

    def status(self) -> str:
        """Return the status of the run."""
        states = set(self.states.values())
        if self.is_blocked:
            return "blocked"
        if states == {"succeeded"}:
            return "completed"
        if "running" in states:
            return "running"
        if states & {"failed", "interrupted"}:
            return "attention"
        waiting = next(step_id for step_id, state in self.states.items() if state == "pending")
        return "planned" if PLANNED[waiting][1] == "planned" else "blocked"

    def advice(self) -> tuple[str, str | None, bool]:
        """Return id, step and availability of the recommended action."""
        if self.is_blocked:
            return "resolve_plan_blocker", None, False
        left = [(step_id, state) for step_id, state in self.states.items() if state != "succeeded"]
        if not left:
            return "run_complete", None, False
        step_id, state = left[0]
        if state == "pending":
            return ("execute_step", step_id, True) if self.startable(step_id) else ("unavailable_step", step_id, False)
        if state == "interrupted" and PLANNED[step_id][0]:
            return "reconcile_step", step_id, True
        return ("wait_for_step", step_id, False) if state == "running" else ("retry_step", step_id, True)


class RunMachine(RuleBasedStateMachine):
    """Drives one run through two stores at a clock that never goes back."""

    engine: Engine

    @initialize(
        kind=st.sampled_from(["software", "localization"]), status=st.sampled_from(["ready", "attention", "blocked"])
    )
    def create(self, kind: str, status: str) -> None:
        writing(self.engine, lambda conn: conn.execute(delete(release_runs)))
        steps = [step(name, mutating=one[0], status=one[1]) for name, one in PLANNED.items()]
        self.now = SECOND
        self.model = Model(is_blocked=status == "blocked" and len(steps) > 0)
        given, plan = (
            (software_input(), software_plan(dry_run_steps=steps, status=status))
            if kind == "software"
            else (localization_input(), localization_plan(dry_run_steps=steps, status=status))
        )
        self.run_id = self.store(0).create(input_snapshot=given, plan_snapshot=plan)["run_id"]
        self.seen = self.store(1).get(self.run_id)

    def store(self, which: int) -> RunStore:
        return RunStore(self.engine, workspace_fingerprint=WORKSPACE, now=self.now + which / 2)

    def agree(self, act: Any, expect: Any) -> None:
        """Do a command and what the model does; both refuse alike, or the view is what the model says."""
        before = len(self.model.events)
        try:
            expect()
        except Refused as refused:
            kind = refused.kind
            with pytest.raises(kind) as caught:
                act()
            assert caught.type is kind
            assert self.store(1).get(self.run_id) == self.seen
            return
        view = act()
        if len(self.model.events) == before:  # a replay
            assert view == self.seen
        self.seen = view

    @rule(which=st.integers(0, 1), step_id=STEP_IDS, attempt=ATTEMPT_IDS)
    def start(self, which: int, step_id: str, attempt: str) -> None:
        self.agree(
            lambda: self.store(which).start_step(self.run_id, step_id, attempt_id=attempt),
            lambda: self.model.start(step_id, attempt),
        )

    @rule(which=st.integers(0, 1), attempt=ATTEMPT_IDS)
    def start_next(self, which: int, attempt: str) -> None:
        step_id = self.model.advice()[1] or "look"
        self.start(which, step_id, attempt)

    @rule(which=st.integers(0, 1), step_id=STEP_IDS, attempt=ATTEMPT_IDS, succeeded=st.booleans(), code=CODES)
    def finish(self, which: int, step_id: str, attempt: str, succeeded: bool, code: str) -> None:
        self.agree(
            lambda: self.store(which).finish_step(
                self.run_id, step_id, attempt_id=attempt, succeeded=succeeded, result_code=code
            ),
            lambda: self.model.finish(step_id, attempt, succeeded, code),
        )

    @rule(which=st.integers(0, 1), succeeded=st.booleans(), code=CODES)
    def finish_running(self, which: int, succeeded: bool, code: str) -> None:
        for step_id, holder in self.model.holders.items():
            if holder is not None and self.model.states[step_id] == "running":
                self.finish(which, step_id, holder, succeeded, code)

    @rule(which=st.integers(0, 1), request=REQUEST_IDS)
    def resume(self, which: int, request: str) -> None:
        self.agree(
            lambda: self.store(which).resume(self.run_id, request_id=request), lambda: self.model.resume(request)
        )

    @rule(which=st.integers(0, 1), step_id=STEP_IDS, request=REQUEST_IDS)
    def retry(self, which: int, step_id: str, request: str) -> None:
        self.agree(
            lambda: self.store(which).retry_step(self.run_id, step_id, request_id=request),
            lambda: self.model.retry(step_id, request),
        )

    @rule(which=st.integers(0, 1), step_id=STEP_IDS, request=REQUEST_IDS, outcome=OUTCOMES, word=WORDS)
    def reconcile(self, which: int, step_id: str, request: str, outcome: str, word: str) -> None:
        self.agree(
            lambda: self.store(which).reconcile_step(
                self.run_id, step_id, request_id=request, outcome=outcome, confirmation=word
            ),
            lambda: self.model.reconcile(step_id, request, outcome, word),
        )

    @rule(which=st.integers(0, 1), request=REQUEST_IDS, outcome=OUTCOMES)
    def reconcile_send(self, which: int, request: str, outcome: str) -> None:
        self.reconcile(which, "send", request, outcome, "RECONCILE")

    @rule(seconds=st.integers(1, 90))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "run_id"):
            return
        model, view = self.model, self.seen
        assert view == self.store(0).get(self.run_id)
        steps = view["state"]["steps"]
        assert {one["id"]: one["state"] for one in steps} == model.states
        assert {one["id"]: one["result_code"] for one in steps} == model.results
        assert {one["id"]: one["attempt_count"] for one in steps} == model.counts
        assert [one["available"] for one in steps] == [model.startable(one["id"]) for one in steps]
        assert [one["available"] for one in steps] == [one["disabled_reason"] == "" for one in steps]
        assert [one["reconciliation_required"] for one in steps] == [
            model.states[one["id"]] == "interrupted" and PLANNED[one["id"]][0] for one in steps
        ]
        assert [one["retry_available"] for one in steps] == [
            model.states[one["id"]] == "failed"
            or (model.states[one["id"]] == "interrupted" and not PLANNED[one["id"]][0])
            for one in steps
        ]
        events = view["state"]["events"]
        assert [(e["type"], e.get("step_id"), e.get("result_code")) for e in events] == model.events
        assert [e["sequence"] for e in events] == list(range(1, len(events) + 1))
        assert view["state"]["next_event_sequence"] == len(events) + 1
        assert view["state"]["status"] == model.status()
        advice = view["recommended_next"]
        assert (advice["id"], advice["step_id"], advice["available"]) == model.advice()
        assert self.store(1).list(limit=1)[0]["status"] == model.status()


def test_two_stores_agree_with_the_model(engine: Engine) -> None:
    """Whatever is asked in whatever order, view, refusal and timeline are those of the rules."""

    class Machine(RunMachine):
        pass

    Machine.engine = engine
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        ),
    )
