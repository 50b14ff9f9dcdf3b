"""`domain.attempt.is_sound` in SQL, for statements that move many rows at once: a damaged row is never among them.

Where one row is read, the rule of the domain judges it; a test holds the two to the same verdict on both databases.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import ColumnElement, Float, FromClause, and_, func, literal_column, or_

from worker.domain.attempt import LEASED, MOST_ATTEMPTS, RETRY_WAIT
from worker.store.engine import Bind, is_sqlite

LATEST: ColumnElement[float] = literal_column(
    "1.7976931348623157e308", Float
)  # the largest finite float; NaN and infinity compare above it


def is_row_sound(bind: Bind, rows: FromClause, *, tokens: Iterable[str], hashes: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition that a row which waits or is leased is one that the machine can have written."""
    row = rows.c
    numbers: list[ColumnElement[bool]] = [
        row.max_attempts.between(1, MOST_ATTEMPTS),
        row.attempts.between(0, row.max_attempts),
        *(row[name].between(0, LATEST) for name in ("next_attempt_at", "created_at", "updated_at")),
    ]
    if is_sqlite(bind):  # a column there holds what was put into it
        numbers += [func.typeof(row[name]) == "integer" for name in ("attempts", "max_attempts")]
    texts = [_is_token(bind, row[name]) for name in tokens] + [_is_hash(bind, row[name]) for name in hashes]
    lease = (row.lease_owner, row.lease_token, row.lease_expires_at)
    is_free = and_(row.status != LEASED, *(column.is_(None) for column in lease))
    is_held = and_(
        row.status == LEASED,
        *(_is_token(bind, column) for column in lease[:2]),
        row.lease_expires_at <= LATEST,
        row.lease_expires_at > row.next_attempt_at,
    )
    code = row.last_error_code
    is_error = or_(code.is_(None), and_(row.status == RETRY_WAIT, _is_error_code(bind, code)))
    return and_(*numbers, *texts, or_(is_free, is_held), is_error)


def _is_token(bind: Bind, column: ColumnElement[str]) -> ColumnElement[bool]:
    if not is_sqlite(bind):
        return and_(column.regexp_match("^[A-Za-z0-9_.:-]+$"), func.length(column) <= 256)  # {1,256} is too much for it
    return and_(_holds_only(column, "A-Za-z0-9_.:-"), func.length(column).between(1, 256))


def _is_hash(bind: Bind, column: ColumnElement[str]) -> ColumnElement[bool]:
    if not is_sqlite(bind):
        return column.regexp_match("^[0-9a-f]{64}$")
    return and_(_holds_only(column, "0-9a-f"), func.length(column) == 64)


def _is_error_code(bind: Bind, column: ColumnElement[str]) -> ColumnElement[bool]:
    if not is_sqlite(bind):
        return column.regexp_match("^[a-z][a-z0-9_.-]{0,127}$")
    begins = column.op("GLOB", is_comparison=True)("[a-z]*")
    return and_(_holds_only(column, "a-z0-9_.-"), begins, func.length(column) <= 128)


def _holds_only(column: ColumnElement[str], allowed: str) -> ColumnElement[bool]:
    """SQLite has no regular expressions, and a text column there may hold bytes."""
    return and_(func.typeof(column) == "text", ~column.op("GLOB", is_comparison=True)(f"*[^{allowed}]*"))
