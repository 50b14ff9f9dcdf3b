"""What is read of results outside intake, on both databases."""

from __future__ import annotations

from sqlalchemy import Engine

from tests.fakes import counting
from worker.store.engine import reading, writing
from worker.store.jobs import JobRow, lock_jobs
from worker.store.results import current_results

NOW = 1_800_000_000.0
ONE, TWO = "1" * 64, "2" * 64


def test_current_results_of_the_jobs_that_have_one(engine: Engine) -> None:
    """Jobs without a result and jobs nobody knows are not in it; one statement for any number of jobs."""
    rows = [
        JobRow(job_id=job_id, target_locale="de", result_sha256=result)
        for job_id, result in (("job-1", ONE), ("job-2", None), ("job-3", TWO))
    ]
    writing(engine, lambda conn: lock_jobs(conn, "site-1", rows, now=NOW))
    with counting(engine) as counted, reading(engine) as conn:
        assert current_results(conn, ["job-1", "job-2", "job-9"]) == {"job-1": ONE}
        assert current_results(conn, (f"job-{number}" for number in range(5000))) == {"job-1": ONE, "job-3": TWO}
        assert current_results(conn, []) == {}
    assert len(counted.statements) == 3
