"""The signed outbox as rows: found, inserted once, closed unsent, kept as history. What is stored here is what is sent.

An event has at most one open or acknowledged delivery; those that failed stay as rows. Claims, settles and expiry of a
delivery are in `sends`; the rules of what may follow are in `domain.turn`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Dialect,
    Integer,
    String,
    bindparam,
    case,
    delete,
    exists,
    false,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningInsert

from worker.domain.delivery import TAMPERED, reverify_delivery
from worker.domain.errors import Blocked
from worker.domain.key import TrustSet
from worker.domain.turn import OUTCOME_UNKNOWN, RENEWED, UNKNOWN_CODES
from worker.store.conditions import is_being_renewed
from worker.store.coverage import NAMED, current_approvals, named_rows
from worker.store.engine import Moment, clock, json_rows, row_source
from worker.store.prepared import prepared
from worker.store.schema import OPEN_OR_ACKNOWLEDGED, deliveries, delivery_history, events
from worker.store.upserts import insert_into

# What a column repeats from the signed payload; a difference is tampering.
BOUND = ("event_id", "site_id", "source_id", "source_sequence", "plan_id")


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One row of `deliveries` without its lease; field names are the column names. Unverified."""

    delivery_id: str
    event_id: str
    site_id: str
    source_id: str
    source_sequence: int
    plan_id: str
    payload: str = field(repr=False)  # canonical publication
    payload_sha256: str
    signature: str = field(repr=False)
    kid: str
    status: str
    last_error_code: str | None
    in_doubt: bool
    sent_at: float | None
    created_at: float

    @property
    def is_outcome_unknown(self) -> bool:
        """Tell whether it failed without anybody knowing what the CMS made of it."""
        return self.status == "failed" and self.last_error_code in UNKNOWN_CODES


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A signed and verified publication of an event, ready to be stored."""

    delivery_id: str
    event_id: str
    site_id: str
    source_id: str
    source_sequence: int
    plan_id: str
    payload: str = field(repr=False)
    payload_sha256: str
    signature: str = field(repr=False)
    kid: str
    max_attempts: int


COLUMNS = tuple(deliveries.c[one.name] for one in fields(Delivery))


def is_spoken_for() -> ColumnElement[bool]:
    """Return the condition on `deliveries` that a row is open or acknowledged, in the very words of the index."""
    return literal_column(f"({OPEN_OR_ACKNOWLEDGED.replace('status', 'deliveries.status')})", Boolean)


def find_delivery(conn: Connection, event_id: str) -> Delivery | None:
    """Return the delivery that speaks for an event: the open or acknowledged one, else the newest that failed."""
    failed_last = case((deliveries.c.status == "failed", 1), else_=0)
    statement = (
        select(*COLUMNS)
        .where(deliveries.c.event_id == event_id)
        .order_by(failed_last, deliveries.c.created_at.desc(), deliveries.c.delivery_id)
        .limit(1)
    )
    row = conn.execute(statement).mappings().one_or_none()
    return None if row is None else Delivery(**row)


def get_delivery(conn: Connection, delivery_id: str) -> Delivery | None:
    """Return a delivery by its id, or None."""
    row = conn.execute(select(*COLUMNS).where(deliveries.c.delivery_id == delivery_id)).mappings().one_or_none()
    return None if row is None else Delivery(**row)


def verify_delivery(stored: Delivery, trust: TrustSet) -> Mapping[str, Any]:
    """Return the signed publication in a row, or raise `cms.delivery.tampered`. Expiry is the caller's question."""
    document = reverify_delivery(
        stored.payload,
        stored.signature,
        trust,
        delivery_id=stored.delivery_id,
        payload_sha256=stored.payload_sha256,
        signed_at=stored.created_at,
    )
    if any(document[name] != getattr(stored, name) for name in BOUND):
        raise Blocked(TAMPERED, "the stored delivery was changed: its columns do not repeat its payload")
    return document


def insert_delivery(conn: Connection, delivery: Prepared, approval_ids: Sequence[str], *, now: float | None) -> bool:
    """Insert a prepared delivery, pending and due now, where that is allowed; false and nothing written elsewhere.

    Needs the event row's lock. The approvals must all stand and be for current results, and no earlier delivery of the
    event be in doubt or of unknown outcome; the event must have no open or acknowledged delivery, and these very bytes
    must not have failed before. The preparer wakes the publisher after its commit, so the row counts as woken.
    """
    statement, moment = _insertion(conn, now)
    parameters = {f"given_{one.name}": getattr(delivery, one.name) for one in fields(Prepared)}
    parameters |= {NAMED: named_rows(approval_ids), "wanted_approvals": len(approval_ids), **moment}
    return conn.execute(statement, parameters).one_or_none() is not None


