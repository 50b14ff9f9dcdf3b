"""The harness itself, in short: every promise is kept under a dozen faults, and a broken promise would be told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos import ending
from tests.chaos.arena import faketime_library
from tests.chaos.outage import simulate_outage
from tests.chaos.plan import KINDS, Sending, make_plan
from tests.chaos.recovery import Recovery, recovery_after
from tests.chaos.report import to_json, to_markdown
from tests.chaos.run import Options, run_chaos
from tests.conftest import missing

SEED = 17876


@pytest.mark.timeout(600)
def test_a_short_run_keeps_every_promise(tmp_path: Path) -> None:
    """18 events of 5 locales under 9 faults: all end, none is published twice or in part, the audit is clean.

    The seed's faults kill and stop a worker, flush Redis, restart PostgreSQL and end its connections, leave a link half
    open, have the provider fail and the CMS lose answers.
    """
    if faketime_library() is None:
        missing("libfaketime", "the Debian package faketime is not installed")
    options = Options(events=18, faults=9, seed=SEED, gap_seconds=1.0, quiet_seconds=400.0)
    outcome = run_chaos(options, tmp_path / "fleet", print)
    report = to_json(outcome, None)
    assert report["violations"] == [], to_markdown(report)
    assert outcome.is_quiet
    assert (report["faults"]["total"], report["lost"]) == (9, 0)
    assert sum(report["events"]["by_state"].values()) == 18
    assert report["published"] == report["events"]["by_state"]["published"] > 0
    assert options.command in to_markdown(report)


def test_a_seed_makes_one_plan() -> None:
    """Faults and texts follow from the seed alone; every kind comes about equally often, on SQLite those that apply."""
    asked = {"events": 100, "faults": 2 * len(KINDS), "is_sqlite": False, "gap_seconds": 2.0, "scale": 1.0}
    plan = make_plan(seed=1, **asked)
    assert plan == make_plan(seed=1, **asked)
    assert plan != make_plan(seed=2, **asked)
    assert sorted(fault.kind.name for fault in plan.faults) == sorted(2 * [kind.name for kind in KINDS])
    assert len(plan.events) == 100
    assert {len(one.targets) for one in plan.events} == {5}
    on_sqlite = make_plan(seed=1, **{**asked, "is_sqlite": True})
    assert not any(fault.kind.needs_postgres for fault in on_sqlite.faults)


def published(event: Sending, **changes: object) -> dict[str, object]:
    """Return the sandbox's entry of a publication."""
    entry: dict[str, object] = {
        "event_id": event.event_id,
        "site_id": event.site_id,
        "source_id": event.source_id,
        "source_sequence": event.source_sequence,
        "target_sha256": event.targets,
    }
    return entry | changes


def test_wrong_publications_are_told() -> None:
    """Twice, in part, older after newer, live without a record, recorded without being live: each is found."""
    first = make_plan(seed=1, events=1, faults=1, is_sqlite=False, gap_seconds=1.0, scale=1.0).events[0]
    newer = replace(first, event_id="newer", source_sequence=first.source_sequence + 1)
    other = replace(first, event_id="other", source_id="elsewhere")
    live = ending.EventEnd(state="published")
    events = (first, newer, other)

    def judged(entries: list[dict[str, object]], **ends: ending.EventEnd) -> ending.Publications:
        return ending.judge_publications(events, ends, entries)

    good = judged([published(first), published(newer)], **{first.event_id: live, "newer": live})
    assert good == ending.Publications(twice=[], partial=[], overwritten=[], unrecorded=[], missing=[], live=2)
    bad = judged(
        [published(newer), published(first), published(newer), published(other, target_sha256={"de": "0"})],
        **{first.event_id: live, "newer": live, "third": live},
    )
    assert (bad.twice, bad.partial, bad.missing) == (["newer"], ["other"], ["third"])
    assert bad.overwritten == [first.event_id, "newer"]
    assert bad.unrecorded == ["other"]


def test_recovery_runs_from_the_end_of_a_fault() -> None:
    """First: the next progress of anything. Half, all: until so many of the events that were open have moved."""
    progress = {"over": [1.0, 9.0], "slow": [5.0, 40.0, 90.0], "quick": [9.5, 11.0], "new": [10.5, 80.0]}
    assert recovery_after(10.0, progress) == Recovery(first=0.5, half=1.0, all=30.0)
    assert recovery_after(95.0, progress) == Recovery(first=None, half=None, all=None)


def test_an_outage_needs_no_operator(tmp_path: Path) -> None:
    """Ten simulated minutes on 60 locales (the report: an hour, 1,000): all approved after it, three attempts at most."""
    tmp_path.chmod(0o700)
    found = simulate_outage(tmp_path, locales=60, outage_seconds=600.0)
    assert (found["approved"], found["most_attempts_during"]) == (60, 1)
    assert found["most_attempts"] <= 3
    assert found["calls_during"] <= 50 + 600 / 60 + 5  # the first batch, then one probe a minute
