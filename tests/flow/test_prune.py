"""Retention: what is old and needed by nobody goes, in batches; what an audit needs, or a legal hold keeps, never does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Table, event, text, update

from tests.audited import Story, audited
from tests.builders import Keyring, change_event, results_for, signed_submission, signed_withdrawal
from tests.fake_cms import FakeCms
from tests.fakes import Crash
from tests.flow.scene import Scene
from worker.cli.local_fleet import wait_for
from worker.domain.errors import Blocked, Invalid
from worker.domain.retention import DAY_SECONDS, KINDS, Retention, retention
from worker.flow.accept_submission import accept_submission
from worker.flow.count_prunable import count_prunable
from worker.flow.prune_database import prune_database
from worker.flow.withdraw_event import withdraw_event
from worker.store.engine import is_sqlite, reading, writing
from worker.store.legal_holds import list_holds, place_hold, release_hold
from worker.store.prunable import find_rows, prunable_events
from worker.store.prunings import Pruning, begin_pruning, lock_pruning
from worker.store.schema import (
    approvals,
    deliveries,
    delivery_answers,
    event_traces,
    events,
    evidence,
    evidence_history,
    legal_holds,
    metadata,
    operator_requests,
    plan_jobs,
    pruned_events,
    prunings,
    public_keys,
    pushed_responses,
    receipts,
    rejections,
    release_runs,
    results,
    run_commands,
    setbacks,
    sources,
    submissions,
    withdrawals,
)

Rows = dict[str, list[tuple[Any, ...]]]
MAY_SHRINK = {table.name for table in (rejections, setbacks, evidence, evidence_history, deliveries, run_commands)}
MAY_SHRINK.add(event_traces.name)
RECORDS = {table.name for table in (operator_requests, prunings, pruned_events, legal_holds)}
GOES = {"rejections": 1, "requests": 2, "history": 1, "deliveries": 1, "releases": 1}


@pytest.fixture
def story(scene: Scene) -> Story:
    """Everything that can happen, 100 days ago; what was handed in is published too."""
    told = replace(scene.story, cms=FakeCms(keys=scene.story.keys))
    told.publish("pushed")
    told.now += 100 * DAY_SECONDS
    return told


@pytest.fixture
def engine(scene: Scene) -> Engine:
    """The database of the story; the readers of tables use it too."""
    return scene.engine


@pytest.fixture
def keys(scene: Scene) -> Keyring:
    """The keys of the story."""
    return scene.story.keys


def wanted(story: Story, **options: Any) -> Retention:
    """Return what ended more than 90 days ago."""
    return retention(older_than_seconds=90 * DAY_SECONDS, now=story.now, **options)


def begun(story: Story, pruning_id: str = "prune-1", **options: Any) -> Pruning:
    """Return a pruning of it."""
    asked = wanted(story, **options)
    return writing(
        story.services.engine,
        lambda conn: begin_pruning(conn, pruning_id, "ops", asked, age_seconds=90 * DAY_SECONDS, now=story.now),
    )


def pruned(story: Story, pruning_id: str = "prune-1", **options: Any) -> dict[str, int]:
    """Remove it and return how many rows of each kind went."""
    ended = prune_database(story.services.engine, begun(story, pruning_id, **options), now=story.now)
    assert ended.ended_at == story.now
    return dict(ended.removed)


def hold(story: Story, scope: Any, name: str, request_id: str = "hold-1") -> str:
    """Place a hold and return its id."""
    placed, _ = writing(
        story.services.engine,
        lambda conn: place_hold(
            conn, scope=scope, name=name, reason="case 7", owner="legal", request_id=request_id, now=story.now
        ),
    )
    return placed.hold_id


def test_what_goes_is_what_no_audit_needs(
    engine: Engine, story: Story, everything: Callable[[], Rows], rows: Callable[[Table], list[dict[str, Any]]]
) -> None:
    """The audit is clean before and after; only seven tables shrink, nothing in them changes, and the record is exact."""
    assert audited(engine) == {}
    before = everything()
    assert count_prunable(engine, wanted(story)) == GOES
    assert everything() == before
    assert pruned(story) == GOES
    after = everything()
    assert audited(engine) == {}
    for name in before.keys() - RECORDS - MAY_SHRINK:
        assert after[name] == before[name], name
    for name in MAY_SHRINK:
        assert set(after[name]) <= set(before[name]), name
    assert {name for name in MAY_SHRINK if after[name] != before[name]} == MAY_SHRINK - {"run_commands", "event_traces"}
    assert {row["event_id"] for row in rows(deliveries)} == {row[1] for row in before["deliveries"]} - {"old"}
    (record,) = rows(prunings)
    assert (record["owner"], json.loads(record["removed"]), record["ended_at"]) == ("ops", GOES, story.now)
    assert {row["event_id"]: json.loads(row["removed"]) for row in rows(pruned_events)} == {
        "withdrawn": {"requests": 2},
        "fixed": {"history": 1},
        "old": {"deliveries": 1},
        "pushed": {"releases": 1},
    }
    assert count_prunable(engine, wanted(story)) == {}


def test_traces_of_ended_events_go(engine: Engine, story: Story, rows: Any) -> None:
    """Their contexts are of use while work goes on; an open event keeps its own."""
    kept = [{"event_id": one, "traceparent": "00-x", "began_at": 1.0} for one in ("legal", "waiting")]
    writing(engine, lambda conn: conn.execute(event_traces.insert(), kept))
    assert pruned(story, kinds=["traces"]) == {"traces": 1}
    assert [row["event_id"] for row in rows(event_traces)] == ["waiting"]


def test_only_what_is_asked_for_goes(engine: Engine, story: Story) -> None:
    """By kind, by the state of the event, by site, and by age; a site's pruning leaves what belongs to no site."""
    assert count_prunable(engine, wanted(story, kinds=["history", "requests"])) == {"requests": 2, "history": 1}
    assert count_prunable(engine, wanted(story, states=["superseded"])) == {"rejections": 1, "deliveries": 1}
    assert count_prunable(engine, wanted(story, site_id="site-2")) == {}
    assert count_prunable(engine, wanted(story, site_id="site-1")) == {
        kind: count for kind, count in GOES.items() if kind != "rejections"
    }
    assert count_prunable(engine, replace(wanted(story), before_at=1.0)) == {}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"older_than_seconds": 6 * DAY_SECONDS}, "prune.age.invalid"),
        ({"older_than_seconds": float("nan")}, "prune.age.invalid"),
        ({"kinds": ["approvals"]}, "prune.kind.invalid"),
        ({"states": ["open"]}, "prune.state.invalid"),
        ({"site_id": "a b"}, "prune.site.invalid"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], code: str) -> None:
    """Too young, no such kind, a state that is no end, no site."""
    with pytest.raises(Invalid) as refusal:
        retention(**{"older_than_seconds": 8 * DAY_SECONDS, "now": 1e9, **options})
    assert refusal.value.code == code
    assert set(KINDS) == {"rejections", "commands", "releases", "requests", "history", "deliveries", "traces"}


