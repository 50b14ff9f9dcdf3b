"""The INSERT of the connected database, which alone knows ON CONFLICT; both databases spell it alike. No table here."""

from __future__ import annotations

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite

from worker.store.engine import Bind, is_sqlite

Insertion = postgresql.Insert | sqlite.Insert


def insert_into(bind: Bind, table: Table) -> Insertion:
    """Return an INSERT that offers `on_conflict_do_nothing`, `on_conflict_do_update` and `excluded`.

    With `from_select`, give the SELECT an ORDER BY: without one SQLite reads the ON of ON CONFLICT as a join's.
    """
    return sqlite.insert(table) if is_sqlite(bind) else postgresql.insert(table)
