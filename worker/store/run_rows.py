"""One release run as a row: read under its lock and wholly re-validated, changed as a copy, written back.

What `RunStore` and the fleet's own commands share, so that either does all it does in the caller's one transaction. The
rules are `domain.run`'s; nothing here commits.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, LargeBinary, Row, cast, insert, select, type_coerce, update
from sqlalchemy.types import NullType

from worker.domain.errors import RunBusy, RunCorrupt, RunNotFound, RunWorkspaceMismatch, Unavailable
from worker.domain.run_plan import RUN_ID, matches
from worker.domain.run_record import decode_record, encode_record
from worker.store.engine import is_sqlite, read_clock, writing
from worker.store.private_files import check_private_database
from worker.store.schema import release_runs

Json = dict[str, Any]
Change = Callable[[Json, str], Json | None]  # the record and the current second in, the changed copy or None out
T = TypeVar("T")


def insert_run(conn: Connection, record: Json) -> None:
    """Insert a new run; raise `RunConflict` where it is too large, `IntegrityError` where its id exists."""
    document = encode_record(record)
    conn.execute(insert(release_runs).values(run_id=record["run_id"], document=document, **_columns(record)))


def read_run(conn: Connection, run_id: object, *, workspace: str | None, lock: bool) -> Json:
    """Return a run's record, wholly validated, its row locked if that is asked for.

    Raises `RunNotFound` for a malformed or unknown id, `RunCorrupt` for whatever is damaged, and only then
    `RunWorkspaceMismatch` for a run of another workspace (not asked where `workspace` is None).
    """
    if not matches(RUN_ID, run_id):
        raise RunNotFound
    query = select(*_stored(conn)).where(release_runs.c.run_id == run_id)
    row: Row[Any] | None = conn.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise RunNotFound
    record = decode_record(row.document, run_id=str(run_id))
    digest = row.record_digest
    if (digest if isinstance(digest, str) else bytes(digest or b"").decode(errors="replace")) != record[
        "record_digest"
    ]:
        raise RunCorrupt
    if workspace is not None and record["immutable"]["input"]["workspace_fingerprint"] != workspace:
        raise RunWorkspaceMismatch
    return record


def change_run(
    conn: Connection, run_id: object, change: Change, *, workspace: str, now: float | None
) -> tuple[Json, bool]:
    """Lock, read, re-validate, change a copy, re-validate, write; return the record and whether it was changed."""
    record = read_run(conn, run_id, workspace=workspace, lock=True)
    changed = change(record, second(conn, now))
    if changed is None:
        return record, False
    document = encode_record(changed)
    conn.execute(
        update(release_runs).where(release_runs.c.run_id == run_id).values(document=document, **_columns(changed))
    )
    return changed, True


def writing_run(engine: Engine, work: Callable[[Connection], T]) -> T:
    """Run `work` in one transaction, tried once; raise `RunBusy` where a lock was not to be had within ten seconds."""
    check_files(engine)
    try:
        return writing(engine, work, most_tries=1)
    except Unavailable as fault:
        if fault.code == "database.busy":
            raise RunBusy from None
        raise


def check_files(engine: Engine) -> None:
    """Refuse an SQLite file, as `RunCorrupt`, that others could read or exchange by now."""
    if is_sqlite(engine) and engine.url.database not in {None, "", ":memory:"}:
        check_private_database(Path(str(engine.url.database)))


def second(conn: Connection, now: float | None) -> str:
    """Return the time, by the database's clock where none is given, as records hold it: UTC to the second."""
    return timestamp(read_clock(conn, now))


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch as records hold a time."""
    return datetime.fromtimestamp(int(seconds), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _stored(conn: Connection) -> list[ColumnElement[Any]]:
    """Return document and digest raw: a column's own type would stumble over damage before the checks can refuse it."""
    columns = (release_runs.c.document, release_runs.c.record_digest)
    if is_sqlite(conn):  # a column there may hold anything, texts that are no UTF-8 among it
        return [type_coerce(cast(column, LargeBinary), NullType()).label(column.name) for column in columns]
    return [type_coerce(column, NullType()).label(column.name) for column in columns]


def _columns(record: Json) -> Json:
    return {"record_digest": record["record_digest"], "status": record["state"]["status"]}
