"""Step: take a guided release back from a worker that died: what was running counts as interrupted."""

from __future__ import annotations

from typing import Any

from worker.domain.errors import RunConflict
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.installation import workspace_fingerprint
from worker.store.run_commands import commands_of
from worker.store.runs import RunStore

ALIVE = "run.executor_alive"


def resume_run(services: Services, run_id: str, *, request_id: str, force: bool = False) -> dict[str, Any]:
    """Interrupt the running step, withdraw its command and its permits, and return the run's view.

    The same request id resumes once. Raises `RunConflict` with `run.executor_alive` where a worker holds a live lease
    on the step, unless it is forced: what that worker still does then counts for nothing, but may still be done.
    """
    workspace = workspace_fingerprint(services.engine)
    store = RunStore(services.engine, workspace_fingerprint=workspace, now=services.now())
    if not force:
        store.get(run_id)
        with reading(services.engine) as conn:
            visited = [one for one in commands_of(conn, run_id, now=services.now()) if one.is_visited]
        if visited:
            raise RunConflict(
                f"step {visited[0].step_id} is being worked at by {visited[0].lease_owner}; wait for it, or take it "
                "away with --force",
                code=ALIVE,
            )
    return store.resume(run_id, request_id=request_id)
