"""What is read of results outside intake. How they change is in `jobs`."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, String, select

from worker.store.engine import json_rows, row_source
from worker.store.schema import jobs


def current_results(conn: Connection, job_ids: Iterable[str]) -> dict[str, str]:
    """Return the hash of the current result by job id, for those of the jobs that have one. One statement."""
    wanted = row_source(conn, "wanted", {"job_id": String}, "wanted")
    rows = conn.execute(
        select(jobs.c.job_id, jobs.c.current_result_sha256).where(
            jobs.c.job_id.in_(select(wanted.c.job_id)), jobs.c.current_result_sha256.is_not(None)
        ),
        {"wanted": json_rows([{"job_id": job_id} for job_id in job_ids])},
    )
    return {row.job_id: row.current_result_sha256 for row in rows}
