"""The store of release runs, on both databases: one transaction an operation, damage refused, workspaces apart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, func, insert, select, update

from tests.run_builders import (
    SECOND,
    WORKSPACE,
    localization_input,
    localization_plan,
    software_input,
    software_plan,
)
from worker.domain.canonical import canonical_bytes, parse_strict
from worker.domain.errors import (
    RunBusy,
    RunConflict,
    RunCorrupt,
    RunError,
    RunNotFound,
    RunWorkspaceMismatch,
)
from worker.store.engine import reading, writing
from worker.store.runs import RunStore
from worker.store.schema import release_runs

Json = dict[str, Any]
OTHER = "f" * 64


@pytest.fixture
def store(engine: Engine) -> RunStore:
    return RunStore(engine, workspace_fingerprint=WORKSPACE, now=SECOND)


def new(store: RunStore) -> str:
    run_id = store.create(input_snapshot=software_input(), plan_snapshot=software_plan())["run_id"]
    assert isinstance(run_id, str)
    return run_id


def document_of(engine: Engine, run_id: str) -> bytes:
    with reading(engine) as conn:
        return bytes(conn.execute(select(release_runs.c.document).where(release_runs.c.run_id == run_id)).scalar_one())


def set_document(engine: Engine, run_id: str, document: bytes) -> None:
    writing(
        engine,
        lambda conn: conn.execute(
            update(release_runs).where(release_runs.c.run_id == run_id).values(document=document)
        ),
    )


def operations(store: RunStore, run_id: object) -> list[Callable[[], object]]:
    """Return every operation on one run, with arguments that are fine in themselves."""
    return [
        lambda: store.get(run_id),
        lambda: store.resume(run_id, request_id="request-9"),
        lambda: store.start_step(run_id, "check", attempt_id="attempt-9"),
        lambda: store.finish_step(run_id, "check", attempt_id="attempt-9", succeeded=True, result_code="done"),
        lambda: store.retry_step(run_id, "check", request_id="request-9"),
        lambda: store.reconcile_step(
            run_id, "check", request_id="request-9", outcome="unresolved", confirmation="RECONCILE"
        ),
    ]


def test_create_get_and_list(store: RunStore) -> None:
    """A new run reads back as it was answered; each call makes another; the newest comes first."""
    first = store.create(input_snapshot=software_input(), plan_snapshot=software_plan())
    second = store.create(input_snapshot=localization_input(), plan_snapshot=localization_plan())
    assert store.get(first["run_id"]) == first
    assert first["run_id"].startswith("rr-20260102T030405Z-")
    rows = store.list()
    assert [row["run_id"] for row in rows] == sorted([first["run_id"], second["run_id"]], reverse=True)
    assert {row["run_id"]: row.get("event_count") for row in rows} == {first["run_id"]: None, second["run_id"]: 2}


def test_whole_release(store: RunStore) -> None:
    """Every mutator answers the fresh view, up to completed."""
    run_id = new(store)
    store.start_step(run_id, "check", attempt_id="attempt-1")
    store.finish_step(run_id, "check", attempt_id="attempt-1", succeeded=True, result_code="done")
    store.start_step(run_id, "publish", attempt_id="attempt-2")
    assert store.resume(run_id, request_id="request-1")["state"]["status"] == "attention"
    view = store.reconcile_step(
        run_id, "publish", request_id="request-2", outcome="effect_succeeded", confirmation="RECONCILE"
    )
    assert view["state"]["steps"][1]["result_code"] == "reconciled_effect_succeeded"
    store.start_step(run_id, "verify", attempt_id="attempt-3")
    view = store.finish_step(run_id, "verify", attempt_id="attempt-3", succeeded=True, result_code="done")
    assert view["state"]["status"] == "completed"
    assert view == store.get(run_id)


def test_replays_write_nothing(engine: Engine, store: RunStore) -> None:
    """A replay answers the current view and leaves the stored bytes as they are."""
    run_id = new(store)
    store.start_step(run_id, "check", attempt_id="attempt-1")
    store.resume(run_id, request_id="request-1")
    stored = document_of(engine, run_id)
    later = RunStore(engine, workspace_fingerprint=WORKSPACE, now=SECOND + 60)
    assert later.start_step(run_id, "check", attempt_id="attempt-1") == store.get(run_id)
    assert later.resume(run_id, request_id="request-1") == store.get(run_id)
    assert document_of(engine, run_id) == stored


def test_refused_create_writes_nothing(engine: Engine, store: RunStore) -> None:
    """A bad input, another workspace, a bad plan and a plan that disagrees leave no row."""
    for snapshot, plan, kind in (
        (software_input(channel=""), software_plan(), RunConflict),
        (software_input(workspace_fingerprint=OTHER), software_plan(), RunConflict),
        (software_input(), software_plan(status="x"), RunConflict),
        (software_input(), software_plan(units=[]), RunCorrupt),
        (software_input(), software_plan(notes=["x" * (2_097_152 - 1000)]), RunConflict),
    ):
        with pytest.raises(kind):
            store.create(input_snapshot=snapshot, plan_snapshot=plan)
    with reading(engine) as conn:
        assert conn.execute(select(func.count()).select_from(release_runs)).scalar_one() == 0


@pytest.mark.parametrize(
    "run_id", ["", "rr-1", "rr-20260102T030405Z-0123456789ab", "rr-20260102T030405Z-0123456789ab\n", None, 7, b"x"]
)
def test_unknown_and_malformed_run_ids(store: RunStore, run_id: object) -> None:
    """Both are `run.not_found`, from every operation."""
    for operation in operations(store, run_id):
        with pytest.raises(RunNotFound) as refused:
            operation()
        assert (refused.value.code, refused.value.retryable) == ("run.not_found", False)


def test_other_workspace_is_worded_like_a_missing_run(engine: Engine, store: RunStore) -> None:
    """A valid record of another workspace answers as not found and is skipped by lists without counting."""
    run_id = new(store)
    other = RunStore(engine, workspace_fingerprint=OTHER, now=SECOND)
    with pytest.raises(RunNotFound) as missing:
        other.get("rr-20260102T030405Z-0123456789ab")
    for operation in operations(other, run_id):
        with pytest.raises(RunWorkspaceMismatch) as refused:
            operation()
        assert str(refused.value) == str(missing.value)
        assert refused.value.code == "run.not_found"
    assert other.list(limit=1) == []


def test_damage_is_refused_and_left_alone(engine: Engine, store: RunStore) -> None:
    """Every operation on a damaged record is RunCorrupt, changes nothing, and the list shows it as unavailable."""
    run_id, healthy = new(store), new(store)
    record = parse_strict(document_of(engine, run_id), max_bytes=2**21)
    record["state"]["steps"][0]["state"] = "succeeded"
    for damaged in (
        canonical_bytes(record),
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' + b"9" * 5_000 + b"}",
        b"",
        b"x" * 2_097_153,
    ):
        set_document(engine, run_id, damaged)
        for operation in operations(store, run_id):
            with pytest.raises(RunCorrupt) as refused:
                operation()
            assert refused.value.code == "run.corrupt"
        assert document_of(engine, run_id) == damaged
        rows = {row["run_id"]: row for row in store.list()}
        assert set(rows[run_id]) == {"run_id", "status", "error"}
        assert rows[run_id]["status"] == "unavailable"
        assert rows[healthy]["status"] == "planned"
        other = RunStore(engine, workspace_fingerprint=OTHER, now=SECOND)
        assert [row["run_id"] for row in other.list()] == [run_id]


def test_list_limits(engine: Engine, store: RunStore) -> None:
    """Default 20, clamped into 1..100 after integer conversion; anything without an integer is a conflict."""
    template = document_of(engine, new(store))
    for number in range(24):
        run_id = f"rr-20250102T030405Z-{number:012x}"
        writing(
            engine,
            lambda conn, run_id=run_id: conn.execute(  # type: ignore[misc]
                insert(release_runs).values(run_id=run_id, document=template, record_digest="", status="planned")
            ),
        )
    assert len(store.list()) == 20
    assert [len(store.list(limit=limit)) for limit in (0, -5, 1, "3", 2.9, True, 1000)] == [1, 1, 1, 3, 2, 1, 25]
    for limit in (None, "x", float("nan"), float("inf"), [], object()):
        with pytest.raises(RunConflict):
            store.list(limit=limit)


def test_clock_that_runs_backwards(engine: Engine, store: RunStore) -> None:
    """The next mutation is RunCorrupt and the record unchanged."""
    run_id = new(store)
    stored = document_of(engine, run_id)
    with pytest.raises(RunCorrupt):
        RunStore(engine, workspace_fingerprint=WORKSPACE, now=SECOND - 1).resume(run_id, request_id="request-1")
    assert document_of(engine, run_id) == stored


def test_two_stores_race_for_one_step(engine: Engine, store: RunStore) -> None:
    """Of eight claims at once one holds the step; the others are conflicts."""
    run_id = new(store)
    outcomes: list[str] = []

    def claim(number: int) -> None:
        own = RunStore(engine, workspace_fingerprint=WORKSPACE, now=SECOND)
        try:
            own.start_step(run_id, "check", attempt_id=f"attempt-{number}")
            outcomes.append("claimed")
        except RunConflict as refused:
            outcomes.append(refused.code)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["claimed"] + ["run.conflict"] * 7
    assert store.get(run_id)["state"]["steps"][0]["attempt_count"] == 1


def test_mutation_beyond_the_record_limit_is_a_conflict(engine: Engine, store: RunStore) -> None:
    """A record at its limit cannot grow, and stays as it is."""
    room = 2_097_152 - 1 - len(document_of(engine, new(store))) - 40
    run_id = store.create(input_snapshot=software_input(), plan_snapshot=software_plan(notes=["x" * room]))["run_id"]
    stored = document_of(engine, run_id)
    with pytest.raises(RunConflict):
        store.start_step(run_id, "check", attempt_id="attempt-1")
    assert document_of(engine, run_id) == stored


def test_locked_row_is_busy(postgres_engine: Engine) -> None:
    """After the wait for the row lock a conflict says that the storage is busy, and may be tried again."""
    event.listen(postgres_engine, "connect", wait_shortly)
    postgres_engine.dispose()  # the next connection is the first to wait shortly
    store = RunStore(postgres_engine, workspace_fingerprint=WORKSPACE, now=SECOND)
    run_id = new(store)
    with postgres_engine.connect() as holder, holder.begin():
        holder.execute(select(release_runs.c.run_id).where(release_runs.c.run_id == run_id).with_for_update())
        with pytest.raises(RunBusy) as refused:
            store.resume(run_id, request_id="request-1")
    assert (refused.value.code, refused.value.retryable) == ("run.busy", True)


def wait_shortly(connection: Any, _record: object) -> None:
    """Shorten the wait for locks from ten seconds, so that the test need not sit through it."""
    connection.autocommit = True
    connection.execute("SET lock_timeout = '200ms'")
    connection.autocommit = False


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=9),
    st.binary(max_size=9),
    st.lists(st.none()),
)


@given(first=ANYTHING, second=ANYTHING, third=ANYTHING, fourth=ANYTHING)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_argument_ends_in_one_of_the_four_kinds(
    sqlite_engine: Engine, first: object, second: object, third: object, fourth: object
) -> None:
    """No argument of any type ends in anything but a RunError, and none writes."""
    store = RunStore(sqlite_engine, workspace_fingerprint=WORKSPACE, now=SECOND)
    for call in (
        lambda: store.create(input_snapshot=first, plan_snapshot=second),
        lambda: store.create(input_snapshot=software_input(), plan_snapshot=second),
        lambda: store.create(input_snapshot=software_input(repo_versions=first), plan_snapshot=software_plan()),
        lambda: store.get(first),
        lambda: store.resume(first, request_id=second),
        lambda: store.start_step(first, second, attempt_id=third),
        lambda: store.finish_step(first, second, attempt_id=third, succeeded=fourth, result_code=fourth),
        lambda: store.retry_step(first, second, request_id=third),
        lambda: store.reconcile_step(first, second, request_id=third, outcome=fourth, confirmation=fourth),
    ):
        with pytest.raises(RunError):
            call()
    assert store.list() == []


@pytest.mark.parametrize("fingerprint", ["", "A" * 64, "a" * 63, None, 7])
def test_store_needs_a_fingerprint(sqlite_engine: Engine, fingerprint: Any) -> None:
    """A store serves one workspace, named by 64 lowercase hex digits."""
    with pytest.raises(RunConflict):
        RunStore(sqlite_engine, workspace_fingerprint=fingerprint)
