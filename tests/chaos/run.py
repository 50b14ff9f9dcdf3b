"""One run: faults and submissions by the plan, then quiet, the audit, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos import ending
from tests.chaos.arena import Arena, arena
from tests.chaos.bound import measure_bound
from tests.chaos.faults import Steps, begin
from tests.chaos.people import Operator, User
from tests.chaos.plan import GAP_SECONDS, Fault, Lane, Plan, make_plan
from tests.chaos.producer import Producer, Sent
from tests.chaos.recovery import Recovery, progress_of, recovery_after
from worker.cli.local_fleet import FleetError
from worker.domain.errors import Unavailable

TICK_SECONDS: Final = 0.05
LOOK_SECONDS: Final = 1.0
FULL_LENGTH_FAULTS: Final = 100  # from so many on, faults last as long as the plan's table says
BOUND_TRIALS: Final = 5


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run is asked for."""

    events: int
    faults: int
    seed: int
    is_sqlite: bool = False
    gap_seconds: float = GAP_SECONDS
    quiet_seconds: float = 600.0  # after the last fault; what is not ended by then is lost
    bound_trials: int | None = None  # how often the recovery bound is measured; unset: in runs of full length

    @property
    def is_short(self) -> bool:
        """Tell whether faults, leases and the recovery bound are shortened."""
        return self.faults < FULL_LENGTH_FAULTS and not self.bound_trials

    @property
    def command(self) -> str:
        """Return the command that makes the same plan."""
        extra = " --sqlite" if self.is_sqlite else ""
        gap = "" if self.gap_seconds == GAP_SECONDS else f" --gap {self.gap_seconds:g}"
        extra += "" if self.bound_trials is None else f" --bound-trials {self.bound_trials}"
        return f'make chaos ARGS="--events {self.events} --faults {self.faults} --seed {self.seed}{gap}{extra}"'


@dataclass(frozen=True, kw_only=True)
class Done:
    """One fault as it was done; times in seconds since the epoch."""

    fault: Fault
    target: str
    began_at: float
    ended_at: float


@dataclass(kw_only=True)
class Outcome:
    """All that is known at the end of a run."""

    options: Options
    plan: Plan
    done: list[Done] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    kept: list[Sent] = field(default_factory=list)
    ends: dict[str, ending.EventEnd] = field(default_factory=dict)
    publications: ending.Publications | None = None
    sandbox: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, ending.Calls] = field(default_factory=dict)
    audit: dict[str, Any] = field(default_factory=dict)
    ended_by_themselves: dict[str, int] = field(default_factory=dict)
    reconciled: int = 0
    user_commands: int = 0
    user_faults: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)  # logs that hold "database is locked"
    bound_seconds: list[float] = field(default_factory=list)
    chaos_seconds: float = 0.0
    quiet_seconds: float = 0.0
    is_quiet: bool = False


def run_chaos(options: Options, directory: Path, say: Callable[[str], None]) -> Outcome:
    """Do a whole run in a directory that keeps the logs. Takes as long as the plan and the quiet after it."""
    plan = make_plan(
        seed=options.seed,
        events=options.events,
        faults=options.faults,
        is_sqlite=options.is_sqlite,
        gap_seconds=options.gap_seconds,
        scale=max(0.3, min(1.0, options.faults / FULL_LENGTH_FAULTS)),
    )
    outcome = Outcome(options=options, plan=plan)
    with arena(directory, is_sqlite=options.is_sqlite, is_short=options.is_short) as here:
        say(f"ready: {len(here.workers)} workers, {len(here.beats)} beats; logs in {directory / 'logs'}")
        producer = Producer(here.stage, plan.sendings)
        operator = Operator(here)
        producer.start()
        outcome.kept = producer.kept
        try:
            _under_fire(here, outcome, producer, operator, say)
            _until_quiet(here, outcome, producer, operator, say)
        finally:
            producer.stop()
        _look_at_the_end(here, outcome)
        if not options.is_short and outcome.is_quiet:
            trials = BOUND_TRIALS if options.bound_trials is None else options.bound_trials
            outcome.bound_seconds = measure_bound(here, trials=trials)
    outcome.locked = [
        path.name
        for path in sorted((directory / "logs").glob("*.log"))
        if "database is locked" in path.read_text(encoding="utf-8", errors="replace")
    ]
    return outcome


