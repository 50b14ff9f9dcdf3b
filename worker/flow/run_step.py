"""Step: visit one step of a guided release: check, start what is due, and either finish it or hand it back.

A visit is short and stands under the lease of its command (`store.run_commands`), so of many messages one acts. The
record says `running` from the command that started the attempt until a visit finishes it. What a visit finds wrong
ends the step with a code; what cannot answer just now is asked again on the next visit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sqlalchemy import Connection

from worker.domain.errors import Blocked, RunNotFound
from worker.domain.run_visit import (
    EVIDENCE,
    PLAN_STALE,
    PREFLIGHT,
    PREPARE,
    PUBLISH,
    VERIFY,
    Again,
    Ended,
    Ending,
    Visit,
    result_code,
)
from worker.flow.running.evidence import await_evidence
from worker.flow.running.leaving import finish, hand_back
from worker.flow.running.preflight import check_release
from worker.flow.running.prepare import await_deliveries
from worker.flow.running.publish import LOST, publish_all
from worker.flow.running.reconciliation import is_reconciliation, reconcile_by_answers
from worker.flow.running.verify import confirm_all
from worker.flow.running.work import Work, work_on
from worker.flow.services import Services
from worker.store.engine import reading, writing
from worker.store.installation import workspace_fingerprint
from worker.store.run_commands import CommandLease, take_command
from worker.store.run_facts import moved_sources
from worker.store.run_rows import read_run

VISITS: Final[Mapping[str, Callable[[Services, Work], Ending]]] = {
    PREFLIGHT: check_release,
    EVIDENCE: await_evidence,
    PREPARE: await_deliveries,
    PUBLISH: publish_all,
    VERIFY: confirm_all,
}


def run_step(services: Services, run_id: str, step_id: str, attempt_id: str) -> Visit:
    """Visit an attempt at a step, and return what became of it.

    `idle` where there is no such command, it is not due, or another worker holds its lease; `waiting` where it was
    handed back; `succeeded` or `failed` with the result code that the record now holds; `lost` where the run was
    resumed or the lease ran out meanwhile, and nothing of the visit counts. Raises `run.command.invalid` for a damaged
    row, `RunCorrupt` for a damaged record, and `Unavailable`. Safe to run concurrently with itself, and twice.
    """
    visit = Visit(run_id=run_id, step_id=step_id, status="idle")
    if services.draining():
        return visit
    workspace = workspace_fingerprint(services.engine)
    with reading(services.engine) as conn:
        try:
            record = read_run(conn, run_id, workspace=workspace, lock=False)
        except RunNotFound:
            return visit
    policy = services.policies.for_site(record["immutable"]["input"]["channel"])

    def take(conn: Connection) -> CommandLease | None:
        return take_command(
            conn,
            run_id=run_id,
            step_id=step_id,
            attempt_id=attempt_id,
            worker_id=services.worker_id,
            lease_seconds=policy.delivery_lease_seconds,
            now=services.now(),
            bound=services.quarantine,
        )

    lease = writing(services.engine, take)
    services.claimed("runs")
    if lease is None or step_id not in VISITS:
        return visit
    services.checkpoint("run.claimed")
    ending = _visit(services, work_on(record, lease))
    services.checkpoint("run.visited")
    if isinstance(ending, Ended):
        status = finish(services, lease, ending, workspace)
    else:
        status = "waiting" if hand_back(services, lease, ending) else "lost"
    services.checkpoint("run.left")
    return Visit(run_id=run_id, step_id=step_id, status=status, code=ending.code)  # type: ignore[arg-type]


def _visit(services: Services, work: Work) -> Ending:
    try:
        if is_reconciliation(work.attempt_id):
            return reconcile_by_answers(services, work)
        with reading(services.engine) as conn:
            if moved_sources(conn, work.site_id, work.events):
                return Ended(code=PLAN_STALE, succeeded=False)
        return VISITS[work.step_id](services, work)
    except Blocked as fault:
        if fault.retryable or fault.code == LOST:
            return Again(code=fault.code)
        return Ended(code=result_code(fault.code), succeeded=False)
