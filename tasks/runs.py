"""Release runs: visit a step of a guided release."""

from __future__ import annotations

from tasks.border import FleetTask
from worker.app import app, services
from worker.domain.messages import RUN_STEP
from worker.domain.run_visit import Visit
from worker.flow.run_step import run_step


@app.task(name=RUN_STEP, base=FleetTask)
def step(run_id: str, step_id: str, attempt_id: str) -> Visit:
    """Work at an attempt at a step of a run, under the lease of its command."""
    return run_step(services(), run_id, step_id, attempt_id)
