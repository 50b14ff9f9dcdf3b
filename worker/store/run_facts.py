"""What the database says of the events that a release run froze: are they still the current ones, where do they stand.

Each question is one statement for all events of a run. Read only.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, String, and_, exists, select

from worker.domain.attempt import FAILED, LEASED, PENDING, RETRY_WAIT
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Blocked
from worker.domain.run_visit import DeliveryStanding, FrozenEvent
from worker.domain.turn import GIVES_WAY
from worker.store.delivery_views import of_delivery
from worker.store.engine import json_rows, read_clock, row_source
from worker.store.event_plans import EVENT_TAMPERED
from worker.store.readiness import ACCEPTED, accepted_rows, accepted_source, is_approved
from worker.store.schema import deliveries, delivery_answers, events
from worker.store.stored_documents import read_change

NEWER = events.alias("newer")


def current_events(conn: Connection, site_id: str, website_version: str, *, most: int) -> tuple[FrozenEvent, ...]:
    """Return the current events of a website version, by source, at most `most` of them.

    Current is the newest event of a source that was not withdrawn, if it belongs to the version. Raises
    `release.event.tampered` where a stored text is not what was accepted.
    """
    rows = conn.execute(
        select(events.c.event_id, events.c.event_sha256, events.c.document)
        .where(
            events.c.site_id == site_id,
            events.c.website_version == website_version,
            events.c.state.in_(("open", "delivered")),
            ~_has_newer(),
        )
        .order_by(events.c.source_id)
        .limit(most)
    )
    return tuple(_frozen(row.event_id, row.event_sha256, row.document) for row in rows)


def moved_sources(conn: Connection, site_id: str, frozen: Sequence[FrozenEvent]) -> tuple[str, ...]:
    """Return the sources whose frozen event is no longer the current one: newer, withdrawn, gone or another."""
    rows = conn.execute(
        select(events.c.event_id, events.c.source_id, events.c.source_sequence, events.c.plan_id).where(
            events.c.event_id.in_(_named(conn)),
            events.c.site_id == site_id,
            events.c.state.in_(("open", "delivered")),
            ~_has_newer(),
        ),
        _events(frozen),
    )
    current = {(row.event_id, row.source_id, row.source_sequence, row.plan_id) for row in rows}
    return tuple(
        one.source_id
        for one in frozen
        if (one.event_id, one.source_id, one.source_sequence, one.plan_id) not in current
    )


def unapproved_events(
    conn: Connection, frozen: Sequence[FrozenEvent], site_id: str, accepted: frozenset[str], *, now: float | None
) -> tuple[str, ...]:
    """Return the events that are neither delivered nor wholly approved now, in the order given."""
    rows = conn.execute(
        select(events.c.event_id).where(
            events.c.event_id.in_(_named(conn)),
            (events.c.state == "delivered") | is_approved(conn, accepted_source(conn), now=now),
        ),
        {**_events(frozen), ACCEPTED: accepted_rows({site_id: accepted})},
    ).scalars()
    approved = set(rows)
    return tuple(one.event_id for one in frozen if one.event_id not in approved)


def delivery_standings(
    conn: Connection, frozen: Sequence[FrozenEvent], *, now: float | None
) -> tuple[DeliveryStanding, ...]:
    """Return how the delivery that speaks for each event stands, in the order given."""
    at = read_clock(conn, now)
    speaking = select(
        events.c.event_id, of_delivery(deliveries.c.delivery_id, events.c.event_id).label("delivery_id")
    ).where(events.c.event_id.in_(_named(conn)))
    chosen = speaking.subquery("chosen")
    rows = conn.execute(
        select(
            deliveries.c.event_id,
            deliveries.c.delivery_id,
            deliveries.c.status,
            deliveries.c.last_error_code,
            deliveries.c.in_doubt,
            deliveries.c.lease_expires_at,
            deliveries.c.next_attempt_at,
        ).join(chosen, chosen.c.delivery_id == deliveries.c.delivery_id),
        _events(frozen),
    )
    found = {
        row.event_id: DeliveryStanding(
            source_id="",
            event_id=row.event_id,
            delivery_id=row.delivery_id,
            status=row.status,
            code=row.last_error_code,
            in_doubt=row.in_doubt,
            leased_until=row.lease_expires_at if row.status == LEASED and row.lease_expires_at > at else None,
            is_due=row.status in {PENDING, RETRY_WAIT} and row.next_attempt_at <= at,
        )
        for row in rows
    }
    for event_id in [event_id for event_id, one in found.items() if one.status == FAILED and one.code in GIVES_WAY]:
        del found[event_id]  # closed by us for a successor that is not there yet
    return tuple(_standing(one, found.get(one.event_id)) for one in frozen)


def confirmed_deliveries(conn: Connection, frozen: Sequence[FrozenEvent], *, since: float) -> frozenset[str]:
    """Return the deliveries of these events that the CMS confirmed, in a signed look-up answer, since a time."""
    is_answer = and_(
        delivery_answers.c.delivery_id == deliveries.c.delivery_id,
        delivery_answers.c.kind == "lookup",
        delivery_answers.c.outcome == "accepted",
        delivery_answers.c.answered_at >= since,
    )
    rows = conn.execute(
        select(deliveries.c.delivery_id).where(deliveries.c.event_id.in_(_named(conn)), exists().where(is_answer)),
        _events(frozen),
    )
    return frozenset(rows.scalars())


def accepting_words(conn: Connection, frozen: Sequence[FrozenEvent]) -> dict[str, tuple[str, str | None]]:
    """Return kind and key id of the newest kept answer that says `accepted`, by delivery."""
    rows = conn.execute(
        select(delivery_answers.c.delivery_id, delivery_answers.c.kind, delivery_answers.c.kid)
        .join(deliveries, deliveries.c.delivery_id == delivery_answers.c.delivery_id)
        .where(deliveries.c.event_id.in_(_named(conn)), delivery_answers.c.outcome == "accepted")
        .order_by(delivery_answers.c.answer_id),
        _events(frozen),
    )
    return {row.delivery_id: (row.kind, row.kid) for row in rows}


def _has_newer() -> ColumnElement[bool]:
    return (
        exists()
        .where(
            NEWER.c.site_id == events.c.site_id,
            NEWER.c.source_id == events.c.source_id,
            NEWER.c.source_sequence > events.c.source_sequence,
            NEWER.c.state != "withdrawn",
        )
        .correlate(events)
    )


def _frozen(event_id: str, event_sha256: str, document: str) -> FrozenEvent:
    try:
        if sha256_hex(document) != event_sha256:
            raise Blocked(EVENT_TAMPERED)
        change = read_change(document)
    except Blocked:
        raise Blocked(EVENT_TAMPERED, "a stored event is not what was accepted; audit the event") from None
    return FrozenEvent(
        source_id=change.localization.source_id,
        event_id=event_id,
        source_sequence=change.source_sequence,
        source_sha256=change.source_sha256,
        plan_id=change.plan_id,
    )


def _standing(event: FrozenEvent, found: DeliveryStanding | None) -> DeliveryStanding:
    if found is None:
        return DeliveryStanding(source_id=event.source_id, event_id=event.event_id, delivery_id=None)
    return DeliveryStanding(**{**vars(found), "source_id": event.source_id})


def _named(conn: Connection) -> ColumnElement[str]:
    named = row_source(conn, "frozen", {"event_id": String}, "frozen")
    return select(named.c.event_id)  # type: ignore[return-value]


def _events(frozen: Sequence[FrozenEvent]) -> dict[str, str]:
    return {"frozen": json_rows([{"event_id": one.event_id} for one in frozen])}