def test_succeeded_commands_go_and_others_stay(engine: Engine, story: Story, rows: Any) -> None:
    """A command whose step succeeded long ago; not one that waits, and none of a site that is held."""
    assert [row["status"] for row in rows(run_commands)] == ["pending"]
    ended = {"status": "succeeded", "attempts": 1, "updated_at": 1.0}
    writing(engine, lambda conn: conn.execute(update(run_commands).values(**ended)))
    name = hold(story, "event", "legal")
    assert count_prunable(engine, wanted(story, kinds=["commands"])) == {}
    writing(
        engine,
        lambda conn: release_hold(conn, name, reason="done", owner="legal", request_id="r-1", now=story.now),
    )
    assert pruned(story, kinds=["commands"]) == {"commands": 1}
    assert rows(run_commands) == []


@pytest.mark.parametrize(("scope", "name"), [("site", "site-1"), ("event", "withdrawn")])
def test_a_hold_keeps_everything_of_its_scope(engine: Engine, story: Story, rows: Any, scope: str, name: str) -> None:
    """Of its site or event nothing goes, of no site no rejection either; once it is released, the rest goes."""
    held = hold(story, scope, name)
    expected = {} if scope == "site" else {"history": 1, "deliveries": 1, "releases": 1}
    assert pruned(story) == expected
    assert [row["event_id"] for row in rows(pruned_events) if row["event_id"] == name] == []
    story.now += 1.0

    def release(request_id: str) -> tuple[Any, bool]:
        return writing(
            engine,
            lambda conn: release_hold(conn, held, reason="closed", owner="legal", request_id=request_id, now=story.now),
        )

    assert [release("r-1")[1], release("r-1")[1], release("r-2")[1]] == [True, False, False]
    assert pruned(story, "prune-2") == {kind: count for kind, count in GOES.items() if kind not in expected}
    with reading(engine) as conn:
        assert list_holds(conn) == ()
        assert [one.released_by for one in list_holds(conn, with_released=True)] == ["legal"]
    assert audited(engine) == {}


