"""How a visit ends: the step finished with its command, or the command handed back until it is due again."""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain import run
from worker.domain.errors import Blocked, RunConflict
from worker.domain.run_visit import Again, Ended, wait_seconds
from worker.flow.running.publish import LOST
from worker.flow.running.reconciliation import is_reconciliation
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.run_commands import CommandLease, close_command, finish_command, release_command
from worker.store.run_rows import change_run, writing_run


def finish(services: Services, lease: CommandLease, ending: Ended, workspace: str) -> str:
    """Write the end of the step and of its command together, or nothing of either; hand back where the run is busy."""
    if is_reconciliation(lease.attempt_id):  # it wrote the record itself
        closed = writing(services.engine, lambda conn: close_command(conn, lease, now=services.now()))
        return "succeeded" if closed else "lost"

    def work(conn: Connection) -> None:
        change_run(
            conn,
            lease.run_id,
            lambda record, at: run.finish_step(
                record,
                lease.step_id,
                attempt_id=lease.attempt_id,
                succeeded=ending.succeeded,
                result_code=ending.code,
                at=at,
            ),
            workspace=workspace,
            now=services.now(),
        )
        if not finish_command(conn, lease, now=services.now()):
            raise Blocked(LOST, "the run was resumed, or the lease on its step ran out; nothing of the visit counts")

    try:
        writing_run(services.engine, work)
    except RunConflict as refused:
        return "waiting" if refused.retryable and hand_back(services, lease, Again(code=refused.code)) else "lost"
    except Blocked as lost:
        if lost.code != LOST:
            raise
        return "lost"
    return "succeeded" if ending.succeeded else "failed"


def hand_back(services: Services, lease: CommandLease, ending: Again) -> bool:
    """Hand a command back until its next visit is due; false where the lease was lost."""
    wait = wait_seconds(lease.taken_at - lease.created_at)
    return writing(
        services.engine,
        lambda conn: release_command(conn, lease, code=ending.code, wait_seconds=wait, now=services.now()),
    )
