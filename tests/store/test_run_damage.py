"""Damaged rows of release runs: every operation refuses them as RunCorrupt and leaves them exactly as they are."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text, update

from tests.run_builders import (
    SECOND,
    WORKSPACE,
    localization_input,
    localization_plan,
    software_input,
    software_plan,
    step,
)
from worker.domain.canonical import canonical_bytes, parse_strict
from worker.domain.errors import RunBusy, RunConflict, RunCorrupt
from worker.domain.run_record import record_digest
from worker.store.engine import reading, writing
from worker.store.runs import RunStore
from worker.store.schema import release_runs

Json = dict[str, Any]
Path_ = tuple[Any, ...]


@pytest.fixture
def store(engine: Engine) -> RunStore:
    """The store of a workspace at a fixed time."""
    return RunStore(engine, workspace_fingerprint=WORKSPACE, now=SECOND)


def worn(store: RunStore, kind: str = "software") -> str:
    """Return a run that has seen everything: success, failure, retry, interruption, reconciliation."""
    given, plan = (
        (software_input(), software_plan(notes=["note"], units=[*software_plan()["units"]]))
        if kind == "software"
        else (localization_input(), localization_plan())
    )
    plan["recommended_action"] = {"id": "act", "title": "Act"}
    run_id = str(store.create(input_snapshot=given, plan_snapshot=plan)["run_id"])
    store.start_step(run_id, "check", attempt_id="attempt-1")
    store.finish_step(run_id, "check", attempt_id="attempt-1", succeeded=False, result_code="broken")
    store.retry_step(run_id, "check", request_id="request-1")
    store.start_step(run_id, "check", attempt_id="attempt-2")
    store.finish_step(run_id, "check", attempt_id="attempt-2", succeeded=True, result_code="done")
    store.start_step(run_id, "publish", attempt_id="attempt-3")
    store.resume(run_id, request_id="request-2")
    store.reconcile_step(run_id, "publish", request_id="request-3", outcome="unresolved", confirmation="RECONCILE")
    return run_id


def document_of(engine: Engine, run_id: str) -> Any:
    with reading(engine) as conn:
        found = conn.execute(select(release_runs.c.document).where(release_runs.c.run_id == run_id)).scalar_one()
    return bytes(found)


def put(engine: Engine, run_id: str, **values: Any) -> None:
    writing(
        engine, lambda conn: conn.execute(update(release_runs).where(release_runs.c.run_id == run_id).values(**values))
    )


def operations(store: RunStore, run_id: str) -> list[Callable[[], object]]:
    """Return every operation on one run, replays among them."""
    return [
        lambda: store.get(run_id),
        lambda: store.resume(run_id, request_id="request-2"),
        lambda: store.resume(run_id, request_id="request-9"),
        lambda: store.start_step(run_id, "check", attempt_id="attempt-2"),
        lambda: store.finish_step(run_id, "check", attempt_id="attempt-2", succeeded=True, result_code="done"),
        lambda: store.retry_step(run_id, "publish", request_id="request-9"),
        lambda: store.reconcile_step(
            run_id, "publish", request_id="request-9", outcome="effect_absent", confirmation="RECONCILE"
        ),
    ]


def refused(store: RunStore, run_id: str) -> None:
    """Hold that every operation is RunCorrupt, and that the list shows the run as unavailable."""
    for operation in operations(store, run_id):
        with pytest.raises(RunCorrupt) as caught:
            operation()
        assert (caught.type, caught.value.code, caught.value.retryable) == (RunCorrupt, "run.corrupt", False)
    (row,) = store.list()
    assert row == {"run_id": run_id, "status": "unavailable", "error": row["error"]}


def paths(value: Any, prefix: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every value inside a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*prefix, key)
        yield from paths(child, (*prefix, key))


def damages(record: Json, path: Path_) -> Iterator[Json]:
    """Yield a record with one field flipped, made null, dropped, of another type, or with one added below it."""
    for kind in ("flip", "null", "drop", "type", "add"):
        broken = copy.deepcopy(record)
        parent = broken
        for key in path[:-1]:
            parent = parent[key]
        value = parent[path[-1]]
        if kind == "drop":
            del parent[path[-1]]
        elif kind == "add" and isinstance(value, dict):
            value["added"] = None
        elif kind == "add" and isinstance(value, list):
            value.append(None)
        elif kind == "null" and value is not None:
            parent[path[-1]] = None
        elif kind == "type":
            parent[path[-1]] = {"was": "another"} if not isinstance(value, dict) else "text"
        elif kind == "flip":
            parent[path[-1]] = flipped(value)
        if canonical_bytes(broken) != canonical_bytes(record):
            yield broken


def flipped(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("b" if value.endswith("a") else "a") if value else "a"
    if isinstance(value, list):
        return value[:-1]
    return {} if value else "a"


@pytest.mark.parametrize("kind", ["software", "localization"])
def test_any_damaged_field_is_refused_and_left_alone(engine: Engine, store: RunStore, kind: str) -> None:
    """Over every path of a stored record: reading, replaying and changing it are RunCorrupt, and the bytes stay."""
    run_id = worn(store, kind)
    record = parse_strict(document_of(engine, run_id), max_bytes=2**21)
    checked = 0
    for number, path in enumerate(paths(record)):
        for broken in damages(record, path):
            damaged = canonical_bytes(broken)
            put(engine, run_id, document=damaged)
            operation = operations(store, run_id)[(number + checked) % 7]
            with pytest.raises(RunCorrupt):
                operation()
            assert document_of(engine, run_id) == damaged
            checked += 1
        if number % 40 == 0:
            refused(store, run_id)
    assert checked > 500
    put(engine, run_id, document=canonical_bytes(record))
    assert store.get(run_id)["state"]["status"] == "attention"


@pytest.mark.parametrize(
    "edit",
    [
        lambda stored: stored.replace(b'"schema_version":2', b'"schema_version":2.0'),
        lambda stored: stored.replace(b'"attempt_count":2', b'"attempt_count":2e0'),
        lambda stored: stored + b"{}",
        lambda stored: b"\xef\xbb\xbf" + stored,
        lambda stored: stored.replace(b"Title of check", b"Title of \xff"),
        lambda stored: stored.replace(
            b'"schema":"locseal.release-run"', b'"schema":"a","schema":"locseal.release-run"'
        ),
        lambda _stored: b"[" * 2_000_000,
        lambda stored: stored[:-1],
        lambda _stored: b'{"a":' + b"9" * 100_000 + b"}",
    ],
)
def test_damaged_bytes_are_refused(engine: Engine, store: RunStore, edit: Callable[[bytes], bytes]) -> None:
    """What parsing would forgive, or choke on, is damage as well: the digest does not see it, so the bytes are held."""
    run_id = worn(store)
    damaged = edit(document_of(engine, run_id))
    assert damaged != document_of(engine, run_id)
    put(engine, run_id, document=damaged)
    refused(store, run_id)
    assert document_of(engine, run_id) == damaged


def test_a_final_line_end_is_no_damage(engine: Engine, store: RunStore) -> None:
    """The limit leaves room for it: the record as a file of one line."""
    run_id = worn(store)
    before = store.get(run_id)
    put(engine, run_id, document=document_of(engine, run_id) + b"\n")
    assert store.get(run_id) == before


@pytest.mark.parametrize("digest", ["0" * 64, ""])
def test_the_digest_beside_the_document_is_held_too(engine: Engine, store: RunStore, digest: str) -> None:
    """A row whose digest column is not its record's is damaged."""
    run_id = worn(store)
    put(engine, run_id, record_digest=digest)
    refused(store, run_id)


