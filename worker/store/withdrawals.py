"""Withdrawals: the transaction that applies one, and the rows that keep it whether or not its event is known.

A withdrawal that overtakes its event is kept unapplied; `intakes` applies it when the event arrives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection, select, update

from worker.domain.errors import Invalid
from worker.domain.signature import PublicKey
from worker.domain.turn import OUTCOME_UNKNOWN
from worker.store.deliveries import close_unsent
from worker.store.engine import clock
from worker.store.events import EventRow, find_event, mark_withdrawn
from worker.store.public_keys import keep_public_keys
from worker.store.revisions import WITHDRAWN, close_revisions
from worker.store.schema import deliveries, withdrawals
from worker.store.sources import lock_event_name, lock_source
from worker.store.submissions import WITHDRAWAL, accepted_event, insert_submission
from worker.store.upserts import insert_into

DELIVERY_WITHDRAWN = "withdrawn"


def keep_withdrawal(
    conn: Connection, *, event_id: str, site_id: str, document_sha256: str, is_applied: bool, now: float | None
) -> None:
    """Keep a withdrawal; of several for one event and site the first is kept, and applied at most once."""
    at = clock(conn, now)
    conn.execute(
        insert_into(conn, withdrawals)
        .values(
            event_id=event_id,
            site_id=site_id,
            document_sha256=document_sha256,
            received_at=at,
            applied_at=at if is_applied else None,
        )
        .on_conflict_do_nothing()
    )
    if is_applied:
        mark_applied(conn, event_id, site_id, now=now)


def mark_applied(conn: Connection, event_id: str, site_id: str, *, now: float | None) -> None:
    """Mark a kept withdrawal as applied to its event."""
    conn.execute(
        update(withdrawals)
        .where(withdrawals.c.event_id == event_id, withdrawals.c.site_id == site_id, withdrawals.c.applied_at.is_(None))
        .values(applied_at=clock(conn, now))
    )


@dataclass(frozen=True, kw_only=True)
class Retraction:
    """A verified withdrawal on its way in."""

    document_sha256: str
    body: str = field(repr=False)
    event_id: str
    site_id: str
    key: PublicKey


def take_back(conn: Connection, retraction: Retraction, *, now: float | None) -> None:
    """Withdraw an unpublished event, or keep the withdrawal for an event that is still to come; repeats do nothing.

    Raises `Invalid` (and the transaction must then be undone): `withdrawal.published`, `withdrawal.in_flight` while a
    delivery is leased or in doubt, `withdrawal.site_mismatch` for another site's event. Safe to run concurrently with
    itself, with intake and with the delivery's claim.
    """
    if accepted_event(conn, retraction.document_sha256, kind=WITHDRAWAL) is not None:
        return
    event = _locked_event(conn, retraction.event_id, now=now)
    if event is not None:
        _check(conn, event, retraction.site_id)
        mark_withdrawn(conn, event.event_id, now=now)
        close_revisions(conn, [event.event_id], WITHDRAWN, now=now)
        close_unsent(conn, [event.event_id], DELIVERY_WITHDRAWN, now=now)
    keep_withdrawal(
        conn,
        event_id=retraction.event_id,
        site_id=retraction.site_id,
        document_sha256=retraction.document_sha256,
        is_applied=event is not None,
        now=now,
    )
    insert_submission(
        conn,
        document_sha256=retraction.document_sha256,
        kind=WITHDRAWAL,
        site_id=retraction.site_id,
        event_id=retraction.event_id,
        kid=retraction.key.kid,
        body=retraction.body,
        now=now,
    )
    keep_public_keys(conn, [retraction.key], now=now)


def _locked_event(conn: Connection, event_id: str, *, now: float | None) -> EventRow | None:
    """Return the event as it stands under its source's lock, or None under the lock of its name.

    An event that appears between the two looks is locked in the other order than intake does; the database then tells
    one of the two to begin again.
    """
    event = find_event(conn, event_id)
    if event is None:
        lock_event_name(conn, event_id)
        event = find_event(conn, event_id)
    if event is None:
        return None
    lock_source(conn, event.site_id, event.source_id, event_id, now=now)
    return find_event(conn, event_id)


def _check(conn: Connection, event: EventRow, site_id: str) -> None:
    if event.site_id != site_id:
        raise Invalid("withdrawal.site_mismatch", "the event belongs to another site", path="site_id")
    sent = conn.execute(
        select(deliveries.c.status, deliveries.c.in_doubt, deliveries.c.last_error_code).where(
            deliveries.c.event_id == event.event_id
        )
    ).all()
    if event.state == "delivered" or any(row.status == "succeeded" for row in sent):
        raise Invalid("withdrawal.published", "the event is published; send a newer change instead", path="event_id")
    if any(row.status == "leased" or row.in_doubt or row.last_error_code == OUTCOME_UNKNOWN for row in sent):
        raise Invalid(
            "withdrawal.in_flight",
            "the delivery is on its way or in doubt; send the withdrawal again once its outcome is known",
            path="event_id",
        )
