"""The one read between the answers of a batch and its settle: the time, and what stands of the jobs they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect, Select, String, exists, select

from worker.domain.attempt import SUCCEEDED
from worker.domain.breaker import PROVIDER
from worker.store.approvals import stands
from worker.store.breakers import is_troubled
from worker.store.engine import Moment, clock, json_rows, read_clock, row_source
from worker.store.prepared import prepared
from worker.store.schema import approvals, evidence


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What one read says after the answers came: the time, and what it finds about the jobs they belong to."""

    now: float
    shared_jobs: frozenset[str] = frozenset()  # other rows of the same job still wait
    approved_otherwise: frozenset[str] = frozenset()  # an approval stands for another target text
    is_troubled: bool = True  # some route is not wholly sound, or nobody looked


def survey(conn: Connection, answers: Mapping[str, tuple[str, str]], *, now: float | None) -> Survey:
    """Return the time of the settle, in seconds, and what stands of its jobs, in one statement.

    `answers` gives (request id, target hash) by job id. What changes after this read is harmless: a row that comes to
    wait later is met by its own claim; and an approval for another target can only come to stand while another result
    is current, which the settle sees under the job's lock, and is never replaced while it stands.
    """
    if not answers:
        return Survey(now=read_clock(conn, now))
    statement, moment = _surveying(conn, now)
    rows = [{"job_id": job_id, "request_id": row, "target": target} for job_id, (row, target) in answers.items()]
    found = conn.execute(statement, {"asked": json_rows(rows), **moment}).mappings().all()
    return Survey(
        now=float(found[0]["now"]),
        shared_jobs=frozenset(row["job_id"] for row in found if row["is_shared"]),
        approved_otherwise=frozenset(row["job_id"] for row in found if row["is_otherwise"]),
        is_troubled=bool(found[0]["is_troubled"]),
    )


@prepared
def _surveying(bind: Dialect, now: Moment) -> Select[Any]:
    source = row_source(bind, "asked", {"job_id": String, "request_id": String, "target": String}, "asked")
    is_shared = exists().where(
        evidence.c.job_id == source.c.job_id,
        evidence.c.status != SUCCEEDED,
        evidence.c.request_id != source.c.request_id,
    )
    is_otherwise = exists().where(
        approvals.c.job_id == source.c.job_id, approvals.c.target_sha256 != source.c.target, stands(clock(bind, now))
    )
    return select(
        clock(bind, now).label("now"),
        source.c.job_id,
        is_shared.correlate(source).label("is_shared"),
        is_otherwise.correlate(source).label("is_otherwise"),
        is_troubled(PROVIDER).label("is_troubled"),
    )
