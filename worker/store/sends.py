"""The leases of the outbox: the one place where a delivery is claimed to be asked about or sent, and settled.

Every claim stands under the lock of its source, which intake takes too: so a newer sequence either comes first and
closes the delivery, or waits for its answer. The claim that is about to send sets `in_doubt` and `sent_at` in the same
UPDATE. What follows from what is read here is decided in `domain.turn`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, RowMapping, case, literal, update

from worker.domain.attempt import FAILED, LEASED, RETRY_WAIT, SUCCEEDED
from worker.domain.breaker import Permit
from worker.domain.errors import Blocked
from worker.domain.quarantine import DELIVERY_QUARANTINED
from worker.domain.turn import (
    RECONCILED_ABSENT,
    UNKNOWN_CODES,
    Ask,
    Asked,
    Close,
    Over,
    Send,
    Settlement,
    Turn,
    Wait,
    after_absent,
    next_turn,
)
from worker.store.breakers import Told, tell
from worker.store.deliveries import Delivery
from worker.store.delivery_answers import Word, append_word
from worker.store.engine import clock
from worker.store.leases import DELIVERIES, QUARANTINED
from worker.store.schema import deliveries, events
from worker.store.send_limits import count_call, find_room
from worker.store.send_probes import find_gate, grant_permit
from worker.store.setbacks import Ending
from worker.store.standings import Terms, lock_source, read_standing, standing_of


@dataclass(frozen=True, kw_only=True)
class SendLease:
    """A lease that this worker holds on a delivery, and what it was taken on."""

    delivery_id: str
    event_id: str
    owner: str
    token: str = field(repr=False)
    attempts: int
    max_attempts: int
    lookups: int
    was_in_doubt: bool
    sent_at: float
    doubt_since_at: float
    taken_at: float
    is_cms_troubled: bool = False  # an answer is news to its breaker
    permit: Permit | None = None  # it tries a CMS whose breaker is open

    def asked(self, send_seconds: float) -> Asked:
        """Return what a look-up under this lease is judged by."""
        return Asked(
            asked_at=self.taken_at,
            sent_at=self.sent_at,
            doubt_since_at=self.doubt_since_at,
            attempts=self.attempts,
            max_attempts=self.max_attempts,
            lookups=self.lookups,
            send_seconds=send_seconds,
        )


def take_turn(conn: Connection, terms: Terms, *, now: float | None) -> tuple[Turn, SendLease | None]:
    """Decide under the lock of the source what may be done with a delivery, and lease it where something may.

    Returns the turn, and the lease for `Ask` and `Send`; a `Close` has been carried out. A lease that ran out is
    taken away first. Raises `cms.delivery.invalid` for a damaged row, which is left as it is.
    """
    lock_source(conn, terms)
    row = read_standing(conn, terms, now=now)
    standing = dict(row)
    if row["status"] == LEASED:
        if row["lease_expires_at"] > row["now"]:
            return Wait(reason="leased"), None
        expired = DELIVERIES.expire_rows(conn, [row], now=now, bound=terms.quarantine)
        if expired.get(terms.delivery_id) == QUARANTINED:
            return Over(status=FAILED, code=DELIVERY_QUARANTINED), None
        standing |= {"status": RETRY_WAIT, "next_attempt_at": row["now"]}
    turn = next_turn(standing_of(standing, terms), terms.promise)
    if isinstance(turn, Close):
        _close(conn, terms.delivery_id, turn, now=now)
    if not isinstance(turn, Ask | Send):
        return turn, None
    full = find_room(conn, terms, now=now)
    if full is not None:
        return full, None
    gate: int | bool | Wait = True
    if row["is_cms_troubled"]:
        attempts = None if isinstance(turn, Ask) else row["attempts"]
        gate = find_gate(conn, terms, attempts=attempts, now=now)
    if isinstance(gate, Wait):
        return gate, None
    taken = _take(conn, terms, turn, now=now)
    count_call(conn, terms, now=now)
    permit = None if gate is True else grant_permit(conn, terms, taken, gate, now=now)
    lease = _lease(taken, was_in_doubt=row["in_doubt"])
    return turn, replace(lease, is_cms_troubled=row["is_cms_troubled"], permit=permit)


def send_again(
    conn: Connection, terms: Terms, lease: SendLease, word: Word, *, now: float | None, told: Iterable[Told] = ()
) -> SendLease | Settlement | None:
    """Go on from a signed absent under the same lease: every check again under the lock, then a further attempt.

    Returns the lease to send under, or how the delivery was settled instead, or None when the lease is lost; then
    nothing was written.
    """
    lock_source(conn, terms)
    row = read_standing(conn, terms, now=now)
    if (row["status"], row["lease_owner"], row["lease_token"]) != (LEASED, lease.owner, lease.token):
        return None
    follows = after_absent(standing_of({**row, "status": RETRY_WAIT, "in_doubt": False}, terms), jitter=terms.jitter)
    if isinstance(follows, Send) and row["lease_expires_at"] <= row["now"] + terms.send_seconds:
        follows = Settlement(status="retry_wait", code="cms.lease_too_short", in_doubt=False)
    if isinstance(follows, Settlement):
        return follows if settle(conn, lease, follows, word, now=now, told=told) else None
    at = clock(conn, now)
    taken = (
        conn.execute(
            update(deliveries)
            .where(
                deliveries.c.delivery_id == lease.delivery_id,
                deliveries.c.status == LEASED,
                deliveries.c.lease_owner == lease.owner,
                deliveries.c.lease_token == lease.token,
                deliveries.c.attempts < deliveries.c.max_attempts,
            )
            .values(attempts=deliveries.c.attempts + 1, in_doubt=True, sent_at=at, doubt_since_at=at, updated_at=at)
            .returning(deliveries)
        )
        .mappings()
        .one()  # the row is locked, and was just read as ours
    )
    count_call(conn, terms, now=now)
    append_word(conn, lease.delivery_id, word, now=now)
    tell(conn, told, now=now)
    return replace(_lease(taken, was_in_doubt=False), is_cms_troubled=lease.is_cms_troubled)


def settle(
    conn: Connection,
    lease: SendLease,
    settlement: Settlement,
    word: Word | None,
    *,
    now: float | None,
    told: Iterable[Told] = (),
) -> bool:
    """End a lease, append the verified answer and move the event, together; false when the lease was lost.

    A lost or expired lease changes nothing: the row stays in doubt, and the next look-up finds what was accepted.
    """
    at = clock(conn, now)
    ending = Ending(
        row_id=lease.delivery_id,
        owner=lease.owner,
        token=lease.token,
        code=settlement.code,
        is_retryable=settlement.status == RETRY_WAIT,
        retry_after_seconds=settlement.retry_after_seconds,
    )
    values: dict[str, Any] = {"in_doubt": settlement.in_doubt, "next_attempt_at": at + settlement.wait_seconds}
    if settlement.status == SUCCEEDED:
        moved: Iterable[str] = DELIVERIES.succeed(conn, [ending], now=now, values={**values, "acknowledged_at": at})
    elif settlement.is_attempt_returned:
        moved = DELIVERIES.release(conn, [ending], now=now, values=values)
    else:
        moved = DELIVERIES.fail(conn, [ending], now=now, values=values)
    if lease.delivery_id not in moved:
        return False
    if word is not None:
        append_word(conn, lease.delivery_id, word, now=now)
    if settlement.event_state is not None:
        end_event(conn, lease.event_id, settlement.event_state, now=now)
    tell(conn, told, now=now)
    return True


def reconcile(conn: Connection, delivery: Delivery, word: Word, *, is_accepted: bool, now: float | None) -> bool:
    """Move a delivery of unknown outcome to succeeded, or to closed and replaceable; false when somebody else did."""
    at = clock(conn, now)
    values: dict[str, Any] = {"status": FAILED, "last_error_code": RECONCILED_ABSENT}
    if is_accepted:
        values = {"status": SUCCEEDED, "last_error_code": None, "acknowledged_at": at}
    moved = conn.execute(
        update(deliveries)
        .where(
            deliveries.c.delivery_id == delivery.delivery_id,
            deliveries.c.status == FAILED,
            deliveries.c.last_error_code.in_(UNKNOWN_CODES),
        )
        .values(in_doubt=False, next_attempt_at=at, updated_at=at, **values)
    )
    if moved.rowcount != 1:
        return False
    append_word(conn, delivery.delivery_id, word, now=now)
    if is_accepted:
        end_event(conn, delivery.event_id, "delivered", now=now)
    return True


def end_event(conn: Connection, event_id: str, state: str, *, now: float | None) -> None:
    """Mark an event delivered (an acknowledged text is live even where a newer one is known) or superseded."""
    leaves = ("open", "superseded") if state == "delivered" else ("open",)
    conn.execute(
        update(events)
        .where(events.c.event_id == event_id, events.c.state.in_(leaves))
        .values(state=state, updated_at=clock(conn, now))
    )


def _take(conn: Connection, terms: Terms, turn: Ask | Send, *, now: float | None) -> RowMapping:
    at = clock(conn, now)
    if isinstance(turn, Ask):
        values: dict[str, Any] = {"lookups": deliveries.c.lookups + 1}
        where = [deliveries.c.in_doubt.is_(True)]
    else:
        since = case((deliveries.c.in_doubt.is_(True), deliveries.c.doubt_since_at), else_=at)
        values = {"in_doubt": True, "sent_at": at, "doubt_since_at": since}
        where = [deliveries.c.in_doubt.is_(turn.was_in_doubt)]
    taken = DELIVERIES.take(
        conn,
        terms.delivery_id,
        worker_id=terms.worker_id,
        lease_seconds=terms.lease_seconds,
        now=now,
        is_counted=isinstance(turn, Send),
        where=where,
        values=values,
    )
    if taken is None:
        raise Blocked("cms.delivery.claim_lost", "another worker moved the delivery; try again", retryable=True)
    return taken


def _close(conn: Connection, delivery_id: str, turn: Close, *, now: float | None) -> None:
    at = clock(conn, now)
    conn.execute(
        update(deliveries)
        .where(deliveries.c.delivery_id == delivery_id, deliveries.c.status.in_(("pending", RETRY_WAIT)))
        .values(
            status=FAILED, last_error_code=turn.code, in_doubt=literal(turn.in_doubt), next_attempt_at=at, updated_at=at
        )
    )


def _lease(row: RowMapping, *, was_in_doubt: bool) -> SendLease:
    return SendLease(
        delivery_id=row["delivery_id"],
        event_id=row["event_id"],
        owner=row["lease_owner"],
        token=row["lease_token"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        lookups=row["lookups"],
        was_in_doubt=was_in_doubt,
        sent_at=row["sent_at"],
        doubt_since_at=row["doubt_since_at"],
        taken_at=row["updated_at"],
    )
