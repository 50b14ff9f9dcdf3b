"""Which expired rows are poison, counted from the attempts that ended: asked by whoever takes a lease away, in its transaction.

Rows that only the store's own surface made (evidence without a site) are never quarantined: their machine is SPEC 4's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, String, Table, func, select

from worker.domain.attempt import LEASE_EXPIRED
from worker.domain.quarantine import Quarantine
from worker.store.drains import announced_at, has_drained
from worker.store.engine import clock, json_rows, row_source
from worker.store.schema import setbacks


def poisoned(
    conn: Connection,
    table: Table,
    id_column: str,
    subject: str,
    rows: Sequence[RowMapping],
    bound: Quarantine,
    *,
    now: float | None,
) -> frozenset[str]:
    """Return the ids of those rows, locked and with a lease that ran out, that are quarantined by this very expiry.

    Earlier expiries count from the row's creation on and within the bound's span; those of workers that announced
    their end before do not. Reads twice at most, whatever the number of rows.
    """
    asked = {row[id_column]: row for row in rows if "site_id" not in row or row["site_id"] is not None}
    if not asked:
        return frozenset()
    earlier = _earlier(conn, table, id_column, subject, list(asked), bound, now)
    close = {row_id: row for row_id, row in asked.items() if earlier.get(row_id, 0) + 1 >= bound.expiries}
    ends = announced_at(conn, frozenset(row["lease_owner"] for row in close.values()))
    return frozenset(
        row_id
        for row_id, row in close.items()
        if ends.get(row["lease_owner"], math.inf) > row["lease_expires_at"]  # whoever hung before it drained did hang
    )


def _earlier(
    conn: Connection,
    table: Table,
    id_column: str,
    subject: str,
    row_ids: Sequence[str],
    bound: Quarantine,
    now: float | None,
) -> dict[str, int]:
    named = row_source(conn, "named", {"row_id": String}, "named")
    statement = (
        select(setbacks.c.subject_id, func.count().label("expiries"))
        .select_from(named)
        .join(table, table.c[id_column] == named.c.row_id)
        .join(setbacks, (setbacks.c.subject == subject) & (setbacks.c.subject_id == named.c.row_id))
        .where(
            setbacks.c.code == LEASE_EXPIRED,
            setbacks.c.ended_at > clock(conn, now) - bound.within_seconds,
            setbacks.c.ended_at > table.c.created_at,  # a delivery's successor may have the very same bytes
            ~has_drained(setbacks.c.lease_owner, setbacks.c.ended_at),
        )
        .group_by(setbacks.c.subject_id)
    )
    found = conn.execute(statement, {"named": json_rows([{"row_id": row_id} for row_id in row_ids])})
    return {row.subject_id: row.expiries for row in found}
