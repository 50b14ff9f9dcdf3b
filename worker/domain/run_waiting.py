"""What a release run waits for, until when, and the one command to paste next: the same words wherever it is shown.

"publish: waiting for the CMS; 3 of 5 deliveries acknowledged, 1 in doubt; next visit at 12:04:00 UTC"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from worker.domain.run_plan import kind_of
from worker.domain.run_visit import PLAN_STALE, STEPS, DeliveryStanding

SHOWN: Final = 5  # sources that a sentence names

WAITED_FOR: Final = {
    "run.waits_for_evidence": "approvals",
    "run.waits_for_preparation": "deliveries to be prepared",
    "run.waits_for_cms": "the CMS",
}


@dataclass(frozen=True, kw_only=True)
class ExecutorFacts:
    """What the fleet's command behind a running step says. `none`: another tool executes it, or nobody."""

    state: Literal["visited", "due", "waiting", "dead", "none"]
    owner: str | None = None
    until: float | None = None  # when its lease ends, or its next visit is due
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run's view with what the database says of the events it froze."""

    view: Mapping[str, Any]
    executor: ExecutorFacts
    standings: tuple[DeliveryStanding, ...]
    moved: tuple[str, ...]  # sources whose frozen event is no longer the current one
    waiting_event: str | None  # an event that is not wholly approved
    waiting_sentence: str | None  # and what it waits for
    now: float


def run_sentence(facts: RunFacts) -> str:
    """Return the one sentence about a run: what it waits for and until when, or how it ended."""
    advice = facts.view["recommended_next"]
    step_id = advice["step_id"]
    if advice["id"] == "run_complete":
        return "complete: every step has succeeded"
    if advice["id"] == "wait_for_step":
        return f"{step_id}: {'; '.join(_running(facts, step_id))}"
    step = next((one for one in facts.view["state"]["steps"] if one["id"] == step_id), None)
    if step is None:
        return f"waiting for: an operator; {advice['detail']}"
    moved = _moved(facts)
    if advice["id"] == "reconcile_step" and facts.executor.state != "none":
        return f"{step_id}: interrupted; the fleet asks the CMS what became of it; {_visit(facts)}"
    code = f" with {step['result_code']}" if step["result_code"] else ""
    said = {
        "execute_step": f"{step_id}: waiting for an operator to start it",
        "retry_step": f"{step_id}: {step['state']}{code}; waiting for an operator to retry it",
        "reconcile_step": f"{step_id}: interrupted, and may have taken effect; waiting for an operator to reconcile it"
        + _not_before(facts),
    }.get(advice["id"], f"{step_id}: cannot start; {advice['remediation']}")
    return f"{said}{moved}"


def next_command(facts: RunFacts) -> str | None:
    """Return the one recommended command, ready to paste, or None where there is nothing to do."""
    view = facts.view
    advice, run_id, given = view["recommended_next"], view["run_id"], view["immutable"]["input"]
    if kind_of(given) != "localization" or advice["id"] == "run_complete":
        return None
    step_id = advice["step_id"]
    is_stale = bool(facts.moved) or any(step["result_code"] == PLAN_STALE for step in view["state"]["steps"])
    if advice["id"] == "reconcile_step":
        return f"locseal runs reconcile {run_id} {step_id}"
    if advice["id"] == "wait_for_step":
        if facts.executor.state in {"dead", "none"}:
            return f"locseal runs resume {run_id}"
        return f"locseal runs show {run_id} --watch"
    if advice["id"] == "resolve_plan_blocker" or is_stale or step_id not in STEPS:
        return f"locseal runs plan {given['channel']} {given['website_version']}"
    if advice["id"] == "retry_step":
        return f"locseal runs retry {run_id} {step_id}"
    return f"locseal runs start {run_id}"


def _running(facts: RunFacts, step_id: str) -> list[str]:
    executor = facts.executor
    if executor.state == "none":
        return ["running, but not by the fleet: whoever started it reports its end, or resume the run"]
    if executor.state == "dead":
        return ["its worker died in the middle; nothing new is sent, until the run is resumed"]
    parts = [f"waiting for {WAITED_FOR.get(executor.code or '', 'its next visit')}"]
    if step_id == "publish":
        parts.append(deliveries_sentence(facts.standings))
        leased = [one.leased_until for one in facts.standings if one.leased_until is not None]
        if leased:
            parts.append(f"{len(leased)} being sent or asked about, the last lease until {_at(facts, max(leased))}")
    if step_id == "evidence" and facts.waiting_event is not None:
        parts.append(f"first of all {facts.waiting_event}: {facts.waiting_sentence}")
    if executor.code is not None and executor.code not in WAITED_FOR:
        parts.append(f"the last visit met {executor.code}")
    if executor.state == "visited":
        return [
            "; ".join(["being worked at", *parts[1:]]),
            f"lease held by {executor.owner} until {_at(facts, executor.until)}",
        ]
    return [*parts, _visit(facts)]


def _visit(facts: RunFacts) -> str:
    executor = facts.executor
    if executor.state == "visited":
        return f"lease held by {executor.owner} until {_at(facts, executor.until)}"
    return f"next visit at {_at(facts, executor.until)}" if executor.state == "waiting" else "next visit is due now"


def deliveries_sentence(standings: Sequence[DeliveryStanding]) -> str:
    """Return how many deliveries are acknowledged, and how many are in doubt."""
    accepted = sum(one.is_accepted for one in standings)
    doubtful = sum(one.is_unknown and not one.is_accepted for one in standings)
    doubt = f", {doubtful} in doubt" if doubtful else ""
    return f"{accepted} of {len(standings)} deliveries acknowledged{doubt}"


def _moved(facts: RunFacts) -> str:
    if not facts.moved:
        return ""
    more = f" and {len(facts.moved) - SHOWN} more" if len(facts.moved) > SHOWN else ""
    return f"; the plan is stale: {', '.join(facts.moved[:SHOWN])}{more} moved since it was made"


def _not_before(facts: RunFacts) -> str:
    leased = [one.leased_until for one in facts.standings if one.leased_until is not None]
    return f", not before {_at(facts, max(leased))} when the last lease on a delivery ends" if leased else ""


def _at(facts: RunFacts, seconds: float | None) -> str:
    shown, today = (datetime.fromtimestamp(value, UTC) for value in (seconds or facts.now, facts.now))
    return shown.strftime("%H:%M:%S UTC" if shown.date() == today.date() else "%Y-%m-%d %H:%M:%S UTC")
