"""How an attempt at a step begins: the record, its command and the check against the database in one transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from worker.domain.canonical import sha256_hex
from worker.domain.errors import RunConflict
from worker.domain.messages import RUN_STEP
from worker.domain.run import is_mutating
from worker.domain.run_view import view_of
from worker.domain.run_visit import frozen_events, is_executable
from worker.flow.services import Services
from worker.store.installation import workspace_fingerprint
from worker.store.run_commands import insert_command
from worker.store.run_facts import moved_sources
from worker.store.run_rows import Change, change_run, writing_run

STALE = "run.plan_stale"
SHOWN = 10  # sources that a refusal names


def attempt_of(operation: str, run_id: str, request_id: str) -> str:
    """Return the attempt id of a request: the same request is the same attempt, however often it is made."""
    return f"attempt-{sha256_hex(f'{operation}:{run_id}:{request_id}')[:40]}"


def begin_attempt(services: Services, run_id: str, step_id: str, attempt_id: str, change: Change) -> dict[str, Any]:
    """Apply a change that starts a step, write its command with it, wake the fleet, and return the view.

    A change that is a replay writes and wakes nothing. Raises `RunConflict`, with `run.plan_stale` where sources moved
    since the run was planned, and then nothing is written.
    """
    workspace = workspace_fingerprint(services.engine)
    now = services.now()

    def work(conn: Connection) -> tuple[dict[str, Any], bool]:
        record, is_changed = change_run(conn, run_id, change, workspace=workspace, now=now)
        if is_changed:
            _refuse_foreign(record, step_id)
            _refuse_stale(conn, record)
            insert_command(
                conn,
                run_id=run_id,
                step_id=step_id,
                attempt_id=attempt_id,
                site_id=record["immutable"]["input"]["channel"],
                is_mutating=is_mutating(record, step_id),
                now=now,
            )
        return record, is_changed

    record, is_changed = writing_run(services.engine, work)
    services.checkpoint("run.started")
    if is_changed:
        services.queue.wake(RUN_STEP, run_id=run_id, step_id=step_id, attempt_id=attempt_id)
    return view_of(record)


def _refuse_foreign(record: dict[str, Any], step_id: str) -> None:
    if not is_executable(record, step_id):
        raise RunConflict("the fleet has no executor for this step; whoever planned the run executes it")


def _refuse_stale(conn: Connection, record: dict[str, Any]) -> None:
    moved = moved_sources(conn, record["immutable"]["input"]["channel"], frozen_events(record))
    if moved:
        named = ", ".join(moved[:SHOWN]) + (f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else "")
        raise RunConflict(
            f"these sources moved since the run was planned: {named}; plan a new run with locseal runs plan", code=STALE
        )
