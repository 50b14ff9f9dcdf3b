"""Locale jobs and their results as rows: locked in id order, given a first result, or a replaced one.

A job has one current result. The first one stays until another names it in `replaces`; results that were replaced stay
as rows for auditors. What that means for evidence is in `revisions`, and whether it is allowed in the flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection, Dialect, String, and_, bindparam, case, func, null, select, tuple_, update

from worker.domain.canonical import parse_strict
from worker.domain.change import ChangeEvent, Job
from worker.domain.errors import Blocked, Invalid
from worker.domain.result import Result, check_result, parse_result
from worker.domain.submission import LONGEST_SUBMISSION_BYTES
from worker.store.engine import Moment, clock, json_rows, row_source
from worker.store.prepared import prepared
from worker.store.schema import jobs, results
from worker.store.upserts import Insertion, insert_into

RESULT_COLUMNS = ("job_id", "result_sha256", "target_sha256", "document")


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job of a plan; `result_sha256` is the result declared for it now, or None."""

    job_id: str
    target_locale: str
    result_sha256: str | None


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """A result as it is stored: `document` is its canonical text without `replaces`."""

    job_id: str
    result_sha256: str
    target_sha256: str
    document: str = field(repr=False)


def lock_jobs(conn: Connection, site_id: str, rows: Sequence[JobRow], *, now: float | None) -> None:
    """Lock jobs in id order, making those that are new and giving a first result to those that have none.

    A job that has a current result keeps it whatever is declared. One statement for any number of jobs; needs the
    source lock, so that what was read of the jobs before still holds.
    """
    statement, moment = _locking(conn, now)
    declared = [
        {"job_id": row.job_id, "target_locale": row.target_locale, "result_sha256": row.result_sha256}
        for row in sorted(rows, key=lambda row: row.job_id)
    ]
    conn.execute(statement, {"site_id": site_id, "declared": json_rows(declared), **moment})


@prepared
def _locking(bind: Dialect, now: Moment) -> Insertion:
    at = clock(bind, now)
    columns = {"job_id": String, "target_locale": String, "result_sha256": String}
    declared = row_source(bind, "declared", columns, "declared")
    statement = insert_into(bind, jobs).from_select(
        ["job_id", "site_id", "target_locale", "current_result_sha256", "created_at", "updated_at"],
        select(
            declared.c.job_id,
            bindparam("site_id", type_=String),
            declared.c.target_locale,
            declared.c.result_sha256,
            at,
            at,
        ).order_by(declared.c.job_id),
    )
    gains = and_(jobs.c.current_result_sha256.is_(None), statement.excluded.current_result_sha256.is_not(None))
    return statement.on_conflict_do_update(
        index_elements=[jobs.c.job_id],
        set_={
            "current_result_sha256": func.coalesce(
                jobs.c.current_result_sha256, statement.excluded.current_result_sha256
            ),
            "updated_at": case((gains, statement.excluded.updated_at), else_=jobs.c.updated_at),
        },
    )


def insert_results(conn: Connection, rows: Sequence[ResultRow], *, now: float | None) -> None:
    """Insert results in one statement; a result that was replaced once and comes again is current again."""
    statement, moment = _inserting(conn, now)
    texts = json_rows([{name: getattr(row, name) for name in RESULT_COLUMNS} for row in rows])
    conn.execute(statement, {"texts": texts, **moment})


@prepared
def _inserting(bind: Dialect, now: Moment) -> Insertion:
    source = row_source(bind, "texts", dict.fromkeys(RESULT_COLUMNS, String), "texts")
    return (
        insert_into(bind, results)
        .from_select(
            [*RESULT_COLUMNS, "created_at"],
            select(*(source.c[name] for name in RESULT_COLUMNS), clock(bind, now)).order_by(source.c.job_id),
        )
        .on_conflict_do_update(index_elements=[results.c.job_id, results.c.result_sha256], set_={"replaced_at": null()})
    )


def replace_results(conn: Connection, replaced: dict[str, tuple[str, str]], *, now: float | None) -> None:
    """Make other results current: `replaced` gives (old hash, new hash) by job id. Needs the jobs' locks."""
    at = clock(conn, now)
    source = row_source(conn, "swaps", {"job_id": String, "old": String, "new": String}, "swaps")
    rows = json_rows([{"job_id": job_id, "old": old, "new": new} for job_id, (old, new) in sorted(replaced.items())])
    old_results = tuple_(results.c.job_id, results.c.result_sha256).in_(select(source.c.job_id, source.c.old))
    conn.execute(update(results).where(old_results).values(replaced_at=at), {"swaps": rows})
    conn.execute(
        update(jobs)
        .where(jobs.c.job_id == source.c.job_id, jobs.c.current_result_sha256 == source.c.old)
        .values(current_result_sha256=source.c.new, updated_at=at),
        {"swaps": rows},
    )


def read_result(job: Job, event: ChangeEvent, document: str, sha256: str | None) -> Result:
    """Read a stored result and hold it against its hash and its job; `Invalid("submission.result.tampered")`."""
    try:
        result = parse_result(parse_strict(document, max_bytes=LONGEST_SUBMISSION_BYTES))
        check_result(job, event, result)
        is_same = result.sha256 == sha256
    except Blocked:
        is_same = False
    if not is_same:
        raise Invalid(
            "submission.result.tampered", "a stored result of this plan is not what was accepted; restore its row"
        )
    return result
