"""Deliveries as people look at them: lists, and what holds one back. Read only; payloads are never selected."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, select, tuple_

from worker.domain.waiting import DeliveryFacts
from worker.store.engine import clock
from worker.store.permits import has_permit
from worker.store.schema import deliveries
from worker.store.standings import OLDER, OLDER_UNSETTLED

_FACTS = {one.name: one.name for one in fields(DeliveryFacts)} | {"code": "last_error_code"}


def list_deliveries(
    conn: Connection,
    *,
    limit: int,
    before: tuple[float, str] | None = None,
    status: str | None = None,
    event_id: str | None = None,
    site_id: str | None = None,
    code: str | None = None,
    in_doubt: bool | None = None,
) -> tuple[DeliveryFacts, ...]:
    """Return deliveries, newest first. `before` is (`created_at`, `delivery_id`) of the last one seen."""
    wanted = {
        "status": status,
        "event_id": event_id,
        "site_id": site_id,
        "last_error_code": code,
        "in_doubt": in_doubt,
    }
    page = select(*_columns()).where(
        *(deliveries.c[name] == value for name, value in wanted.items() if value is not None)
    )
    if before is not None:
        page = page.where(tuple_(deliveries.c.created_at, deliveries.c.delivery_id) < tuple_(*before))
    page = page.order_by(deliveries.c.created_at.desc(), deliveries.c.delivery_id.desc()).limit(limit)
    return tuple(delivery_facts(row) for row in conn.execute(page).mappings())


def deliveries_of(conn: Connection, event_id: str, *, now: float | None = None) -> list[RowMapping]:
    """Return the deliveries of an event, the one that speaks for it first, each with what holds it back.

    `older_delivery_id` is an unsettled delivery of an older sequence of the source, `has_permit` whether a release run
    permits it.
    """
    rows = conn.execute(
        select(*_columns(), has_permit(clock(conn, now)).label("has_permit"), _older_delivery())
        .where(deliveries.c.event_id == event_id)
        .order_by(deliveries.c.status == "failed", deliveries.c.created_at.desc(), deliveries.c.delivery_id)
    )
    return list(rows.mappings())


def of_delivery(wanted: ColumnElement[Any], event_id: ColumnElement[str]) -> ColumnElement[Any]:
    """Return a column of the delivery that speaks for an event: the open or acknowledged one, else the newest."""
    return (
        select(wanted)
        .where(deliveries.c.event_id == event_id)
        .order_by(deliveries.c.status == "failed", deliveries.c.created_at.desc(), deliveries.c.delivery_id)
        .limit(1)
        .scalar_subquery()
    )


def _older_delivery() -> ColumnElement[str | None]:
    """Return the id of an unsettled delivery of an older sequence of the source, or NULL."""
    return (
        select(OLDER.c.delivery_id)
        .where(
            OLDER.c.site_id == deliveries.c.site_id,
            OLDER.c.source_id == deliveries.c.source_id,
            OLDER.c.source_sequence < deliveries.c.source_sequence,
            OLDER_UNSETTLED,
        )
        .order_by(OLDER.c.source_sequence)
        .limit(1)
        .correlate(deliveries)
        .scalar_subquery()
        .label("older_delivery_id")
    )


def _columns() -> list[ColumnElement[Any]]:
    return [deliveries.c[name] for name in _FACTS.values()]


def delivery_facts(row: RowMapping) -> DeliveryFacts:
    """Return the facts in a row of this module."""
    return DeliveryFacts(**{name: row[stored] for name, stored in _FACTS.items()})
