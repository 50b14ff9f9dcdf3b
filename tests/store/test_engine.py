"""Opening, reading, writing, the clock, and many rows in one parameter."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Boolean, Engine, Float, Integer, String, event, select, text
from sqlalchemy.exc import IntegrityError, OperationalError

from worker.domain.errors import Blocked, Unavailable
from worker.store.engine import (
    MOST_TRIES,
    clock,
    is_sqlite,
    json_rows,
    open_engine,
    read_clock,
    reading,
    row_source,
    writing,
)
from worker.store.schema_version import migrate

INSERT = text("INSERT INTO sources (site_id, source_id, created_at) VALUES (:site, :source, 1)")


def sources(engine: Engine) -> list[tuple[str, str]]:
    with reading(engine) as conn:
        return [tuple(found) for found in conn.execute(text("SELECT site_id, source_id FROM sources ORDER BY 1, 2"))]


# --- opening --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x.db?mode=memory&uri=true",
        "sqlite:///x.db?mode=ro",
        "mysql://localhost/x",
        "postgresql+psycopg2://localhost/x",
        "postgresql+asyncpg://localhost/x",
        "sqlite+aiosqlite:///x.db",
        "nonsense",
        "",
    ],
)
def test_only_files_and_psycopg_are_opened(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other URL is refused by a stable code before anything is opened or made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Blocked) as caught:
        open_engine(url)
    assert (caught.value.code, caught.value.retryable) == ("store.url.invalid", False)
    assert list(tmp_path.iterdir()) == []


def test_sqlite_writes_are_durable_and_readers_do_not_wait(sqlite_engine: Engine) -> None:
    """A write-ahead log, synchronised fully, with a busy time-out of ten seconds."""
    with reading(sqlite_engine) as conn:
        pragmas = {name: conn.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous")}
        assert pragmas == {"journal_mode": "wal", "synchronous": 2}
        assert conn.execute(text("PRAGMA busy_timeout")).scalar() == 10_000


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    """The code is stable and retryable, the message does not quote the file."""
    path = tmp_path / "locseal.db"
    path.write_text("customer text " * 1000)
    path.chmod(0o600)
    with pytest.raises(Unavailable) as caught:
        open_engine(f"sqlite:///{path}")
    assert caught.value.code == "database.unavailable"
    assert "customer" not in str(caught.value)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    """Opening asks nobody; the first read says that nobody answers, without the password."""
    engine = open_engine("postgresql+psycopg://user:s3cret@127.0.0.1:9/none")
    with pytest.raises(Unavailable) as caught, reading(engine) as conn:
        conn.execute(text("SELECT 1"))
    assert caught.value.code == "database.unavailable"
    assert "s3cret" not in str(caught.value) + repr(engine)
    engine.dispose()


def test_a_connection_that_was_cut_costs_nothing(postgres_engine: Engine) -> None:
    """After the server ended every idle connection of the pool, the next transaction succeeds at once."""
    with reading(postgres_engine) as conn:
        mine = conn.execute(text("SELECT pg_backend_pid()")).scalar_one()
    ended = open_engine(postgres_engine.url)
    with ended.connect() as conn:
        conn.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": mine})
    ended.dispose()
    writing(postgres_engine, lambda conn: conn.execute(INSERT, {"site": "s", "source": "after"}))
    assert sources(postgres_engine) == [("s", "after")]


# --- reading and writing --------------------------------------------------------------------------------------------


def test_a_write_is_committed_and_a_refusal_is_not(engine: Engine) -> None:
    """What `work` returns comes back after the commit; what it raises undoes everything."""
    done = writing(engine, lambda conn: conn.execute(INSERT, {"site": "s", "source": "kept"}).rowcount)
    assert done == 1

    def work(conn: Any) -> None:
        conn.execute(INSERT, {"site": "s", "source": "undone"})
        raise Blocked("some.code")

    with pytest.raises(Blocked, match=r"some\.code"):
        writing(engine, work)
    assert sources(engine) == [("s", "kept")]


def test_a_broken_constraint_is_told_apart(engine: Engine) -> None:
    """The caller settles such a row alone; nothing of the transaction stays, and nothing is repeated."""
    tries: list[int] = []

    def work(conn: Any) -> None:
        tries.append(1)
        conn.execute(INSERT, {"site": "s", "source": "a"})
        conn.execute(INSERT, {"site": "s", "source": "a"})

    with pytest.raises(IntegrityError):
        writing(engine, work)
    assert (sources(engine), len(tries)) == ([], 1)


def test_a_fault_of_the_database_is_unavailable_without_content(engine: Engine) -> None:
    """Whatever the database says, only the kind of fault is told."""

    def work(conn: Any) -> None:
        conn.execute(INSERT, {"site": "s", "source": "undone"})
        conn.execute(text("INSERT INTO nothing VALUES (:words)"), {"words": "customer text"})

    with pytest.raises(Unavailable) as caught:
        writing(engine, work)
    assert (caught.value.code, caught.value.retryable) == ("database.unavailable", True)
    assert "customer" not in str(caught.value)
    assert caught.value.__suppress_context__
    with pytest.raises(Unavailable), reading(engine) as conn:
        conn.execute(text("SELECT * FROM nothing"))
    assert sources(engine) == []


def test_a_lost_race_repeats_the_whole_transaction(engine: Engine) -> None:
    """A deadlock or a busy file is tried again, a bounded number of times, each time from the beginning."""
    tries: list[int] = []

    def lose(conn: Any) -> None:
        fault: BaseException
        if is_sqlite(engine):
            fault = sqlite3.OperationalError("database is locked")
            fault.sqlite_errorcode = sqlite3.SQLITE_BUSY
        else:
            from psycopg.errors import DeadlockDetected

            fault = DeadlockDetected()
        raise OperationalError("UPDATE", {}, fault)

    def work(conn: Any) -> str:
        tries.append(1)
        conn.execute(INSERT, {"site": "s", "source": "a"})
        if len(tries) < MOST_TRIES:
            lose(conn)
        return "won"

    assert writing(engine, work) == "won"
    assert (len(tries), sources(engine)) == (MOST_TRIES, [("s", "a")])

    def never(conn: Any) -> None:
        tries.append(1)
        lose(conn)

    tries.clear()
    with pytest.raises(Unavailable) as caught:
        writing(engine, never)
    assert (len(tries), caught.value.retryable) == (MOST_TRIES, True)


def test_real_deadlocks_end_well(postgres_engine: Engine) -> None:
    """Two transactions that lock two rows in opposite order both commit in the end."""
    writing(postgres_engine, lambda conn: conn.execute(INSERT, [{"site": "s", "source": name} for name in "ab"]))
    meet = threading.Barrier(2, timeout=10)
    met: set[int] = set()
    faults: list[BaseException] = []

    def work(number: int, order: str) -> None:
        def steps(conn: Any) -> None:
            for name in order:
                changed = text("UPDATE sources SET created_at = created_at + 1 WHERE source_id = :name")
                conn.execute(changed, {"name": name})
                if number not in met:
                    met.add(number)
                    meet.wait()

        try:
            writing(postgres_engine, steps)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number, order)) for number, order in enumerate(("ab", "ba"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    with reading(postgres_engine) as conn:
        assert conn.execute(text("SELECT created_at FROM sources")).scalars().all() == [3.0, 3.0]


def test_many_threads_read_and_then_write_without_a_locked_database(engine: Engine) -> None:
    """Read-then-write is safe from 'database is locked' and from lost updates: 8 threads, 25 increments each."""
    writing(engine, lambda conn: conn.execute(INSERT, {"site": "s", "source": "a"}))
    faults: list[BaseException] = []

    def increment(conn: Any) -> None:
        query = "SELECT created_at FROM sources" + ("" if is_sqlite(engine) else " FOR UPDATE")
        found = conn.execute(text(query)).scalar_one()
        conn.execute(text("UPDATE sources SET created_at = :value"), {"value": found + 1})

    def work() -> None:
        try:
            for _ in range(25):
                writing(engine, increment)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    with reading(engine) as conn:
        assert conn.execute(text("SELECT created_at FROM sources")).scalar_one() == 201.0


def test_a_read_opens_no_transaction(engine: Engine) -> None:
    """A reader commits nothing, and sees what was committed between two of its statements."""
    commits: list[int] = []

    def note(_conn: Any) -> None:
        commits.append(1)

    event.listen(engine, "commit", note)
    try:
        with reading(engine) as conn:
            count = text("SELECT count(*) FROM sources")
            assert conn.execute(count).scalar_one() == 0
            writing(engine, lambda other: other.execute(INSERT, {"site": "s", "source": "a"}))
            assert len(commits) == 1
            assert conn.execute(count).scalar_one() == 1
    finally:
        event.remove(engine, "commit", note)
    assert len(commits) == 1


# --- the clock ------------------------------------------------------------------------------------------------------


def test_the_clock_is_the_databases(engine: Engine) -> None:
    """Seconds since the epoch, to the millisecond, and it goes on inside a transaction."""

    def work(conn: Any) -> tuple[float, float]:
        first = read_clock(conn, None)
        while (second := read_clock(conn, None)) == first:
            pass
        return first, second

    before = time.time()
    first, second = writing(engine, work)
    assert before - 0.01 <= first < second <= time.time() + 0.01
    with reading(engine) as conn:
        assert conn.execute(select(clock(engine, 12.5))).scalar_one() == 12.5
        assert read_clock(conn, 12.5) == 12.5


# --- many rows ------------------------------------------------------------------------------------------------------


def test_many_rows_travel_in_one_parameter(engine: Engine) -> None:
    """Rows come back with their types, a missing member is NULL, and the SQL does not depend on their number."""
    columns = {"request_id": String, "n": Integer, "at": Float, "retry": Boolean}
    rows = [
        {"request_id": "é'\"%:x\\ \n", "n": 7, "at": 1732990000.25, "retry": True},
        {"request_id": None, "retry": False},
    ]
    source = row_source(engine, "given", columns, "rows")
    with reading(engine) as conn:
        found = conn.execute(select(*source.c), {"rows": json_rows(rows)}).all()
        none = conn.execute(select(*source.c), {"rows": json_rows([])}).all()
    assert sorted(map(tuple, found), key=repr) == [
        ("é'\"%:x\\ \n", 7, 1732990000.25, True),
        (None, None, None, False),
    ]
    assert none == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    moments=st.lists(st.floats(1e9, 4e9), min_size=1, max_size=20),
    words=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=50),
    number=st.integers(-(2**53) + 1, 2**53 - 1),
)
def test_what_travels_arrives_exactly(engine: Engine, moments: list[float], words: str, number: int) -> None:
    """Times of this age to the last bit, any text, any safe integer."""
    source = row_source(engine, "given", {"at": Float, "words": String, "number": BigInteger}, "rows")
    rows = [{"at": moment, "words": words, "number": number} for moment in moments]
    with reading(engine) as conn:
        found = conn.execute(select(*source.c), {"rows": json_rows(rows)}).all()
    assert [tuple(one) for one in found] == [(moment, words, number) for moment in moments]


def test_nothing_that_is_no_json_number_travels() -> None:
    """NaN would be read as something else by each database."""
    with pytest.raises(ValueError, match="JSON"):
        json_rows([{"at": float("nan")}])


def test_a_database_of_another_schema_of_the_search_path(postgres_engine: Engine) -> None:
    """Options in the URL stay: a role that has a schema of its own works in it."""
    with postgres_engine.begin() as conn:
        conn.execute(text("CREATE SCHEMA own"))
    mine = open_engine(postgres_engine.url.update_query_dict({"options": "-csearch_path=own"}))
    try:
        migrate(mine)
        with reading(mine) as conn:
            assert conn.execute(text("SELECT count(*) FROM own.evidence")).scalar_one() == 0
            assert conn.execute(text("SHOW lock_timeout")).scalar_one() == "10s"
    finally:
        mine.dispose()
        with postgres_engine.begin() as conn:
            conn.execute(text("DROP SCHEMA own CASCADE"))
