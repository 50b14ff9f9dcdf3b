"""The rules of `domain.attempt` as SQL conditions, for the guarded updates of `leases` and the claims that pick rows.

Where one row is read, the domain judges it; a test holds both to the same verdicts on both databases. What a partial
index is about is written in the index's own words, so that the planners match them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Float,
    FromClause,
    Table,
    and_,
    case,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
)

from worker.domain.attempt import (
    LEASED,
    LONGEST_WAIT_SECONDS,
    MOST_ATTEMPTS,
    PENDING,
    RETRY_WAIT,
    backoff_seconds,
)
from worker.store.engine import Bind, Moment, clock
from worker.store.schema import deliveries, evidence, jobs

SHORT_WAITS = [n for n in range(MOST_ATTEMPTS) if backoff_seconds(n) < LONGEST_WAIT_SECONDS]  # by attempt
LATEST: ColumnElement[float] = literal_column(
    "1.7976931348623157e308", Float
)  # the largest finite float; NaN and infinity compare above it


def is_waiting(rows: FromClause) -> ColumnElement[bool]:
    """Return the condition that a row waits to be claimed, in the words of the partial indexes."""
    return rows.c.status.in_((literal_column(f"'{PENDING}'"), literal_column(f"'{RETRY_WAIT}'")))


def is_leased(rows: FromClause) -> ColumnElement[bool]:
    """Return the condition that a row is leased, live or not, in the words of the partial indexes."""
    return rows.c.status == literal_column(f"'{LEASED}'")


def is_used_up(table: Table, in_doubt: object = None) -> ColumnElement[bool]:
    """Return the condition that no attempt is left, which is never true in doubt.

    `in_doubt` is what the row is about to say of that, where the same UPDATE changes it.
    """
    used_up = table.c.attempts >= table.c.max_attempts
    if "in_doubt" not in table.c:
        return used_up
    doubt = table.c.in_doubt if in_doubt is None else literal(in_doubt, Boolean)
    return and_(used_up, ~doubt)


def due_at(table: Table, bind: Bind, now: Moment, not_before: ColumnElement[float]) -> ColumnElement[float]:
    """Return `domain.attempt.due_after` of a row whose attempt fails now, from the same numbers."""
    waits = [(table.c.attempts == n, literal_column(f"{backoff_seconds(n)}", Float)) for n in SHORT_WAITS]
    due = clock(bind, now) + case(*waits, else_=literal_column(f"{LONGEST_WAIT_SECONDS}", Float))
    latest = clock(bind, now) + LONGEST_WAIT_SECONDS
    is_longer = and_(not_before.is_not(None), not_before > due)
    return case((and_(is_longer, not_before > latest), latest), (is_longer, not_before), else_=due)


def is_being_renewed() -> ColumnElement[bool]:
    """Return the condition that a delivery's approvals are being renewed, and that it may still give way: unsent."""
    return and_(
        deliveries.c.renewal_asked_at.is_not(None),
        deliveries.c.in_doubt.is_(False),
        deliveries.c.status.in_((literal_column(f"'{PENDING}'"), literal_column(f"'{RETRY_WAIT}'"))),
    )


def is_current_result() -> ColumnElement[bool]:
    """Return the condition on `evidence` that its result is still the job's, or that no job row is there to tell.

    A result that was replaced takes its rows' right to count with it, whoever still holds a lease on them.
    """
    replaced = select(jobs.c.job_id).where(
        jobs.c.job_id == evidence.c.job_id, jobs.c.current_result_sha256.is_distinct_from(evidence.c.result_sha256)
    )
    return ~exists(replaced)


def opaque(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return a condition that is judged row by row and tells PostgreSQL's planner nothing.

    Where it can look inside, it turns a search around: it reads all open events, or the whole table, and looks for the
    few wanted rows in what is left.
    """
    return case((condition, literal_column("TRUE", Boolean)), else_=literal_column("FALSE", Boolean))


def is_row_sound(
    rows: FromClause, *, tokens: Iterable[str], hashes: Iterable[str], of_sqlite: bool
) -> ColumnElement[bool]:
    """Return the condition that a row which waits or is leased is one that the machine can have written.

    Taken one by one these conditions make PostgreSQL believe that hardly any row is sound, hence `opaque`.
    """
    row = rows.c
    numbers: list[ColumnElement[bool]] = [
        row.max_attempts.between(1, MOST_ATTEMPTS),
        row.attempts.between(0, row.max_attempts),
        *(row[name].between(0, LATEST) for name in ("next_attempt_at", "created_at", "updated_at")),
    ]
    if of_sqlite:  # a column there holds what was put into it
        numbers += [func.typeof(row[name]) == "integer" for name in ("attempts", "max_attempts")]
    kinds = ((_are_tokens, [row[name] for name in tokens]), (_are_hashes, [row[name] for name in hashes]))
    texts = [are_sound(of_sqlite, columns) for are_sound, columns in kinds if columns]
    lease = (row.lease_owner, row.lease_token, row.lease_expires_at)
    is_free = and_(row.status != LEASED, *(column.is_(None) for column in lease))
    is_held = and_(
        row.status == LEASED,
        _are_tokens(of_sqlite, lease[:2]),
        row.lease_expires_at <= LATEST,
        row.lease_expires_at > row.next_attempt_at,
    )
    code = row.last_error_code
    is_error = or_(code.is_(None), and_(row.status == RETRY_WAIT, _is_error_code(of_sqlite, code)))
    return opaque(and_(*numbers, *texts, or_(is_free, is_held), is_error))


def _are_tokens(of_sqlite: bool, columns: Sequence[ColumnElement[str]]) -> ColumnElement[bool]:
    lengths = [func.length(column).between(1, 256) for column in columns]
    return and_(*lengths, *_hold_only(of_sqlite, columns, "A-Za-z0-9_.:-"))


def _are_hashes(of_sqlite: bool, columns: Sequence[ColumnElement[str]]) -> ColumnElement[bool]:
    return and_(*(func.length(column) == 64 for column in columns), *_hold_only(of_sqlite, columns, "0-9a-f"))


def _is_error_code(of_sqlite: bool, column: ColumnElement[str]) -> ColumnElement[bool]:
    if not of_sqlite:
        return column.regexp_match("^[a-z][a-z0-9_.-]{0,127}$")
    begins = column.op("GLOB", is_comparison=True)("[a-z]*")
    return and_(_holds_only(column, "a-z0-9_.-"), begins, func.length(column) <= 128)


def _hold_only(of_sqlite: bool, columns: Sequence[ColumnElement[str]], allowed: str) -> list[ColumnElement[bool]]:
    """Return the conditions that columns, of which none is empty, hold these characters alone.

    PostgreSQL looks at all of them joined, since each regular expression costs it 3 us a row (one with a count, 50).
    """
    if of_sqlite:
        return [_holds_only(column, allowed) for column in columns]
    return [functools.reduce(operator.add, columns).regexp_match(f"^[{allowed}]+$")]


def _holds_only(column: ColumnElement[str], allowed: str) -> ColumnElement[bool]:
    """SQLite has no regular expressions, and a text column there may hold bytes."""
    return and_(func.typeof(column) == "text", ~column.op("GLOB", is_comparison=True)(f"*[^{allowed}]*"))
