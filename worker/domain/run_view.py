"""What people and tools see of a release run: the view, the list row and the one recommended next action."""

from __future__ import annotations

import copy
from typing import Any, Final

from worker.domain.run_plan import kind_of

Json = dict[str, Any]

NOT_PLANNED: Final = {
    "needs-executor": "no executor exists for this step",
    "needs-version-metadata": "this step has no executor: its version metadata is missing",
}


def unavailable_reason(record: Json, index: int) -> str:
    """Return why a step cannot start now, or an empty text where it can; the first failing check supplies it."""
    plan, steps = record["immutable"]["plan"], record["state"]["steps"]
    step, planned = steps[index], plan["dry_run_steps"][index]
    if plan["status"] == "blocked":
        return "the plan is blocked"
    if step["state"] == "running":
        return "the step is running"
    if step["state"] == "succeeded":
        return "the step is complete"
    if step["state"] == "failed":
        return "the step failed; ask for a retry"
    if step["state"] == "interrupted":
        if planned["mutating"]:
            return "the step was interrupted and may have taken effect; reconcile it"
        return "the step was interrupted; ask for a retry"
    if planned["status"] != "planned":
        return NOT_PLANNED[planned["status"]]
    for earlier in steps[:index]:
        if earlier["state"] != "succeeded":
            return f"step {earlier['id']} must be completed first"
    return ""


def view_of(record: Json) -> Json:
    """Return a detached view: the record without remembered requests and attempts, steps enriched, advice added."""
    view = copy.deepcopy(record)
    state = view["state"]
    del state["processed_requests"], state["processed_attempts"]
    state["steps"] = [_step_view(record, index) for index in range(len(state["steps"]))]
    view["recommended_next"] = recommended_next(record)
    return view


def row_of(record: Json) -> Json:
    """Return the list row of a valid record."""
    given = record["immutable"]["input"]
    row = {
        "run_id": record["run_id"],
        "created_at": record["created_at"],
        "updated_at": record["updated_at"],
        "status": record["state"]["status"],
        "channel": given["channel"],
        "recommended_next": recommended_next(record),
    }
    if kind_of(given) == "localization":
        row |= {"website_version": given["website_version"], "event_count": len(given["events"])}
    else:
        row["repo_versions"] = dict(given["repo_versions"])
    return row


def unavailable_row(run_id: object) -> Json:
    """Return the list row of a record that is damaged or vanished."""
    return {"run_id": run_id, "status": "unavailable", "error": "the stored release run is damaged or gone"}


def recommended_next(record: Json) -> Json:
    """Return the one thing to do next: always id, step_id, title, detail, remediation and available."""
    plan = record["immutable"]["plan"]
    if plan["status"] == "blocked":
        return _blocked(plan["recommended_action"] or {})
    for index, step in enumerate(record["state"]["steps"]):
        if step["state"] != "succeeded":
            return _for_step(record, index)
    return {
        "id": "run_complete",
        "step_id": None,
        "title": "The release run is complete",
        "detail": "Every step has succeeded.",
        "remediation": "Review the recorded evidence before you close the release.",
        "available": False,
    }


def _blocked(action: Json) -> Json:
    return {
        "id": action.get("id") or "resolve_plan_blocker",
        "step_id": None,
        "title": action.get("title") or "Resolve the gate that blocks this plan",
        "detail": action.get("detail") or "The frozen plan is blocked.",
        "remediation": action.get("remediation") or "Fix the cause, then make a new run from a fresh plan.",
        "available": False,
    }


def _for_step(record: Json, index: int) -> Json:
    step = record["state"]["steps"][index]
    planned = record["immutable"]["plan"]["dry_run_steps"][index]
    reason = unavailable_reason(record, index)
    mutating = planned["mutating"]
    action, remediation, available = {
        "running": ("wait_for_step", "Wait for the step, or resume the run if its worker died.", False),
        "failed": ("retry_step", "Fix the cause, then ask for a retry of the step.", True),
        "interrupted": (
            ("reconcile_step", "Find out whether the step took effect, then reconcile it.", True)
            if mutating
            else ("retry_step", "The interrupted step changes nothing outside; ask for a retry.", True)
        ),
        "pending": ("unavailable_step", reason, False) if reason else ("execute_step", "Start the step.", True),
    }[step["state"]]
    return {
        "id": action,
        "step_id": step["id"],
        "title": planned["title"] or step["id"],
        "detail": planned["detail"] or "The next step of this release.",
        "remediation": remediation,
        "available": available,
    }


def _step_view(record: Json, index: int) -> Json:
    step = record["state"]["steps"][index]
    planned = record["immutable"]["plan"]["dry_run_steps"][index]
    reason = unavailable_reason(record, index)
    interrupted = step["state"] == "interrupted"
    return {
        **planned,
        "state": step["state"],
        "attempt_count": step["attempt_count"],
        "started_at": step["started_at"],
        "finished_at": step["finished_at"],
        "result_code": step["result_code"],
        "order": index + 1,
        "available": not reason,
        "disabled_reason": reason,
        "retry_available": step["state"] == "failed" or (interrupted and not planned["mutating"]),
        "reconciliation_required": interrupted and planned["mutating"],
    }
