"""Step: take a guided release back from a worker that died: what was running counts as interrupted."""

from __future__ import annotations

from typing import Any

from worker.domain.errors import RunConflict
from worker.domain.run_visit import frozen_events
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.installation import workspace_fingerprint
from worker.store.run_commands import commands_of
from worker.store.run_facts import delivery_standings
from worker.store.runs import RunStore

ALIVE = "run.executor_alive"


def resume_run(services: Services, run_id: str, *, request_id: str, force: bool = False) -> dict[str, Any]:
    """Interrupt the running step, withdraw its command and its permits, and return the run's view.

    The same request id resumes once. Raises `RunConflict` with `run.executor_alive` where a worker holds a live lease
    on the step or on one of its deliveries, unless it is forced: what that worker still does then counts for nothing, but may still be done.
    """
    workspace = workspace_fingerprint(services.engine)
    store = RunStore(services.engine, workspace_fingerprint=workspace, now=services.now())
    if not force:
        record = store.get(run_id)
        with reading(services.engine) as conn:
            visited = [one for one in commands_of(conn, run_id, now=services.now()) if one.is_visited]
            is_running = record["state"]["status"] == "running"
            frozen = frozen_events(record) if is_running else ()
            sending = [one for one in delivery_standings(conn, frozen, now=services.now()) if one.is_leased]
        if visited:
            raise _alive(f"step {visited[0].step_id} is being worked at by {visited[0].lease_owner}")
        if sending:
            raise _alive(f"delivery {sending[0].delivery_id} is being sent or asked about")
    return store.resume(run_id, request_id=request_id)


def _alive(what: str) -> RunConflict:
    return RunConflict(f"{what}, under a lease that has not run out; wait, or take it away with --force", code=ALIVE)
