"""Rows of intake on both databases: jobs, results, revisions, rejections, and the view that producers read."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, insert, select, text, update

from worker.domain.acceptance import refusal_of
from worker.store.engine import reading, writing
from worker.store.jobs import JobRow, ResultRow, insert_results, lock_jobs, replace_results
from worker.store.rejections import find_rejection, list_rejections, record_rejection, refuse
from worker.store.revisions import Revision, close_ended, close_revisions, open_revisions, retire_revisions
from worker.store.schema import events, evidence, evidence_history, jobs, results, submissions
from worker.store.submissions import RELEASE, accepted_event, insert_submission

NOW = 1_800_000_000.0
ONE, TWO = "1" * 64, "2" * 64


def read(engine: Engine, *columns: Any) -> list[tuple[Any, ...]]:
    """Return columns of all rows, sorted."""
    with reading(engine) as conn:
        return sorted(tuple(row) for row in conn.execute(select(*columns)))


def revision(number: int = 1, **changes: Any) -> Revision:
    """Return a new evidence row of `event-1`."""
    values: dict[str, Any] = {
        "request_id": f"evidence-{number}",
        "event_id": "event-1",
        "plan_id": "plan-1",
        "job_id": f"job-{number}",
        "result_sha256": ONE,
        "evidence_revision": "r1",
        "site_id": "site-1",
        "provider": "default",
        "max_attempts": 5,
    }
    return Revision(**values | changes)


def an_event(conn: Connection, event_id: str, state: str, sequence: int = 1) -> None:
    """Insert an event of which only the state matters."""
    conn.execute(
        insert(events).values(
            event_id=event_id,
            site_id="site-1",
            website_version="v",
            source_id="s",
            source_sequence=sequence,
            plan_id="plan-1",
            event_sha256=ONE,
            document="{}",
            state=state,
            created_at=NOW,
            updated_at=NOW,
        )
    )


def test_locking_jobs_gives_a_first_result_and_keeps_it(engine: Engine) -> None:
    """A job gets its first result whenever one is declared, and keeps it whatever is declared after."""

    def lock(declared: str | None, now: float) -> None:
        row = JobRow(job_id="job-1", target_locale="de", result_sha256=declared)
        writing(engine, lambda conn: lock_jobs(conn, "site-1", [row], now=now))

    seen = []
    for offset, declared in enumerate([None, ONE, TWO, None]):
        lock(declared, NOW + offset)
        seen += read(engine, jobs.c.current_result_sha256, jobs.c.created_at, jobs.c.updated_at)
    assert seen == [(None, NOW, NOW), (ONE, NOW, NOW + 1), (ONE, NOW, NOW + 1), (ONE, NOW, NOW + 1)]


def test_replaced_result_may_become_current_again(engine: Engine) -> None:
    """Replacing marks the old result; bringing it back clears the mark; the job follows."""

    def make(conn: Connection) -> None:
        lock_jobs(conn, "site-1", [JobRow(job_id="job-1", target_locale="de", result_sha256=ONE)], now=NOW)
        insert_results(conn, [stored(ONE)], now=NOW)

    def swap(conn: Connection, old: str, new: str, now: float) -> None:
        insert_results(conn, [stored(new)], now=now)
        replace_results(conn, {"job-1": (old, new)}, now=now)

    writing(engine, make)
    writing(engine, lambda conn: swap(conn, ONE, TWO, NOW + 1))
    columns = (results.c.result_sha256, results.c.created_at, results.c.replaced_at)
    assert read(engine, *columns) == [(ONE, NOW, NOW + 1), (TWO, NOW + 1, None)]
    assert read(engine, jobs.c.current_result_sha256, jobs.c.updated_at) == [(TWO, NOW + 1)]
    writing(engine, lambda conn: swap(conn, TWO, ONE, NOW + 2))
    assert read(engine, *columns) == [(ONE, NOW, None), (TWO, NOW + 1, NOW + 2)]
    assert read(engine, jobs.c.current_result_sha256) == [(ONE,)]


def stored(result_sha256: str) -> ResultRow:
    """Return a result row whose text does not matter."""
    return ResultRow(job_id="job-1", result_sha256=result_sha256, target_sha256=TWO, document="{}")


def test_question_that_is_asked_already_gets_no_second_row(engine: Engine) -> None:
    """One row for (event, job, result) is enough whatever the revision; only inserted rows are returned."""
    first = writing(engine, lambda conn: open_revisions(conn, [revision(1)], now=NOW))
    again = [revision(1), revision(3, job_id="job-1", evidence_revision="r2"), revision(2, status="succeeded")]
    second = writing(engine, lambda conn: open_revisions(conn, again, now=NOW + 1))
    assert [(one.job_id, one.status) for one in first] == [("job-1", "pending")]
    assert [(one.job_id, one.status) for one in second] == [("job-2", "succeeded")]
    assert read(engine, evidence.c.request_id, evidence.c.created_at) == [("evidence-1", NOW), ("evidence-2", NOW + 1)]


def test_closing_leaves_leased_and_finished_rows(engine: Engine) -> None:
    """Only rows that wait are failed; counts and other events stay as they are."""
    columns = (evidence.c.request_id, evidence.c.status, evidence.c.last_error_code, evidence.c.updated_at)

    def make(conn: Connection) -> None:
        open_revisions(conn, [revision(n) for n in (1, 2, 3)] + [revision(4, event_id="event-2")], now=NOW)
        lease = {"status": "leased", "attempts": 1, "lease_owner": "w", "lease_token": "t", "lease_expires_at": NOW + 9}
        conn.execute(update(evidence).where(evidence.c.request_id == "evidence-2").values(**lease))
        conn.execute(update(evidence).where(evidence.c.request_id == "evidence-3").values(status="succeeded"))

    writing(engine, make)
    assert writing(engine, lambda conn: close_revisions(conn, ["event-1"], "evidence.superseded", now=NOW + 1)) == 1
    assert read(engine, *columns) == [
        ("evidence-1", "failed", "evidence.superseded", NOW + 1),
        ("evidence-2", "leased", None, NOW),
        ("evidence-3", "succeeded", None, NOW),
        ("evidence-4", "pending", None, NOW),
    ]


def test_rows_that_fall_back_after_their_event_ended_are_failed(engine: Engine) -> None:
    """Of the rows named, those that wait for an ended event fail with its reason; others go on waiting."""

    def make(conn: Connection) -> None:
        for sequence, state in enumerate(("open", "superseded", "withdrawn", "delivered"), start=1):
            an_event(conn, f"event-{sequence}", state, sequence)
        open_revisions(conn, [revision(n, event_id=f"event-{n}") for n in (1, 2, 3, 4)], now=NOW)
        open_revisions(conn, [revision(5, event_id="event-2"), revision(6, event_id="no-event")], now=NOW)

    writing(engine, make)
    named = [f"evidence-{n}" for n in (1, 2, 3, 4, 6)]
    assert writing(engine, lambda conn: close_ended(conn, named, now=NOW + 1)) == (
        "evidence-2",
        "evidence-3",
        "evidence-4",
    )
    assert read(engine, evidence.c.request_id, evidence.c.status, evidence.c.last_error_code) == [
        ("evidence-1", "pending", None),
        ("evidence-2", "failed", "evidence.superseded"),
        ("evidence-3", "failed", "evidence.withdrawn"),
        ("evidence-4", "failed", "evidence.delivered"),
        ("evidence-5", "pending", None),
        ("evidence-6", "pending", None),
    ]


def test_retiring_moves_whole_rows(engine: Engine) -> None:
    """Every row of the old result leaves the table, with all its columns in the history; others stay."""
    rows = [
        revision(1),
        revision(2, job_id="job-1", event_id="event-2"),
        revision(3, job_id="job-1", result_sha256=TWO),
    ]
    writing(engine, lambda conn: open_revisions(conn, rows, now=NOW))
    assert writing(engine, lambda conn: retire_revisions(conn, {"job-1": ONE}, now=NOW + 1)) == 2
    assert writing(engine, lambda conn: retire_revisions(conn, {"job-1": ONE}, now=NOW + 1)) == 0
    assert read(engine, evidence.c.request_id) == [("evidence-3",)]
    moved = read(engine, evidence_history.c.request_id, evidence_history.c.moved_at, evidence_history.c.row_json)
    assert [(request_id, at) for request_id, at, _ in moved] == [("evidence-1", NOW + 1), ("evidence-2", NOW + 1)]
    assert f'"result_sha256":"{ONE}"' in moved[0][2] and '"attempts":0' in moved[0][2]


def test_rejections_are_listed_newest_first_in_pages(engine: Engine) -> None:
    """Pages follow each other without gaps or repeats, and hold no bodies; one rejection shows what was kept."""
    for number in range(5):
        refusal = refusal_of("release.submit", f"{number}".encode(), "a.x", "", keep_body=True)
        writing(
            engine, lambda conn, refusal=refusal, number=number: record_rejection(conn, refusal, now=NOW + number // 2)
        )
    with reading(engine) as conn:
        first = list_rejections(conn, limit=2)
        second = list_rejections(conn, limit=9, before=(first[-1].last_at, first[-1].rejection_id))
        shown = find_rejection(conn, first[0].rejection_id)
        assert find_rejection(conn, 10**9) is None
    found = [*first, *second]
    assert len({one.rejection_id for one in found}) == 5
    assert [one.last_at for one in found] == [NOW + 2, NOW + 1, NOW + 1, NOW, NOW]
    assert {one.body for one in found} == {None}
    assert shown is not None and shown.body == "4"


def test_status_view_tells_the_newest_word(engine: Engine) -> None:
    """Producers see `rejected` with the newest code, and `accepted` as soon as and for ever after it is."""

    def status() -> list[tuple[Any, ...]]:
        with reading(engine) as conn:
            return [
                tuple(row)
                for row in conn.execute(text("SELECT document_sha256, state, code, at FROM submission_status"))
            ]

    def accept(conn: Connection) -> bool:
        return insert_submission(
            conn,
            document_sha256=first.document_sha256,
            kind="release",
            site_id="site-1",
            event_id="event-1",
            kid="k",
            body="x",
            now=NOW + 9,
        )

    first = refusal_of("release.submit", b"x", "a.x", "", keep_body=False)
    refuse(engine, first, now=NOW)
    refuse(engine, refusal_of("release.submit", b"x", "a.y", "", keep_body=False), now=NOW + 1)
    assert status() == [(first.document_sha256, "rejected", "a.y", NOW + 1)]
    assert [writing(engine, accept), writing(engine, accept)] == [True, False]
    assert refuse(engine, first, now=NOW + 10).state == "accepted"
    assert status() == [(first.document_sha256, "accepted", None, NOW + 9)]
    with reading(engine) as conn:
        assert accepted_event(conn, first.document_sha256, kind=RELEASE) == "event-1"
        assert accepted_event(conn, ONE, kind=RELEASE) is None
    assert read(engine, submissions.c.accepted_at) == [(NOW + 9,)]