@pytest.mark.parametrize("value", ["CAST(x'ff7b' AS TEXT)", "7", "1.5", "''", "x'ff'"])
@pytest.mark.parametrize("column", ["document", "record_digest"])
def test_a_column_of_sqlite_may_hold_anything(sqlite_engine: Engine, column: str, value: str) -> None:
    """Texts that are no UTF-8 and numbers where a document or a digest should be are damage, not a fault of the store."""
    store = RunStore(sqlite_engine, workspace_fingerprint=WORKSPACE, now=SECOND)
    run_id = worn(store)
    with sqlite_engine.begin() as conn:
        conn.execute(text(f"UPDATE release_runs SET {column} = {value}"))
    refused(store, run_id)


def test_a_sequence_that_cannot_rise_is_corrupt(engine: Engine, store: RunStore) -> None:
    """At the largest number that JSON can say the next event has none: refused, and nothing is written."""
    run_id = worn(store)
    record = parse_strict(document_of(engine, run_id), max_bytes=2**21)
    record["state"]["next_event_sequence"] = 2**53 - 1
    record["record_digest"] = record_digest(record)
    put(engine, run_id, document=canonical_bytes(record), record_digest=record["record_digest"])
    assert store.get(run_id)["state"]["next_event_sequence"] == 2**53 - 1
    with pytest.raises(RunCorrupt):
        store.resume(run_id, request_id="request-9")
    assert document_of(engine, run_id) == canonical_bytes(record)


