"""What an audit reads beside the records of what was removed: their prunings, events and holds; a few statements."""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain.audit.retention import BesidePruned, Hold
from worker.store.audit_pages import Rows, column_of, rows_of
from worker.store.schema import events, legal_holds, prunings


def beside_pruned(conn: Connection, rows: Rows) -> BesidePruned:
    """Return what is stored about the records of a page."""
    known = rows_of(conn, prunings, "pruning_id", column_of(rows, "pruning_id"), "pruning_id")
    ended = rows_of(conn, events, "event_id", column_of(rows, "event_id"), "event_id", "site_id", "state")
    said = ("scope", "name", "placed_at", "released_at")
    by_event = rows_of(conn, legal_holds, "name", column_of(ended, "event_id"), *said, scope="event")
    by_site = rows_of(conn, legal_holds, "name", column_of(ended, "site_id"), *said, scope="site")
    holds: dict[tuple[str, str], list[Hold]] = {}
    for row in [*by_event, *by_site]:
        hold = Hold(placed_at=row["placed_at"], released_at=row["released_at"])
        holds.setdefault((row["scope"], row["name"]), []).append(hold)
    return BesidePruned(
        prunings=frozenset(column_of(known, "pruning_id")),
        states={row["event_id"]: row["state"] for row in ended},
        holds={
            row["event_id"]: [*holds.get(("event", row["event_id"]), ()), *holds.get(("site", row["site_id"]), ())]
            for row in ended
        },
    )
