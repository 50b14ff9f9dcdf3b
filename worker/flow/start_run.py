"""Step: start the next step of a guided release on the fleet."""

from __future__ import annotations

from typing import Any

from worker.domain import run
from worker.domain.errors import RunConflict
from worker.flow.running.attempt import attempt_of, begin_attempt
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.installation import workspace_fingerprint
from worker.store.run_rows import read_run


def start_run(services: Services, run_id: str, *, request_id: str, step_id: str | None = None) -> dict[str, Any]:
    """Start a step (the first that has not succeeded, where none is named) and return the run's view.

    The same request id starts once. Raises `RunConflict` where the step cannot start, `run.plan_stale` (a
    `RunConflict`) naming the sources that moved since the run was planned, `RunNotFound`, `RunCorrupt`. Safe to run
    concurrently: one attempt holds the step.
    """
    run.check_resume(request_id)
    attempt_id = attempt_of("start", run_id, request_id)
    if step_id is None:
        with reading(services.engine) as conn:
            record = read_run(conn, run_id, workspace=workspace_fingerprint(services.engine), lock=False)
        step_id = run.step_of_attempt(record, attempt_id) or _next_step(record)
    return begin_attempt(
        services,
        run_id,
        step_id,
        attempt_id,
        lambda record, at: run.start_step(record, step_id, attempt_id=attempt_id, at=at),
    )


def _next_step(record: dict[str, Any]) -> str:
    for step in record["state"]["steps"]:
        if step["state"] != "succeeded":
            return str(step["id"])
    raise RunConflict("the run is complete; there is no step to start")
