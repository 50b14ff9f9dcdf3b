"""The locales of an event as they stand: what `domain.renewal` decides from. Read only.

Whoever decides holds the locks of the event's jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, RowMapping, String, select

from worker.domain.attempt import LEASED, PENDING, RETRY_WAIT
from worker.domain.renewal import GivenApproval, LocaleStanding
from worker.store.engine import json_rows, row_source
from worker.store.schema import approvals, events, evidence, evidence_history, jobs, plan_jobs, results

OPEN: Final = frozenset({PENDING, LEASED, RETRY_WAIT})


def planned_locales(conn: Connection, event_id: str) -> Sequence[RowMapping]:
    """Return the jobs of an event's plan with their current results, in order of their ids."""
    return (
        conn.execute(
            select(plan_jobs.c.job_id, plan_jobs.c.target_locale, jobs.c.current_result_sha256, results.c.document)
            .select_from(events)
            .join(plan_jobs, plan_jobs.c.plan_id == events.c.plan_id)
            .outerjoin(jobs, jobs.c.job_id == plan_jobs.c.job_id)
            .outerjoin(
                results,
                (results.c.job_id == jobs.c.job_id) & (results.c.result_sha256 == jobs.c.current_result_sha256),
            )
            .where(events.c.event_id == event_id)
            .order_by(plan_jobs.c.job_id)
        )
        .mappings()
        .all()
    )


def locale_standings(
    conn: Connection, event_id: str, rows: Sequence[RowMapping], accepted: frozenset[str]
) -> dict[str, LocaleStanding]:
    """Return how each locale of an event stands, by job id; `rows` are its planned locales."""
    current = {row["job_id"]: row["current_result_sha256"] for row in rows}
    source = row_source(conn, "wanted", {"job_id": String}, "wanted")
    wanted = {"wanted": json_rows([{"job_id": job_id} for job_id in current])}
    given: dict[str, list[GivenApproval]] = {}
    found = conn.execute(select(approvals).where(approvals.c.job_id.in_(select(source.c.job_id))), wanted)
    for row in found.mappings():
        if row["result_sha256"] == current[row["job_id"]]:
            one = GivenApproval(
                approved_at=row["approved_at"],
                expires_at=row["expires_at"],
                is_revoked=row["revoked_at"] is not None,
                is_accepted=row["policy_sha256"] in accepted,
            )
            given.setdefault(row["job_id"], []).append(one)
    asked = conn.execute(
        select(evidence)
        .where(evidence.c.job_id.in_(select(source.c.job_id)))
        .order_by(evidence.c.created_at, evidence.c.request_id),
        wanted,
    )
    newest: dict[str, RowMapping] = {}
    is_asked: set[str] = set()
    for row in asked.mappings():
        if row["result_sha256"] != current[row["job_id"]]:
            continue
        if row["status"] in OPEN:
            is_asked.add(row["job_id"])
        if row["event_id"] == event_id:
            newest[row["job_id"]] = row
    return {
        job_id: LocaleStanding(
            has_result=result is not None,
            is_asked=job_id in is_asked,
            row_status=newest[job_id]["status"] if job_id in newest else None,
            row_created_at=newest[job_id]["created_at"] if job_id in newest else 0.0,
            row_renewed_at=newest[job_id]["renewed_at"] if job_id in newest else None,
            approvals=tuple(given.get(job_id, ())),
        )
        for job_id, result in current.items()
    }


def revisions_used(conn: Connection, asked: Sequence[tuple[str, str]]) -> Counter[str]:
    """Return how many rows each job ever had for its result, whatever the event, history included."""
    found: Counter[str] = Counter()
    for job_id, result_sha256 in asked:
        for table, of_result in (
            (evidence, evidence.c.result_sha256 == result_sha256),
            (evidence_history, evidence_history.c.row_json.contains(result_sha256)),
        ):
            found[job_id] += len(
                conn.execute(select(table.c.request_id).where(table.c.job_id == job_id, of_result)).all()
            )
    return found
