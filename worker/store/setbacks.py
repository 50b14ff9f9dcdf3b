"""How attempts end, and the line that each end but success leaves behind: appended, never changed.

An ending says what the holder of a lease wants; whether it happens is decided by the guarded UPDATE in `leases`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Integer,
    String,
    bindparam,
    cast,
    literal,
    select,
)

from worker.store.engine import Bind, clock, json_rows, row_source
from worker.store.schema import setbacks

RELEASED: Final = "released"  # the outcome of an attempt that was handed back

ENDING_COLUMNS = {
    "row_id": String,
    "owner": String,
    "token": String,
    "code": String,
    "is_retryable": Boolean,
    "not_before": Float,
}
SETBACK_COLUMNS = {
    "subject_id": String,
    "attempt": Integer,
    "lease_owner": String,
    "outcome": String,
    "code": String,
    "retry_after_seconds": Float,
}


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How the holder of a lease ends it. `code`, `is_retryable` and `not_before` say nothing on a success.

    `not_before` is a time in seconds: for a failure the earliest repeat, for a release when the row is due.
    `retry_after_seconds` is the wait that the other side asked for; it is only recorded.
    """

    row_id: str
    owner: str
    token: str = field(repr=False)
    code: str | None = None
    is_retryable: bool = True
    not_before: float | None = None
    retry_after_seconds: float | None = None


def ended_source(bind: Bind, *, is_alone: bool) -> FromClause:
    """Return endings as a selectable. One alone travels as plain parameters, exact to the last bit."""
    if not is_alone:
        return row_source(bind, "ended", ENDING_COLUMNS, "endings")
    alone: list[ColumnElement[Any]] = [
        cast(bindparam(f"ended_{name}"), kind).label(name) for name, kind in ENDING_COLUMNS.items()
    ]
    return select(*alone).subquery("ended")


def ended_parameters(endings: Sequence[Ending]) -> dict[str, Any]:
    """Return the parameters that feed `ended_source`."""
    rows = [{name: getattr(ending, name) for name in ENDING_COLUMNS} for ending in endings]
    if len(rows) != 1:
        return {"endings": json_rows(rows)}
    return {f"ended_{name}": value for name, value in rows[0].items()}


def append_setbacks(
    conn: Connection,
    subject: str,
    endings: Sequence[Ending],
    outcomes: Mapping[str, tuple[str, int]],
    *,
    now: float | None,
) -> None:
    """Record the attempts that really ended, in the transaction that ended them.

    `outcomes` gives the outcome (retry_wait, failed or released) and the number of the attempt by row id.
    """
    rows = [
        {
            "subject_id": ending.row_id,
            "attempt": outcomes[ending.row_id][1],
            "lease_owner": ending.owner,
            "outcome": outcomes[ending.row_id][0],
            "code": ending.code,
            "retry_after_seconds": ending.retry_after_seconds,
        }
        for ending in endings
        if ending.row_id in outcomes
    ]
    if not rows:
        return
    ended = row_source(conn, "ended", SETBACK_COLUMNS, "setbacks")
    values = select(literal(subject, String), *ended.c, clock(conn, now))
    statement = setbacks.insert().from_select(["subject", *SETBACK_COLUMNS, "ended_at"], values)
    conn.execute(statement, {"setbacks": json_rows(rows)})
