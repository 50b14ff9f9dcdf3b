"""Whether the approvals that a publication names stand now: the question that preparing, claiming and reporting share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sqlalchemy import ColumnElement, Connection, String, func, select

from worker.store.approvals import stands
from worker.store.engine import Bind, clock, json_rows, row_source
from worker.store.schema import approvals, jobs

NAMED: Final = "named"  # the bind parameter of the approval ids


def has_current_approvals(conn: Connection, approval_ids: Iterable[str], *, now: float | None) -> bool:
    """Tell whether every one of these approvals stands now and is for its job's current result."""
    ids = tuple(approval_ids)
    found = conn.execute(select(current_approvals(conn, clock(conn, now))), {NAMED: named_rows(ids)}).scalar_one()
    return bool(found == len(ids))


def current_approvals(bind: Bind, at: ColumnElement[float]) -> ColumnElement[int]:
    """Return how many of the approvals bound to `NAMED` stand at a time, for the current results of their jobs."""
    named = row_source(bind, NAMED, {"approval_id": String}, NAMED)
    return (
        select(func.count())
        .select_from(approvals.join(jobs, jobs.c.job_id == approvals.c.job_id))
        .where(
            approvals.c.approval_id.in_(select(named.c.approval_id)),
            approvals.c.result_sha256 == jobs.c.current_result_sha256,
            stands(at),
        )
        .scalar_subquery()
    )


def named_rows(approval_ids: Iterable[str]) -> str:
    """Return the value of the parameter `NAMED`."""
    return json_rows([{"approval_id": approval_id} for approval_id in sorted(set(approval_ids))])
