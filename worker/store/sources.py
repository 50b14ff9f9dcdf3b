"""One source text of a site: the lock that orders everything about it, and what intake must know under that lock.

Intake, withdrawal and the delivery's claim take the lock of the source's row, so one of them at a time decides about
its events. Nothing here changes anything but that row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    Dialect,
    Select,
    String,
    Text,
    and_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal_column,
    null,
    select,
    union_all,
)
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.sql.selectable import FromClause

from worker.store.engine import Moment, clock, is_sqlite, json_rows, row_source
from worker.store.events import EVENT_COLUMNS, EventRow
from worker.store.prepared import prepared
from worker.store.schema import events, evidence, evidence_history, jobs, results, sources, submissions, withdrawals
from worker.store.upserts import Insertion, insert_into


@dataclass(frozen=True, kw_only=True)
class KnownJob:
    """A job that existed before this submission, as it stood under the source lock.

    `revisions` counts every evidence row the job ever had, history included, for the result that is declared now, else
    for its current one. `document` is the current result, and None where there is none or where the event asked about
    has evidence rows for it already.
    """

    job_id: str
    current_result_sha256: str | None
    revisions: int
    document: str | None = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Intake:
    """What intake must know before it writes, read under the source lock.

    `same_event` has the submission's event id, `same_sequence` its place in the source, `newest` the highest sequence
    of the source. `is_withdrawn` tells that a withdrawal by the same site overtook the event.
    """

    is_repeat: bool
    is_withdrawn: bool
    same_event: EventRow | None
    same_sequence: EventRow | None
    newest: EventRow | None
    jobs: dict[str, KnownJob]


def lock_source(conn: Connection, site_id: str, source_id: str, event_id: str, *, now: float | None) -> None:
    """Take the lock on a source, making its row first if need be, and the lock on the event's name.

    The source's row orders intake, withdrawal and the delivery's claim. The name is locked because two sources may
    claim one event id, and because a withdrawal may come before the event whose source it does not know.
    """
    statement, moment = _locking(conn, now)
    names = {"site_id": site_id, "source_id": source_id, "event_id": event_id}
    if is_sqlite(conn):  # BEGIN IMMEDIATE locked everything
        del names["event_id"]
    conn.execute(statement, {**names, **moment})


@prepared
def _locking(bind: Dialect, now: Moment) -> Insertion | ReturningInsert[Any]:
    statement = insert_into(bind, sources).values(
        site_id=bindparam("site_id", type_=String),
        source_id=bindparam("source_id", type_=String),
        created_at=clock(bind, now),
    )
    locking = statement.on_conflict_do_update(
        index_elements=[sources.c.site_id, sources.c.source_id], set_={"source_id": statement.excluded.source_id}
    )
    return locking if is_sqlite(bind) else locking.returning(_name_lock())


def lock_event_name(conn: Connection, event_id: str) -> None:
    """Take the lock on the name of an event that is not known (yet)."""
    if not is_sqlite(conn):
        conn.execute(select(_name_lock()), {"event_id": event_id})


def read_intake(
    conn: Connection,
    *,
    document_sha256: str,
    event_id: str,
    site_id: str,
    source_id: str,
    source_sequence: int,
    jobs: Mapping[str, str | None],
) -> Intake:
    """Return what is known of a submission's document, event, source and jobs, in one statement.

    `jobs` gives the hash of the result that the submission declares for each job of its plan, or None.
    """
    parameters = {
        "document_sha256": document_sha256,
        "event_id": event_id,
        "site_id": site_id,
        "source_id": source_id,
        "source_sequence": source_sequence,
        "wanted": json_rows([{"job_id": job_id, "result_sha256": jobs[job_id]} for job_id in sorted(jobs)]),
    }
    query, _ = _intake_query(conn, None)
    rows = conn.execute(query, parameters).mappings().all()
    found = {row["kind"]: row for row in rows if row["kind"] != "job"}

    def event(kind: str) -> EventRow | None:
        return EventRow(**{name: found[kind][name] for name in EVENT_COLUMNS}) if kind in found else None

    return Intake(
        is_repeat="repeat" in found,
        is_withdrawn="withdrawal" in found,
        same_event=event("event"),
        same_sequence=event("sequence"),
        newest=event("newest"),
        jobs={
            row["event_id"]: KnownJob(
                job_id=row["event_id"],
                current_result_sha256=row["event_sha256"],
                revisions=row["source_sequence"],
                document=row["document"],
            )
            for row in rows
            if row["kind"] == "job"
        },
    )


def _name_lock() -> ColumnElement[Any]:
    """PostgreSQL only: a lock on a name without a row, held until the transaction ends."""
    return func.pg_advisory_xact_lock(func.hashtextextended(bindparam("event_id", type_=String), 0))


@prepared
def _intake_query(bind: Dialect, _now: Moment) -> CompoundSelect[Any]:
    """Everything `read_intake` asks, as rows of one shape; a job's id, count and hash stand in an event's columns."""
    of_source = and_(
        events.c.site_id == bindparam("site_id", type_=String),
        events.c.source_id == bindparam("source_id", type_=String),
    )
    newest = select(events).where(of_source).order_by(events.c.source_sequence.desc()).limit(1).subquery("newest")
    wanted = row_source(bind, "wanted", {"job_id": String, "result_sha256": String}, "wanted")
    event_id = bindparam("event_id", type_=String)
    return union_all(
        _event_rows("event", events).where(events.c.event_id == event_id),
        _event_rows("sequence", events).where(
            of_source, events.c.source_sequence == bindparam("source_sequence", type_=BigInteger)
        ),
        _event_rows("newest", newest),
        _marker("repeat", submissions).where(
            submissions.c.document_sha256 == bindparam("document_sha256", type_=String)
        ),
        _marker("withdrawal", withdrawals).where(
            withdrawals.c.event_id == event_id, withdrawals.c.site_id == bindparam("site_id", type_=String)
        ),
        _job_rows(wanted, event_id),
    )


def _event_rows(kind: str, source: FromClause) -> Select[Any]:
    columns = (source.c[name].label(name) for name in EVENT_COLUMNS)
    return select(literal_column(f"'{kind}'").label("kind"), *columns, cast(null(), Text).label("document"))


def _marker(kind: str, table: FromClause) -> Select[Any]:
    nothing = cast(null(), String)
    return select(
        literal_column(f"'{kind}'"),
        table.c.event_id,
        table.c.site_id,
        nothing,
        cast(null(), BigInteger),
        nothing,
        nothing,
        nothing,
        cast(null(), Text),
    )


def _job_rows(wanted: FromClause, event_id: ColumnElement[str]) -> Select[Any]:
    nothing = cast(null(), String)
    asked = func.coalesce(wanted.c.result_sha256, jobs.c.current_result_sha256)
    of_job = evidence.c.job_id == jobs.c.job_id
    rows = select(func.count()).select_from(evidence).where(of_job, evidence.c.result_sha256 == asked)
    # The hash of a result stands in a history row's JSON once, as its own member, and nowhere else.
    retired = (
        select(func.count())
        .select_from(evidence_history)
        .where(evidence_history.c.job_id == jobs.c.job_id, evidence_history.c.row_json.contains(asked))
    )
    is_asked = (
        exists()
        .where(of_job, evidence.c.result_sha256 == jobs.c.current_result_sha256, evidence.c.event_id == event_id)
        .correlate(jobs)
    )
    revisions = rows.correlate(jobs, wanted).scalar_subquery() + retired.correlate(jobs, wanted).scalar_subquery()
    return (
        select(
            literal_column("'job'"),
            jobs.c.job_id,
            jobs.c.site_id,
            nothing,
            revisions,
            nothing,
            jobs.c.current_result_sha256,
            nothing,
            case((is_asked, cast(null(), Text)), else_=results.c.document),
        )
        .select_from(jobs)
        .join(wanted, wanted.c.job_id == jobs.c.job_id)
        .outerjoin(
            results, and_(results.c.job_id == jobs.c.job_id, results.c.result_sha256 == jobs.c.current_result_sha256)
        )
    )
