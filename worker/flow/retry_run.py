"""Step: try a failed or interrupted step of a guided release again on the fleet."""

from __future__ import annotations

from typing import Any

from worker.domain import run
from worker.flow.running.attempt import attempt_of, begin_attempt
from worker.flow.services import Services


def retry_run(services: Services, run_id: str, step_id: str, *, request_id: str) -> dict[str, Any]:
    """Set a step back and start it anew, in one transaction, and return the run's view.

    The same request id retries once. Raises `RunConflict` where the step cannot be retried (an interrupted mutating
    one is reconciled first), `run.plan_stale` naming the sources that moved, `RunNotFound`, `RunCorrupt`.
    """
    run.check_retry(step_id, request_id)
    attempt_id = attempt_of("retry", run_id, request_id)

    def change(record: dict[str, Any], at: str) -> dict[str, Any] | None:
        reset = run.retry_step(record, step_id, request_id=request_id, at=at)
        return None if reset is None else run.start_step(reset, step_id, attempt_id=attempt_id, at=at)

    return begin_attempt(services, run_id, step_id, attempt_id, change)
