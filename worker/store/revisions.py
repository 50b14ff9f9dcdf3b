"""Evidence rows as intake opens, closes and retires them; leases and attempts are the business of `leases`.

A row is one revision of the question about one result for one event. A row of an event that ended (superseded,
withdrawn) must not be claimed any more, and a claim joins nothing: so the rows that are due are failed here with a
stable code, in the transaction that ends the event. A leased row is left to its holder, whose settle still counts; if
it falls back to waiting instead, `close_ended` fails it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import (
    Connection,
    Dialect,
    Integer,
    String,
    Text,
    case,
    delete,
    exists,
    insert,
    literal_column,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from worker.domain.canonical import canonical_text
from worker.store.engine import Moment, clock, json_rows, row_source
from worker.store.prepared import prepared
from worker.store.schema import DUE, deliveries, events, evidence, evidence_history
from worker.store.upserts import insert_into

SUPERSEDED = "evidence.superseded"
WITHDRAWN = "evidence.withdrawn"
DELIVERED = "evidence.delivered"


@dataclass(frozen=True, kw_only=True)
class Revision:
    """A new evidence row: its binding, its limits, and whether a standing approval answers it at once."""

    request_id: str
    event_id: str
    plan_id: str
    job_id: str
    result_sha256: str
    evidence_revision: str
    site_id: str
    provider: str
    max_attempts: int
    status: str = "pending"  # or `succeeded`, where an approval stands


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A row that was really inserted."""

    event_id: str
    job_id: str
    status: str


def open_revisions(conn: Connection, rows: Sequence[Revision], *, now: float | None) -> tuple[Opened, ...]:
    """Insert evidence rows, due now, and return those inserted; one statement for any number of rows.

    A (event, job, result) that has a row already gets no second one, and an event that a delivery speaks for gets none:
    both need an explicit renewal. The caller wakes a collector after its commit, so the rows count as woken.
    """
    statement, moment = _opening(conn, now)
    opened = conn.execute(statement, {"revisions": json_rows([asdict(row) for row in rows]), **moment})
    return tuple(Opened(event_id=row.event_id, job_id=row.job_id, status=row.status) for row in opened)


@prepared
def _opening(bind: Dialect, now: Moment) -> ReturningInsert[Any]:
    at = clock(bind, now)
    kinds = {name: Integer if name == "max_attempts" else String for name in Revision.__dataclass_fields__}
    source = row_source(bind, "revisions", kinds, "revisions")
    is_asked = exists().where(
        evidence.c.job_id == source.c.job_id,
        evidence.c.event_id == source.c.event_id,
        evidence.c.result_sha256 == source.c.result_sha256,
    )
    is_delivered = exists().where(deliveries.c.event_id == source.c.event_id, deliveries.c.status != "failed")
    rows = select(*(source.c[name] for name in kinds), literal_column("0"), at, at, at, at)
    return (
        insert_into(bind, evidence)
        .from_select(
            [*kinds, "attempts", "next_attempt_at", "created_at", "updated_at", "last_woken_at"],
            rows.where(~is_asked, ~is_delivered).order_by(source.c.request_id),
        )
        .on_conflict_do_nothing()
        .returning(evidence.c.event_id, evidence.c.job_id, evidence.c.status)
    )


def close_revisions(conn: Connection, event_ids: Iterable[str], code: str, *, now: float | None) -> int:
    """Fail the due rows of ended events with a code and return how many; leased rows are left alone.

    No attempt ends here, so no setback is written.
    """
    at = clock(conn, now)
    ended = row_source(conn, "ended", {"event_id": String}, "ended")
    closed = conn.execute(
        update(evidence)
        .where(evidence.c.event_id.in_(select(ended.c.event_id)), text(DUE))
        .values(status="failed", last_error_code=code, next_attempt_at=at, updated_at=at),
        {"ended": json_rows([{"event_id": event_id} for event_id in event_ids])},
    )
    return closed.rowcount


def close_ended(conn: Connection, request_ids: Iterable[str], *, now: float | None) -> tuple[str, ...]:
    """Fail those rows that fell back to waiting though their event had ended meanwhile; return their ids.

    For whoever just moved leased rows (a failed attempt, a release, an expired lease), in the same transaction: a row
    that was leased when its event ended must not be claimed again.
    """
    at = clock(conn, now)
    moved = row_source(conn, "moved", {"request_id": String}, "moved")
    code = case(
        (events.c.state == "withdrawn", WITHDRAWN), (events.c.state == "delivered", DELIVERED), else_=SUPERSEDED
    )
    closed = conn.execute(
        update(evidence)
        .where(
            evidence.c.request_id.in_(select(moved.c.request_id)),
            text(DUE),
            events.c.event_id == evidence.c.event_id,
            events.c.state.in_(("superseded", "withdrawn", "delivered")),
        )
        .values(status="failed", last_error_code=code, next_attempt_at=at, updated_at=at)
        .returning(evidence.c.request_id),
        {"moved": json_rows([{"request_id": request_id} for request_id in request_ids])},
    )
    return tuple(sorted(closed.scalars()))


def retire_revisions(conn: Connection, replaced: dict[str, str], *, now: float | None) -> int:
    """Move every evidence row of replaced results to the history and return how many.

    `replaced` gives the old result hash by job id. Leased rows go too: whoever holds one settles nothing. Needs the
    jobs' locks, which every settle takes first.
    """
    source = row_source(conn, "old", {"job_id": String, "result_sha256": String}, "old")
    of_old = tuple_(evidence.c.job_id, evidence.c.result_sha256).in_(select(source.c.job_id, source.c.result_sha256))
    rows = conn.execute(
        delete(evidence).where(of_old).returning(*evidence.c),
        {"old": json_rows([{"job_id": job_id, "result_sha256": old} for job_id, old in sorted(replaced.items())])},
    ).mappings()
    moved = [
        {"request_id": row["request_id"], "job_id": row["job_id"], "row_json": canonical_text(dict(row))}
        for row in rows
    ]
    if moved:
        history = row_source(conn, "moved", {"request_id": String, "job_id": String, "row_json": Text}, "moved")
        conn.execute(
            insert(evidence_history).from_select(
                ["request_id", "job_id", "moved_at", "row_json"],
                select(history.c.request_id, history.c.job_id, clock(conn, now), history.c.row_json),
            ),
            {"moved": json_rows(moved)},
        )
    return len(moved)
