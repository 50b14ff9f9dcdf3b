"""What workers measured is added up in the database: by several processes, within bounds."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from sqlalchemy import Connection, Engine

from worker.domain.measure import ATTEMPTS, MOST_CODES, OTHER, PROVIDER_SECONDS, SUM, Series
from worker.store.engine import reading, writing
from worker.store.measures import add_measures, read_measures


def attempt(code: str) -> Series:
    return Series(measure=ATTEMPTS, subject="evidence", outcome="retry_wait", part=code)


SECONDS = Series(measure=PROVIDER_SECONDS, subject="default", part=SUM)


def kept(engine: Engine) -> dict[Series, float]:
    with reading(engine) as conn:
        return read_measures(conn)


def add(engine: Engine, counts: Mapping[Series, float]) -> None:
    def work(conn: Connection) -> None:
        add_measures(conn, counts)

    writing(engine, work)


def test_counts_are_added_to_what_is_there(engine: Engine) -> None:
    """A series appears with its first count, and grows by each further one."""
    add(engine, {attempt("evidence.timeout"): 2.0, SECONDS: 0.25})
    add(engine, {attempt("evidence.timeout"): 1.0, SECONDS: 0.5, attempt(""): 7.0})
    assert kept(engine) == {attempt(""): 7.0, attempt("evidence.timeout"): 3.0, SECONDS: 0.75}


def test_many_processes_add_at_once(engine: Engine) -> None:
    """No count of eight writers is lost, in whichever order each of them names its series."""
    series = [attempt(f"evidence.code-{n}") for n in range(5)]

    def write(turn: int) -> None:
        order = series if turn % 2 else series[::-1]
        for _ in range(5):
            add(engine, dict.fromkeys(order, 1.0))

    writers = [threading.Thread(target=write, args=(turn,)) for turn in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert kept(engine) == dict.fromkeys(series, 40.0)


def test_the_table_stays_small_whatever_codes_come(engine: Engine) -> None:
    """Three times as many codes as there is room for: the rest is one row, and nothing is lost."""
    for turn in range(3):
        add(engine, {attempt(f"evidence.t{turn}-{n:03}"): 1.0 for n in range(MOST_CODES)})
    found = kept(engine)
    assert len(found) == MOST_CODES + 1
    assert found[attempt(OTHER)] == 2 * MOST_CODES
