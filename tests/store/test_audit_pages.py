"""Reading a table through in pages: every row once, in order, bounded by rows and by bytes, and changing nothing."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, event, insert, text

from worker.domain.errors import Unavailable
from worker.store import audit_pages
from worker.store.audit_pages import Scope, Stream, count_rows, has_scope, pages, snapshot
from worker.store.engine import is_sqlite, writing
from worker.store.schema import plan_jobs, sources, submissions


def fill(engine: Engine, count: int, *, size: int = 1) -> None:
    rows = [
        {
            "document_sha256": f"{number:064x}",
            "kind": "release",
            "site_id": f"site-{number % 2}",
            "event_id": f"event-{number}",
            "kid": "k",
            "body": "x" * size,
            "accepted_at": 1.0,
        }
        for number in range(count)
    ]
    writing(engine, lambda conn: conn.execute(insert(submissions), rows))


def read(engine: Engine, stream: Stream, scope: Scope | None = None) -> list[list[object]]:
    name = stream.key_columns[-1].name
    return [[row[name] for row in rows] for _, rows in pages(engine, stream, scope or Scope())]


def test_pages_are_bounded_by_rows(engine: Engine) -> None:
    """Seven rows in pages of three, in the order of the key; a full last page is not read twice."""
    fill(engine, 7)
    found = read(engine, Stream(table=submissions, most_rows=3))
    assert [len(page) for page in found] == [3, 3, 1]
    assert [one for page in found for one in page] == [f"{number:064x}" for number in range(7)]
    fill_again = read(engine, Stream(table=submissions, most_rows=7))
    assert [len(page) for page in fill_again] == [7]
    assert read(engine, Stream(table=sources)) == []


def test_pages_are_bounded_by_bytes(engine: Engine) -> None:
    """Long documents make short pages; one that is longer than a page is a page of its own."""
    fill(engine, 5, size=audit_pages.BYTES_OF_PAGE // 2)
    assert [len(page) for page in read(engine, Stream(table=submissions))] == [2, 2, 1]
    writing(engine, lambda conn: conn.execute(text("UPDATE submissions SET body = body || body || body")))
    assert [len(page) for page in read(engine, Stream(table=submissions))] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("falling", [False, True])
def test_keys_of_several_columns_go_on_where_they_stopped(engine: Engine, falling: bool) -> None:
    """Rising and falling, whatever the page size."""
    rows = [
        {"plan_id": f"p-{plan}", "job_id": f"j-{job}", "target_locale": "de"} for plan in range(3) for job in range(4)
    ]
    writing(engine, lambda conn: conn.execute(insert(plan_jobs), rows))
    expected = sorted(((row["plan_id"], row["job_id"]) for row in rows), reverse=falling)
    for most in (1, 2, 5, 12, 50):
        stream = Stream(table=plan_jobs, falling=falling, most_rows=most)
        found = [(row["plan_id"], row["job_id"]) for _, page in pages(engine, stream, Scope()) for row in page]
        assert found == expected


def test_a_scope_narrows_and_is_known(engine: Engine) -> None:
    """Counts and pages agree; a table without site and event is out of scope."""
    fill(engine, 5)
    stream = Stream(table=submissions)
    for scope, count in ((Scope(), 5), (Scope(site="site-1"), 2), (Scope(event="event-4"), 1)):
        assert (count_rows(engine, stream, scope), sum(map(len, read(engine, stream, scope)))) == (count, count)
        assert has_scope(engine, scope)
    nothing = Scope(site="site-1", event="event-4")
    assert (has_scope(engine, nothing), read(engine, stream, nothing)) == (False, [])
    assert (count_rows(engine, Stream(table=sources), Scope(site="site-1")), has_scope(engine, Scope(site="x"))) == (
        0,
        False,
    )


def test_a_snapshot_sees_one_moment_and_cannot_write(engine: Engine) -> None:
    """What others commit meanwhile is not seen; on PostgreSQL the transaction is read only."""
    fill(engine, 1)
    with snapshot(engine) as conn:
        before = conn.execute(text("SELECT count(*) FROM submissions")).scalar_one()
        writing(engine, lambda other: other.execute(text("DELETE FROM submissions")))
        assert conn.execute(text("SELECT count(*) FROM submissions")).scalar_one() == before == 1
    if not is_sqlite(engine):
        with pytest.raises(Unavailable) as refused, snapshot(engine) as conn:
            conn.execute(text("DELETE FROM submissions"))
        assert refused.value.code == "database.unavailable"


def test_reading_writes_nothing(engine: Engine) -> None:
    """Not a single statement but SELECT."""
    fill(engine, 3)
    ran: list[str] = []

    def note(_conn: object, _cursor: object, statement: str, *_rest: object) -> None:
        ran.append(statement.split(None, 1)[0].upper())

    event.listen(engine, "before_cursor_execute", note)
    try:
        read(engine, Stream(table=submissions))
        count_rows(engine, Stream(table=submissions), Scope())
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert set(ran) <= {"SELECT", "BEGIN"}


def test_what_is_no_text_is_read_as_something_else_on_sqlite(sqlite_engine: Engine) -> None:
    """Damage reaches the rule that names it, and the connection goes back to the pool as it was."""
    fill(sqlite_engine, 1)
    broken = "UPDATE submissions SET body = CAST(x'ff00fe' AS TEXT)"
    writing(sqlite_engine, lambda conn: conn.execute(text(broken)))
    ((_, (row,)),) = list(pages(sqlite_engine, Stream(table=submissions), Scope()))
    assert row["body"] == "\N{REPLACEMENT CHARACTER}\x00\N{REPLACEMENT CHARACTER}"
    with sqlite_engine.connect() as conn:
        assert conn.connection.driver_connection.text_factory is str  # type: ignore[union-attr]
