"""Permits: a guided site's delivery is sent only while an attempt of a release run's mutating step permits it.

A permit is live from the step's visit that grants it until the step ends or its run is resumed; it dies by itself with
the command it belongs to, when a worker lost the lease on that in the middle of a visit: nothing new is sent then.
Sending is `sends`'s business, asking needs no permit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, Connection, String, and_, delete, exists, literal, or_, select

from worker.domain.errors import RunConflict
from worker.domain.run_plan import kind_of
from worker.store.conditions import is_leased
from worker.store.engine import clock, json_rows, row_source
from worker.store.schema import deliveries, delivery_permits, run_commands
from worker.store.upserts import insert_into


def has_permit(at: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition on `deliveries` that a live permit stands for a row."""
    return (
        exists().where(delivery_permits.c.delivery_id == deliveries.c.delivery_id, _is_live(at)).correlate(deliveries)
    )


def grant_permits(
    conn: Connection, delivery_ids: Iterable[str], *, run_id: str, attempt_id: str, now: float | None
) -> tuple[str, ...]:
    """Permit deliveries to be sent, and return those that a live permit of another run holds instead.

    A dead permit gives way. Whoever calls holds the lease on the attempt's command, in this transaction.
    """
    at = clock(conn, now)
    ids = json_rows([{"id": delivery_id} for delivery_id in sorted(set(delivery_ids))])
    named = row_source(conn, "named", {"id": String}, "named")
    is_other = delivery_permits.c.run_id != run_id
    of_these = delivery_permits.c.delivery_id.in_(select(named.c.id))
    conn.execute(
        delete(delivery_permits).where(of_these, or_(and_(is_other, ~_is_live(at)), ~is_other)), {"named": ids}
    )
    rows = select(named.c.id, literal(run_id, String), literal(attempt_id, String), at.label("granted_at")).order_by(
        named.c.id
    )
    granting = insert_into(conn, delivery_permits).from_select(
        ["delivery_id", "run_id", "attempt_id", "granted_at"], rows
    )
    conn.execute(granting.on_conflict_do_nothing(), {"named": ids})
    held = select(delivery_permits.c.delivery_id).where(of_these, is_other).order_by(delivery_permits.c.delivery_id)
    return tuple(conn.execute(held, {"named": ids}).scalars())


def withdraw_permits(conn: Connection, run_id: str) -> None:
    """Take back every permit of a run: from now on none of its deliveries is claimed to be sent."""
    conn.execute(delete(delivery_permits).where(delivery_permits.c.run_id == run_id))


def refuse_while_sending(conn: Connection, record: dict[str, Any], *, now: float | None) -> None:
    """Raise `RunConflict` while a delivery of a localization run is under a live lease: nobody knows its outcome yet."""
    given = record["immutable"]["input"]
    if kind_of(given) != "localization":
        return
    named = row_source(conn, "named", {"event_id": String}, "named")
    sending = (
        select(deliveries.c.delivery_id)
        .where(
            deliveries.c.event_id.in_(select(named.c.event_id)),
            is_leased(deliveries),
            deliveries.c.lease_expires_at > clock(conn, now),
        )
        .limit(1)
    )
    rows = json_rows([{"event_id": event["event_id"]} for event in given["events"].values()])
    if conn.execute(sending, {"named": rows}).first() is not None:
        raise RunConflict("a delivery of this run is being sent or asked about right now; try again when it is settled")


def _is_live(at: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition on `delivery_permits` that the command behind a permit has not died."""
    ran_out = and_(is_leased(run_commands), run_commands.c.lease_expires_at <= at)
    died = exists().where(
        run_commands.c.attempt_id == delivery_permits.c.attempt_id, or_(run_commands.c.status == "failed", ran_out)
    )
    return ~died.correlate(delivery_permits)
