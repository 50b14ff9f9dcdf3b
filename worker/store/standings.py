"""A delivery as it stands under the lock of its source, with everything that decides what may be done with it.

One read: the row, its event, older deliveries of the source, the approvals it names, its permit, pauses, and the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Dialect, Float, RowMapping, Select, String, and_, bindparam, exists, select, text

from worker.domain.attempt import LEASED
from worker.domain.breaker import CMS
from worker.domain.errors import Blocked
from worker.domain.identifier import is_time
from worker.domain.policy import Limits
from worker.domain.quarantine import Quarantine
from worker.domain.turn import APPROVAL_EXPIRED, Promise, Standing
from worker.store.breakers import is_troubled
from worker.store.coverage import NAMED, current_approvals, named_rows
from worker.store.engine import Moment, clock, is_sqlite
from worker.store.leases import DELIVERIES
from worker.store.pauses import is_paused
from worker.store.permits import has_permit
from worker.store.prepared import prepared
from worker.store.schema import UNSETTLED, deliveries, events, sources

OLDER = deliveries.alias("older")
OLDER_UNSETTLED = text(
    UNSETTLED.replace("status", "older.status")
    .replace("in_doubt", "older.in_doubt")
    .replace("last_error_code", "older.last_error_code")
)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a worker brings to the lock: which delivery, on what conditions, and what it read of the approvals."""

    delivery_id: str
    site_id: str
    source_id: str
    approval_ids: tuple[str, ...]
    approvals_code: str | None  # why the stored approvals do not verify, or None
    worker_id: str
    lease_seconds: float
    send_seconds: float
    is_guided: bool
    promise: Promise
    jitter: float
    quarantine: Quarantine = field(default_factory=Quarantine)
    limits: Limits = field(default_factory=Limits)  # on calls to the site's CMS
    gives_way: bool = True  # another delivery with fewer attempts tries a closed CMS first


def lock_source(conn: Connection, terms: Terms) -> None:
    """Take the lock on the delivery's source, which intake made and takes too."""
    if is_sqlite(conn):  # BEGIN IMMEDIATE locked everything
        return
    source = and_(sources.c.site_id == terms.site_id, sources.c.source_id == terms.source_id)
    conn.execute(select(sources.c.site_id).where(source).with_for_update())


def read_standing(conn: Connection, terms: Terms, *, now: float | None) -> RowMapping:
    """Return the locked row beside what decides about it: event, older deliveries, approvals, permit and time.

    Raises `cms.delivery.invalid` for a damaged row, which is left as it is.
    """
    statement, moment = _standing(conn, now)
    parameters = {
        NAMED: named_rows(terms.approval_ids),
        "wanted_id": terms.delivery_id,
        "send_seconds": terms.send_seconds,
        **moment,
    }
    row = DELIVERIES.check(conn.execute(statement, parameters).mappings().one())
    doubt_is_dated = is_time(row["sent_at"]) and is_time(row["doubt_since_at"])
    if (row["in_doubt"] and not doubt_is_dated) or (row["status"] == LEASED and not row["in_doubt"]):
        raise Blocked(DELIVERIES.invalid_code, "a stored delivery is damaged; restore it from a backup")
    return row


def standing_of(row: Mapping[str, Any], terms: Terms) -> Standing:
    """Return what the rules judge of a row that `read_standing` gave."""
    is_current = row["current_approvals"] == len(terms.approval_ids)
    return Standing(
        status=row["status"],
        code=row["last_error_code"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        next_attempt_at=row["next_attempt_at"],
        in_doubt=row["in_doubt"],
        event_state=row["event_state"],
        is_older_unsettled=bool(row["is_older_unsettled"]),
        is_permitted=not terms.is_guided or bool(row["has_permit"]),
        is_paused=bool(row["is_paused"]),
        approvals_code=terms.approvals_code or (None if is_current else APPROVAL_EXPIRED),
        now=row["now"],
    )


@prepared
def _standing(bind: Dialect, now: Moment) -> Select[Any]:
    at = clock(bind, now)
    older = exists().where(
        OLDER.c.site_id == deliveries.c.site_id,
        OLDER.c.source_id == deliveries.c.source_id,
        OLDER.c.source_sequence < deliveries.c.source_sequence,
        OLDER_UNSETTLED,
    )
    current = current_approvals(bind, at + bindparam("send_seconds", type_=Float))
    columns = [column for column in deliveries.c if column.name not in {"payload", "signature"}]
    return (
        select(
            *columns,
            events.c.state.label("event_state"),
            older.correlate(deliveries).label("is_older_unsettled"),
            current.label("current_approvals"),
            has_permit(at).label("has_permit"),
            is_paused(deliveries.c.site_id, None, at).label("is_paused"),
            is_troubled(CMS, deliveries.c.site_id).label("is_cms_troubled"),
            at.label("now"),
        )
        .select_from(deliveries.join(events, events.c.event_id == deliveries.c.event_id))
        .where(deliveries.c.delivery_id == bindparam("wanted_id", type_=String))
        .with_for_update(of=deliveries)
    )