def test_a_hold_is_placed_once_and_on_something_known(engine: Engine, story: Story, rows: Any) -> None:
    """The same request id places one; another use of it, an unknown name and an empty reason are refused."""
    assert hold(story, "event", "legal") == hold(story, "event", "legal")
    assert len(rows(legal_holds)) == 1

    def refused(**changes: Any) -> str:
        said = {"scope": "event", "name": "legal", "reason": "case 7", "owner": "legal", "request_id": "hold-1"}
        with pytest.raises(Blocked) as refusal:
            writing(engine, lambda conn: place_hold(conn, **{**said, **changes}, now=story.now))
        return refusal.value.code

    assert refused(name="menu") == "hold.name.unknown"
    assert refused(name="old") == "operator.request_id.collision"
    assert refused(reason=" ", request_id="h-2") == "hold.reason.invalid"
    assert refused(owner="a b", request_id="h-2") == "hold.owner.invalid"
    with pytest.raises(Blocked) as unknown:
        writing(engine, lambda conn: release_hold(conn, "no", reason="x", owner="y", request_id="r", now=story.now))
    assert unknown.value.code == "hold.unknown"
    assert len(rows(legal_holds)) == 1


@pytest.mark.parametrize("told", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_a_hold_waits_for_the_batch_that_is_removed(engine: Engine, story: Story) -> None:
    """Once a hold is placed, nothing of it goes any more: it is placed after the batch, never beside it."""
    name = begun(story).pruning_id
    waits = text("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")

    def is_waiting() -> bool:
        with reading(engine) as conn:
            return conn.execute(waits).first() is not None

    with ThreadPoolExecutor(1) as pool:
        with engine.connect() as batch, batch.begin():
            lock_pruning(batch, name)
            placing = pool.submit(hold, story, "event", "old")
            wait_for(is_waiting, None, "the hold at the lock", 60)
            assert not placing.done()
        assert placing.result(timeout=60).startswith("hold-")
    assert pruned(story) == {kind: count for kind, count in GOES.items() if kind not in {"rejections", "deliveries"}}


def test_a_pruning_goes_on_where_it_stopped(engine: Engine, story: Story, rows: Any) -> None:
    """Killed after every batch, it ends with the same rows gone and the same record; once it has ended, it is over."""

    def crash(name: str) -> None:
        raise Crash(name)

    stopped = 0
    while begun(story).ended_at is None and stopped < 20:
        with pytest.raises(Crash):
            prune_database(engine, begun(story), now=story.now, checkpoint=crash, batch_events=5)
        stopped += 1
        assert stopped % 3 or audited(engine) == {}
    assert 5 < stopped < 20
    (record,) = rows(prunings)
    assert json.loads(record["removed"]) == GOES
    assert pruned(story) == GOES
    with pytest.raises(Blocked) as refusal:
        begun(story, kinds=["history"])
    assert refusal.value.code == "operator.request_id.collision"


def test_many_releases_go_in_bounded_batches(engine: Engine, story: Story, rows: Any) -> None:
    """A review that was asked about for weeks leaves thousands of lines; each batch takes so many of them."""
    (line,) = [row for row in rows(setbacks) if row["outcome"] == "released"]
    more = [{key: value for key, value in line.items() if key != "setback_id"} for _ in range(25)]
    writing(engine, lambda conn: conn.execute(setbacks.insert(), more))
    assert count_prunable(engine, wanted(story))["releases"] == 26
    sizes: list[int] = []
    ended = prune_database(
        engine,
        begun(story),
        now=story.now,
        batch_rows=10,
        progress=lambda removed: sizes.append(removed.get("releases", 0)),
    )
    assert ended.removed == {**GOES, "releases": 26}
    assert {later - earlier for earlier, later in itertools.pairwise(sizes)} <= {0, 6, 10}
    assert audited(engine) == {}


def test_requests_stay_while_an_open_event_asks_for_the_job(engine: Engine, story: Story, keys: Keyring) -> None:
    """Their number counts: revisions of the open event's own requests follow it. Once that ended too, they go."""
    again = change_event(event_id="again-2", source_id="gone", source_sequence=2, source_text="Not today.")
    text_again = signed_submission(keys, again, results_for(again))
    assert accept_submission(story.step(), text_again).state == "accepted"
    assert count_prunable(engine, wanted(story, kinds=["requests"])) == {}
    assert withdraw_event(story.step(), signed_withdrawal(keys, again)).state == "accepted"
    assert count_prunable(engine, wanted(story, kinds=["requests"])) == {"requests": 2}


def test_the_audit_finds_what_was_removed_under_a_hold(engine: Engine, story: Story) -> None:
    """A record of removal from while a hold was in force, of an open event, of nothing: each is named."""
    hold(story, "event", "withdrawn")

    def record(event_id: str, removed: str = '{"requests": 1}', pruning_id: str = "prune-1") -> None:
        row = {"pruning_id": pruning_id, "event_id": event_id, "removed": removed, "pruned_at": story.now + 1}
        writing(engine, lambda conn: conn.execute(pruned_events.insert().values(**row)))

    begun(story)
    record("withdrawn")
    record("waiting")
    record("unheard")
    record("old", removed='{"approvals": 1}')
    record("legal", pruning_id="lost")
    assert audited(engine) == {
        "pruned.held": {"prune-1/withdrawn"},
        "pruned.event_open": {"prune-1/waiting"},
        "pruned.event_missing": {"prune-1/unheard"},
        "pruned.row_invalid": {"prune-1/old"},
        "pruned.pruning_missing": {"lost/legal"},
    }
    writing(engine, lambda conn: conn.execute(update(prunings).values(kinds="approvals")))
    writing(engine, lambda conn: conn.execute(update(legal_holds).values(released_by="x")))
    assert {code for code in audited(engine) if not code.startswith("pruned.")} == {
        "pruning.row_invalid",
        "legal_hold.row_invalid",
    }


def test_every_statement_finds_its_rows_by_an_index(engine: Engine, story: Story) -> None:
    """No table that grows is read through, whatever its size: where an index can be used, it is."""
    asked: list[tuple[str, Any]] = []
    listener: Callable[..., None] = lambda _c, _cu, sql, parameters, *_: asked.append((sql, parameters))  # noqa: E731
    event.listen(engine, "before_cursor_execute", listener)
    with reading(engine) as conn:
        page = prunable_events(conn, wanted(story), (1.0, "a"))
        find_rows(conn, wanted(story), page.event_ids)
    event.remove(engine, "before_cursor_execute", listener)
    assert 6 <= len(asked) <= 8
    grows = [evidence, evidence_history, deliveries, setbacks, events, plan_jobs, approvals, delivery_answers]
    for sql, parameters in asked:
        said = plan(engine, sql, parameters)
        for table in grows:
            assert f"Seq Scan on {table.name}" not in said, said
            assert f"SCAN {table.name}\n" not in said, said


def plan(engine: Engine, sql: str, parameters: Any) -> str:
    """Return how the database would execute a statement, if reading a table through were very dear."""

    def work(conn: Connection) -> str:
        if not is_sqlite(engine):
            conn.execute(text("SET LOCAL enable_seqscan = off"))
        how = "EXPLAIN QUERY PLAN " if is_sqlite(engine) else "EXPLAIN "
        rows = conn.exec_driver_sql(how + sql, parameters)
        return "".join(f"{row[-1]}\n" for row in rows)

    return writing(engine, work)


def test_nothing_is_kept_out_of_the_promise() -> None:
    """Each table either may shrink, records what was removed, or is never touched."""
    never = {submissions, sources, events, withdrawals, plan_jobs, results, receipts, approvals, public_keys}
    never |= {delivery_answers, pushed_responses, release_runs}
    assert {table.name for table in never} & (MAY_SHRINK | RECORDS) == set()
    assert {table.name for table in never} <= set(metadata.tables)
