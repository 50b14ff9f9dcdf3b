"""`locseal prune` and `locseal hold` on a real SQLite file that the real flow has filled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import select, update

from tests.cli.conftest import Home
from tests.cli.test_releases import taken_in
from worker.flow.accept_submission import accept_submission
from worker.store.engine import reading, writing
from worker.store.schema import events, rejections


def old_rejection(home: Home) -> None:
    """Have a message rejected, long ago."""
    assert accept_submission(home.services, "{}").state == "rejected"
    writing(home.engine, lambda conn: conn.execute(update(rejections).values(last_at=1.0, first_at=1.0)))


def left(home: Home) -> int:
    """Return how many rejections there are."""
    with reading(home.engine) as conn:
        return len(conn.execute(select(rejections.c.rejection_id)).all())


def test_nothing_goes_without_apply(locseal: Callable[..., Any], home: Home) -> None:
    """What would go, by kind; the same command with --apply removes it, once for each request id, and it is on record."""
    old_rejection(home)
    would = locseal("prune", "--json")
    assert (would.code, would.json["applied"], would.json["rows"]) == (0, False, {"rejections": 1})
    text = locseal("prune").out.splitlines()
    assert text[0].startswith("what ended before 20")
    assert text[2].split()[:2] == ["rejections", "1"]
    assert text[-1] == "nothing was removed; add --apply to remove it"
    assert left(home) == 1
    done = locseal("prune", "--apply", "--request-id", "p-1", "--owner", "ops", "--json")
    assert (done.code, done.json["applied"], done.json["rows"]) == (0, True, {"rejections": 1})
    assert left(home) == 0
    again = locseal("prune", "--apply", "--request-id", "p-1")
    assert (again.code, again.out.splitlines()[2].split()[:2]) == (0, ["rejections", "1"])
    other = locseal("prune", "--apply", "--request-id", "p-1", "--older-than", "30d", "--json")
    assert (other.code, other.json["error"]["code"]) == (1, "operator.request_id.collision")
    (kept,) = locseal("prune", "--list", "--json").json["prunings"]
    assert (kept["pruning_id"], kept["owner"], kept["rows"]) == ("p-1", "ops", {"rejections": 1})
    assert "p-1" in locseal("prune", "--list").out
    assert locseal("prune").out.splitlines()[1] == "nothing to remove"


def test_what_cannot_be_meant_is_refused(locseal: Callable[..., Any], home: Home) -> None:
    """Too young, an unknown kind, and a span that is none."""
    assert home.engine is not None
    assert locseal("prune", "--older-than", "1d", "--json").json["error"]["code"] == "prune.age.invalid"
    assert locseal("prune", "--kind", "approvals", "--json").json["error"]["code"] == "prune.kind.invalid"
    assert locseal("prune", "--older-than", "old").code == 2


def test_a_hold_is_placed_listed_and_released(locseal: Callable[..., Any], home: Home) -> None:
    """While it is in force nothing goes; who placed and who released it, and why, stays on record."""
    taken_in(home)
    old_rejection(home)
    assert locseal("hold", "place", "--reason", "x").code == 2
    unknown = locseal("hold", "place", "--event", "event-9", "--reason", "case 7", "--json")
    assert (unknown.code, unknown.json["error"]["code"]) == (1, "hold.name.unknown")
    place = ("hold", "place", "--site", "site-1", "--reason", "case 7", "--owner", "legal", "--request-id", "h-1")
    placed = locseal(*place, "--json").json
    assert (placed["scope"], placed["name"], placed["owner"], placed["is_new"]) == ("site", "site-1", "legal", True)
    assert locseal(*place).out.startswith(f"{placed['hold_id']}: nothing of site site-1 is removed from now on")
    assert "case 7" in locseal("hold", "list").out
    assert locseal("prune", "--apply", "--json").json["rows"] == {}
    assert left(home) == 1
    release = ("hold", "release", placed["hold_id"], "--reason", "closed", "--owner", "legal")
    assert locseal(*release, "--json").json["is_new"] is True
    assert "was released before" in locseal(*release).out
    assert locseal("hold", "list").out == "no hold is in force\n"
    (kept,) = locseal("hold", "list", "--all", "--json").json["holds"]
    assert (kept["released_by"], kept["release_reason"]) == ("legal", "closed")
    assert locseal("prune", "--apply", "--json").json["rows"] == {"rejections": 1}
    with reading(home.engine) as conn:
        assert conn.execute(select(events.c.state)).scalars().all() == ["open"]
    gone = locseal("hold", "release", "hold-9", "--reason", "x", "--json")
    assert (gone.code, gone.json["error"]["code"]) == (1, "hold.unknown")
