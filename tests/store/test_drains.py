"""Announcements of an end: kept once, found by the workers' ids, forgotten when nothing needs them any more."""

from __future__ import annotations

from sqlalchemy import Connection, Engine, literal, select

from worker.store.drains import KEPT_SECONDS, announce_drain, announced_at, has_drained, prune_drains
from worker.store.engine import reading, writing
from worker.store.schema import drains

NOW = 1_000_000.0


def test_the_first_announcement_stays(engine: Engine) -> None:
    """A worker that says twice that it ends is kept with the first time, and is told that it was known."""
    assert writing(engine, lambda conn: announce_drain(conn, "host.1.aa", now=NOW)) is True
    assert writing(engine, lambda conn: announce_drain(conn, "host.1.aa", now=NOW + 5)) is False
    with reading(engine) as conn:
        assert conn.execute(select(drains)).all() == [("host.1.aa", NOW)]


def test_who_drained_is_found_by_id(engine: Engine) -> None:
    """Only the ids that announced their end are returned, by the look-up and by the condition alike."""
    writing(engine, lambda conn: announce_drain(conn, "host.1.aa", now=NOW))
    with reading(engine) as conn:
        assert announced_at(conn, ["host.1.aa", "host.2.bb"]) == {"host.1.aa": NOW}
        assert announced_at(conn, []) == {}
        said = [
            conn.execute(select(has_drained(literal(one), literal(NOW)))).scalar_one()
            for one in ("host.1.aa", "host.2.bb")
        ]
        earlier, later = (
            conn.execute(select(has_drained(literal("host.1.aa"), literal(at)))).scalar_one()
            for at in (NOW - 1, NOW + 1)
        )
    assert [bool(one) for one in said] == [True, False]
    assert (bool(earlier), bool(later)) == (False, True)


def test_old_announcements_are_forgotten(engine: Engine) -> None:
    """An announcement goes once it is older than the span that it is kept for, and not before; a new one sees to it."""
    writing(engine, lambda conn: announce_drain(conn, "host.0.older", now=NOW - KEPT_SECONDS - 1))
    writing(engine, lambda conn: announce_drain(conn, "host.1.old", now=NOW))
    writing(engine, lambda conn: announce_drain(conn, "host.2.new", now=NOW + 10))
    assert writing(engine, lambda conn: prune_drains(conn, now=NOW + KEPT_SECONDS)) == 0
    assert writing(engine, lambda conn: prune_drains(conn, now=NOW + KEPT_SECONDS + 5)) == 1
    with reading(engine) as conn:
        assert conn.execute(select(drains.c.worker_id)).scalars().all() == ["host.2.new"]


def test_an_announcement_outlives_whatever_it_excuses(engine: Engine) -> None:
    """Where expiries count for longer than by default, announcements are kept for twice as long as they count."""

    def is_kept_after(seconds: float) -> bool:
        def work(conn: Connection) -> bool:
            announce_drain(conn, "host.2.new", now=NOW + seconds, within_seconds=KEPT_SECONDS)
            return "host.1.old" in announced_at(conn, ["host.1.old"])

        return writing(engine, work)

    writing(engine, lambda conn: announce_drain(conn, "host.1.old", now=NOW))
    assert is_kept_after(1.5 * KEPT_SECONDS)
    assert not is_kept_after(2.5 * KEPT_SECONDS)


def test_the_database_says_when_no_time_is_given(engine: Engine) -> None:
    """Without a time the database's clock dates the announcement, and one of just now is kept."""
    writing(engine, lambda conn: announce_drain(conn, "host.1.aa", now=None))
    assert writing(engine, lambda conn: prune_drains(conn, now=None)) == 0
    with reading(engine) as conn:
        assert announced_at(conn, ["host.1.aa"]).keys() == {"host.1.aa"}