def test_a_reserved_result_code_is_corrupt(engine: Engine, store: RunStore) -> None:
    """An executor cannot claim what only reconciling may say; `process_interrupted` it can."""
    run_id = str(store.create(input_snapshot=software_input(), plan_snapshot=software_plan())["run_id"])
    store.start_step(run_id, "check", attempt_id="attempt-1")
    stored = document_of(engine, run_id)
    for succeeded in (True, False):
        with pytest.raises(RunCorrupt):
            store.finish_step(
                run_id,
                "check",
                attempt_id="attempt-1",
                succeeded=succeeded,
                result_code="reconciled_effect_succeeded",
            )
    assert document_of(engine, run_id) == stored
    view = store.finish_step(
        run_id, "check", attempt_id="attempt-1", succeeded=False, result_code="process_interrupted"
    )
    assert (view["state"]["steps"][0]["state"], view["recommended_next"]["id"]) == ("failed", "retry_step")


@pytest.mark.parametrize("place", ["file", "directory", "link"])
def test_an_unsafe_file_is_refused(sqlite_engine: Engine, place: str) -> None:
    """A database that others could read or exchange by now is RunCorrupt from every operation, list and create too."""
    store = RunStore(sqlite_engine, workspace_fingerprint=WORKSPACE, now=SECOND)
    run_id = worn(store)
    path = Path(str(sqlite_engine.url.database))
    if place == "file":
        path.chmod(0o640)
    elif place == "directory":
        path.parent.chmod(0o720)
    else:
        path.parent.rename(path.parent.with_name("moved"))
        path.parent.symlink_to(path.parent.with_name("moved"))
    for operation in (
        *operations(store, run_id),
        store.list,
        lambda: store.create(input_snapshot=software_input(), plan_snapshot=software_plan()),
    ):
        with pytest.raises(RunCorrupt) as caught:
            operation()
        assert caught.value.code == "run.corrupt"


def test_a_directory_that_others_could_only_read_is_tightened(sqlite_engine: Engine) -> None:
    """It is made 0700 by the next operation, which goes on."""
    store = RunStore(sqlite_engine, workspace_fingerprint=WORKSPACE, now=SECOND)
    directory = Path(str(sqlite_engine.url.database)).parent
    directory.chmod(0o755)
    assert store.list() == []
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_locked_sqlite_file_is_busy(sqlite_engine: Engine) -> None:
    """After the wait for the lock a conflict says that the storage is busy, and reading goes on meanwhile."""
    store = RunStore(sqlite_engine, workspace_fingerprint=WORKSPACE, now=SECOND)
    run_id = worn(store)
    event.listen(sqlite_engine, "connect", lambda raw, _record: raw.execute("PRAGMA busy_timeout = 100"))
    sqlite_engine.dispose()
    holder = sqlite3.connect(str(sqlite_engine.url.database), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(RunBusy) as caught:
            store.resume(run_id, request_id="request-9")
        assert (caught.value.code, caught.value.retryable) == ("run.busy", True)
        assert store.get(run_id)["state"]["status"] == "attention"
    finally:
        holder.close()


def test_capacities_over_the_store(engine: Engine, store: RunStore) -> None:
    """Entry 2048 of each kind is accepted and the next refused; replays work when full; the two do not share room."""
    run_id = worn(store)
    record = parse_strict(document_of(engine, run_id), max_bytes=2**21)
    state = record["state"]
    filler = [f"{number:064x}" for number in range(2048)]
    state["processed_requests"] += [
        {"fingerprint": one, "operation": "resume", "step_id": None, "parameter": None} for one in filler[: 2047 - 3]
    ]
    record["record_digest"] = record_digest(record)
    put(engine, run_id, document=canonical_bytes(record), record_digest=record["record_digest"])
    store.resume(run_id, request_id="request-last")
    full = document_of(engine, run_id)
    for refusal in (
        lambda: store.resume(run_id, request_id="request-more"),
        lambda: store.reconcile_step(
            run_id, "publish", request_id="request-more", outcome="unresolved", confirmation="RECONCILE"
        ),
    ):
        with pytest.raises(RunConflict, match="2048"):
            refusal()
    assert store.resume(run_id, request_id="request-last") == store.resume(run_id, request_id="request-2")
    assert document_of(engine, run_id) == full


def test_a_plan_of_most_steps_is_listed_and_viewed(store: RunStore) -> None:
    """512 steps with the longest ids are one run, each with its order."""
    steps = [step(f"{number:04d}" + "x" * 156) for number in range(512)]
    view = store.create(input_snapshot=software_input(), plan_snapshot=software_plan(dry_run_steps=steps))
    assert [one["order"] for one in view["state"]["steps"]] == list(range(1, 513))
    assert [one["available"] for one in view["state"]["steps"]] == [True] + [False] * 511
