"""How much PostgreSQL reads for a statement, on the plan that it makes for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, event

from worker.store.engine import writing


def rows_read(engine: Engine, work: Callable[[Connection], object], *, begins: str) -> float:
    """Return how many rows of tables and indexes were read by those statements of some work that begin so.

    Each is executed once more than the work does, and taken back.
    """
    read: list[float] = []

    def explain(_conn: Connection, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(begins):
            raw = cursor.connection
            raw.execute("SAVEPOINT before")
            [found] = raw.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).fetchone()
            raw.execute("ROLLBACK TO before")
            [whole] = json.loads(found) if isinstance(found, str) else found
            read.append(_of(whole["Plan"]))

    def watched(conn: Connection) -> None:
        event.listen(conn, "before_cursor_execute", explain)
        work(conn)

    writing(engine, watched)
    assert read
    return sum(read)


def _of(plan: dict[str, Any]) -> float:
    """Return how many rows the tables of a plan gave or threw away, all loops together."""
    own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return float(own if "Relation Name" in plan else 0) + sum(_of(one) for one in plan.get("Plans", []))
