"""Which waiting evidence rows may be leased at all, whoever picks them: the conditions that every claim shares."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, FromClause, Select, String, and_, exists, literal_column, select

from worker.store.conditions import is_being_renewed, is_row_sound, opaque
from worker.store.engine import Bind, is_sqlite, row_source
from worker.store.leases import EVIDENCE
from worker.store.schema import deliveries, events


def may_be_claimed(bind: Bind, rows: Any) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions that a due row may be leased: an attempt is left, it is sound, and somebody wants it."""
    sound = is_row_sound(rows, tokens=EVIDENCE.tokens, hashes=EVIDENCE.hashes, of_sqlite=is_sqlite(bind))
    return rows.c.attempts < rows.c.max_attempts, sound, _is_wanted(rows)


def _is_wanted(rows: FromClause) -> ColumnElement[bool]:
    """Return the condition that a row's event is open and that no delivery speaks for it yet."""
    is_open = exists().where(events.c.event_id == rows.c.event_id, events.c.state == literal_column("'open'"))
    spoken_for = exists().where(
        deliveries.c.event_id == rows.c.event_id,
        deliveries.c.status != literal_column("'failed'"),
        ~is_being_renewed(),
    )
    return opaque(and_(is_open, ~spoken_for))  # rows are walked in due order, whatever else is open


def names(bind: Bind, param: str) -> Select[tuple[str]]:
    """Return the names passed as `{"name": ...}` rows in one parameter."""
    return select(row_source(bind, param, {"name": String}, param).c.name)
