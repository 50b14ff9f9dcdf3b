"""What workers counted and timed, as rows that only ever grow: a few hundred, however much work there is.

They are written every few seconds by each worker process, never on the way of a locale; killing a worker loses the
last seconds of its counts, so these are numbers for graphs and alerts. What became of an attempt stands in its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from sqlalchemy import Connection, Float, String, select

from worker.domain.measure import Series, fold
from worker.store.engine import json_rows, row_source
from worker.store.schema import measures
from worker.store.upserts import insert_into

MOST_READ: Final = 5000  # rows; far more than the bounds on names let there be
_NAMES: Final = ("measure", "subject", "outcome", "part")
_COLUMNS: Final = {**dict.fromkeys(_NAMES, String), "value": Float}


def add_measures(conn: Connection, counts: Mapping[Series, float]) -> None:
    """Add counts to the rows of their series, under names that there is room for. Safe beside other processes."""
    folded = fold(counts, read_measures(conn))
    given = row_source(conn, "given", _COLUMNS, "given")
    # In key order, so that two processes wait for each other instead of locking each other out.
    rows = select(*(given.c[name] for name in _COLUMNS)).order_by(*(given.c[name] for name in _NAMES))
    added = insert_into(conn, measures).from_select([*_COLUMNS], rows)
    added = added.on_conflict_do_update(index_elements=_NAMES, set_={"value": measures.c.value + added.excluded.value})
    conn.execute(added, {"given": json_rows([{**asdict(one), "value": value} for one, value in folded.items()])})


def read_measures(conn: Connection) -> dict[Series, float]:
    """Return the value of each series, in order."""
    rows = conn.execute(select(measures).order_by(*(measures.c[name] for name in _NAMES)).limit(MOST_READ))
    return {
        Series(measure=row.measure, subject=row.subject, outcome=row.outcome, part=row.part): row.value for row in rows
    }
