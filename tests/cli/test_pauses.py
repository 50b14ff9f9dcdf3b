"""`locseal pause` and `locseal resume` as people call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import select

from tests.builders import change_event
from tests.cli.conftest import Home
from tests.intake_builders import submit
from worker.store.engine import reading
from worker.store.schema import pauses


def kept(home: Home) -> list[tuple[Any, ...]]:
    with reading(home.engine) as conn:
        return [
            tuple(row) for row in conn.execute(select(pauses.c.scope, pauses.c.name, pauses.c.owner, pauses.c.reason))
        ]


def test_pause_look_and_resume(locseal: Callable[..., Any], home: Home) -> None:
    """A pause is kept with who and why; a dry run counts and keeps it; the resume takes it away, once."""
    submit(home.services, home.keys, change_event(target_locales=["de", "fr"]))
    said = locseal("pause", "--site", "site-1", "--reason", "launch", "--until", "2h", "--owner", "ops")
    assert (said.code, kept(home)) == (0, [("site", "site-1", "ops", "launch")])
    assert said.out.startswith("site site-1: paused by ops until ")
    dry = locseal("resume", "--site", "site-1", "--dry-run", "--json")
    assert dry.json == {
        "scope": "site",
        "name": "site-1",
        "was_paused": True,
        "dry_run": True,
        "evidence": 2,
        "deliveries": 0,
    }
    assert len(kept(home)) == 1
    assert locseal("resume", "--site", "site-1").out == "site site-1: 2 locales and 0 deliveries may run now\n"
    assert kept(home) == []
    assert locseal("resume", "--site", "site-1").out == "site site-1: no pause was in force; nothing changes\n"
    assert locseal("pause", "--list").out == "nothing is paused\n"


def test_wrong_words_change_nothing(locseal: Callable[..., Any], home: Home) -> None:
    """No reason is a refusal; two scopes or a time that is none are wrong usage; nothing is stored."""
    assert locseal("pause").code == 1
    assert locseal("pause", "--site", "a", "--provider", "b", "--reason", "x").code == 2
    assert locseal("pause", "--reason", "x", "--until", "soon").code == 2
    assert kept(home) == []
