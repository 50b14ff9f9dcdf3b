"""Step: take a guided release back from a worker that died: what was running counts as interrupted."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from worker.domain import run
from worker.domain.errors import RunConflict
from worker.domain.messages import RUN_STEP
from worker.domain.run_view import view_of
from worker.domain.run_visit import frozen_events, is_executable
from worker.flow.running.reconciliation import reconciliation_of
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.installation import workspace_fingerprint
from worker.store.run_commands import commands_of, insert_command, withdraw_commands
from worker.store.run_facts import delivery_standings
from worker.store.run_rows import change_run, read_run, writing_run
from worker.store.runs import RunStore

ALIVE = "run.executor_alive"


def resume_run(services: Services, run_id: str, *, request_id: str, force: bool = False) -> dict[str, Any]:
    """Interrupt the running step, withdraw its command and its permits, and return the run's view.

    The same request id resumes once. Raises `RunConflict` with `run.executor_alive` where a worker holds a live lease
    on the step or on one of its deliveries, unless it is forced: what that worker still does then counts for nothing, but may still be done.
    """
    workspace = workspace_fingerprint(services.engine)
    run.check_resume(request_id)
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
    return _resume(services, run_id, request_id, workspace)


def _resume(services: Services, run_id: str, request_id: str, workspace: str) -> dict[str, Any]:
    now = services.now()
    command_id = reconciliation_of(run_id, request_id)

    def work(conn: Connection) -> tuple[dict[str, Any], str | None]:
        before = read_run(conn, run_id, workspace=workspace, lock=True)
        record, is_changed = change_run(
            conn,
            run_id,
            lambda record, at: run.resume(record, request_id=request_id, at=at),
            workspace=workspace,
            now=now,
        )
        if not is_changed:
            return record, None
        withdraw_commands(conn, run_id)
        step_id = _reconciled_by_fleet(services, before)
        if step_id is not None:
            insert_command(
                conn,
                run_id=run_id,
                step_id=step_id,
                attempt_id=command_id,
                site_id=before["immutable"]["input"]["channel"],
                is_mutating=False,
                now=now,
            )
        return record, step_id

    record, step_id = writing_run(services.engine, work)
    services.checkpoint("run.resumed")
    if step_id is not None:
        services.queue.wake(RUN_STEP, run_id=run_id, step_id=step_id, attempt_id=command_id)
    return view_of(record)


def _reconciled_by_fleet(services: Services, record: dict[str, Any]) -> str | None:
    """Return the running mutating step that the fleet may reconcile itself, by the site's policy, or None."""
    running = [step["id"] for step in record["state"]["steps"] if step["state"] == "running"]
    if not running or not is_executable(record, running[0]) or not run.is_mutating(record, running[0]):
        return None
    policy = services.policies.for_site(record["immutable"]["input"]["channel"])
    return str(running[0]) if policy.reconciliation == "fleet" else None


def _alive(what: str) -> RunConflict:
    return RunConflict(f"{what}, under a lease that has not run out; wait, or take it away with --force", code=ALIVE)