def replace_renewed(
    conn: Connection, old_id: str, successor: Prepared, approval_ids: Sequence[str], *, now: float | None
) -> bool:
    """Close an unsent delivery that is being renewed and insert its successor; false where it may not give way now.

    Needs the event row's lock. Raises `cms.delivery.renewal_lost` (retryable) where the successor may not be inserted
    after all; the transaction must then be undone, so that the old one goes on.
    """
    at = clock(conn, now)
    closed = conn.execute(
        update(deliveries)
        .where(deliveries.c.delivery_id == old_id, is_being_renewed())
        .values(status="failed", last_error_code=RENEWED, next_attempt_at=at, updated_at=at)
    )
    if closed.rowcount != 1:
        return False
    if not insert_delivery(conn, successor, approval_ids, now=now):
        raise Blocked("cms.delivery.renewal_lost", "an approval ended meanwhile; the sweep tries again", retryable=True)
    return True


def end_renewal(conn: Connection, delivery_id: str) -> None:
    """Let a delivery stay whose renewal brought nothing new."""
    conn.execute(update(deliveries).where(deliveries.c.delivery_id == delivery_id).values(renewal_asked_at=None))


@prepared
def _insertion(bind: Dialect, now: Moment) -> ReturningInsert[Any]:
    at = clock(bind, now)
    values: dict[str, ColumnElement[Any]] = {
        **{one.name: bindparam(f"given_{one.name}", type_=deliveries.c[one.name].type) for one in fields(Prepared)},
        "status": literal_column("'pending'"),
        "attempts": literal_column("0"),
        "next_attempt_at": at,
        "created_at": at,
        "updated_at": at,
        "in_doubt": false(),
        "lookups": literal_column("0"),
        "last_woken_at": at,
    }
    is_unknown = exists().where(
        deliveries.c.event_id == values["event_id"],
        or_(deliveries.c.in_doubt.is_(True), deliveries.c.last_error_code == OUTCOME_UNKNOWN),
    )
    allowed = select(*(value.label(name) for name, value in values.items())).where(
        current_approvals(bind, at) == bindparam("wanted_approvals", type_=Integer), ~is_unknown
    )
    return (
        insert_into(bind, deliveries)
        .from_select([*values], allowed)
        .on_conflict_do_nothing()
        .returning(deliveries.c.delivery_id)
    )


def close_unsent(conn: Connection, event_ids: Iterable[str], code: str, *, now: float | None) -> tuple[str, ...]:
    """Fail every delivery of these events that is pending, or waits and is not in doubt; return the events' ids.

    A leased or in-doubt one keeps its row. Needs the source locks, or the event rows' locks.
    """
    named = row_source(conn, "named", {"event_id": String}, "named")
    at = clock(conn, now)
    closed = (
        update(deliveries)
        .where(
            deliveries.c.event_id.in_(select(named.c.event_id)),
            deliveries.c.status.in_(("pending", "retry_wait")),
            deliveries.c.in_doubt.is_(False),
        )
        .values(status="failed", last_error_code=code, next_attempt_at=at, updated_at=at)
        .returning(deliveries.c.event_id)
    )
    return tuple(sorted(conn.execute(closed, {"named": _named(event_ids)}).scalars()))


def close_superseded(conn: Connection, event_ids: Iterable[str], *, now: float | None) -> tuple[str, ...]:
    """Fail the unsent deliveries of superseded events as `superseded`; return the ids of the events it closed."""
    return close_unsent(conn, event_ids, "superseded", now=now)


def retire_failed(conn: Connection, event_id: str, *, now: float | None) -> tuple[str, ...]:
    """Move the failed deliveries of an event to history, so that the same bytes may be prepared anew; return their ids.

    Nothing moves unless every one of them certainly is not live and the event is open. Needs the event row's lock.
    """
    live = exists().where(
        deliveries.c.event_id == event_id,
        or_(
            deliveries.c.status != "failed",
            deliveries.c.in_doubt.is_(True),
            deliveries.c.last_error_code == OUTCOME_UNKNOWN,
        ),
    )
    is_open = exists().where(events.c.event_id == event_id, events.c.state == "open")
    kept = [column for column in deliveries.c if column.name != "payload"]  # the successor holds the same payload
    rows = conn.execute(
        select(*kept).where(deliveries.c.event_id == event_id, ~live, is_open).order_by(deliveries.c.delivery_id)
    ).mappings()
    moved = [dict(row) for row in rows]
    for row in moved:
        conn.execute(
            delivery_history.insert().values(
                delivery_id=row["delivery_id"],
                event_id=event_id,
                moved_at=clock(conn, now),
                row_json=json.dumps(row, sort_keys=True),
            )
        )
        conn.execute(
            delete(deliveries).where(
                deliveries.c.delivery_id == row["delivery_id"],
                deliveries.c.status == "failed",
                deliveries.c.in_doubt.is_(False),
            )
        )
    return tuple(row["delivery_id"] for row in moved)


def lock_event(conn: Connection, event_id: str) -> str | None:
    """Lock an event's row and return its state, or None where there is no such event."""
    state: str | None = conn.execute(
        select(events.c.state).where(events.c.event_id == event_id).with_for_update()
    ).scalar_one_or_none()
    return state


def _named(event_ids: Iterable[str]) -> str:
    return json_rows([{"event_id": event_id} for event_id in sorted(set(event_ids))])