# --- under fire -----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _Running:
    fault: Fault
    target: str
    steps: Steps
    began_at: float
    next_at: float  # monotonic


def _under_fire(
    here: Arena, outcome: Outcome, producer: Producer, operator: Operator, say: Callable[[str], None]
) -> None:
    """Do all faults of the plan, each at its time or when its lane is free, until all submissions are sent too."""
    began = time.monotonic()
    waiting: dict[Lane, list[Fault]] = {}
    for fault in outcome.plan.faults:
        waiting.setdefault(fault.kind.lane, []).append(fault)
    running: dict[Lane, _Running] = {}
    user = User(here) if outcome.options.is_sqlite else None
    while any(waiting.values()) or running or time.monotonic() - began < outcome.plan.seconds:
        producer.is_done()  # raises what its thread met
        for lane, faults in waiting.items():
            now = time.monotonic()
            if lane in running:
                _step(running, lane, outcome, say)
            elif faults and faults[0].starts_at <= now - began:
                fault = faults.pop(0)
                target, steps = begin(here, fault)
                running[lane] = _Running(fault=fault, target=target, steps=steps, began_at=time.time(), next_at=now)
                _step(running, lane, outcome, say)
        here.supervise()
        operator.look()
        if user is not None:
            user.look()
        time.sleep(TICK_SECONDS)
    outcome.chaos_seconds = time.monotonic() - began
    if user is not None:
        user.finish()
        outcome.user_commands, outcome.user_faults = user.commands, user.faults


def _step(running: dict[Lane, _Running], lane: Lane, outcome: Outcome, say: Callable[[str], None]) -> None:
    one = running[lane]
    if time.monotonic() < one.next_at:
        return
    wait = next(one.steps, None)
    if wait is not None:
        one.next_at = time.monotonic() + wait
        return
    del running[lane]
    outcome.done.append(Done(fault=one.fault, target=one.target, began_at=one.began_at, ended_at=time.time()))
    say(f"{len(outcome.done):4d}/{len(outcome.plan.faults)}  {one.fault.kind.name} ({one.target})")


# --- afterwards -----------------------------------------------------------------------------------------------------


def _until_quiet(
    here: Arena, outcome: Outcome, producer: Producer, operator: Operator, say: Callable[[str], None]
) -> None:
    """Wait until everything has ended, and the operator has reconciled what only an operator may (SPEC 7)."""
    began = time.monotonic()
    say("the faults are over; waiting for quiet")
    while time.monotonic() - began < outcome.options.quiet_seconds and not outcome.is_quiet:
        here.supervise()
        operator.look()
        time.sleep(LOOK_SECONDS)
        try:
            is_over = producer.is_done() and not ending.unknown_outcomes(here.stage)
            outcome.is_quiet = is_over and ending.is_quiet(here.stage)
        except Unavailable:
            outcome.is_quiet = False
    outcome.quiet_seconds = time.monotonic() - began
    outcome.reconciled = operator.reconciled


def _look_at_the_end(here: Arena, outcome: Outcome) -> None:
    stage = here.stage
    outcome.ends = ending.ends_of(stage)
    outcome.sandbox = ending.sandbox_state(stage)
    outcome.publications = ending.judge_publications(outcome.plan.events, outcome.ends, outcome.sandbox["publications"])
    outcome.calls = ending.calls_by_request(stage, outcome.sandbox["arrivals"])
    progress = progress_of(stage)
    outcome.recoveries = [recovery_after(one.ended_at, progress) for one in outcome.done]
    outcome.ended_by_themselves = dict(here.ended)
    audited = here.command("audit", "--json")
    outcome.audit = json.loads(audited.stdout)
    if "violation_count" not in outcome.audit:
        raise FleetError(f"locseal audit could not run: {audited.stdout}{audited.stderr}")
