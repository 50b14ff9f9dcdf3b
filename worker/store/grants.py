"""Who may do what in the database: the grants of a fleet with a role for each kind of user, applied by the owner."""

from __future__ import annotations

import re

from sqlalchemy import Connection, Engine

from worker.domain.errors import Blocked
from worker.store.engine import is_sqlite, writing


def apply_grants(engine: Engine, statements: str) -> None:
    """Run the statements of a grants file in one transaction. No `;` or `--` may stand inside a text of it.

    Raises `Blocked("database.grants.sqlite")` on SQLite, whose files know no roles, and `Unavailable` where the server
    refuses a statement (a role that is not there, a user that does not own the tables).
    """
    if is_sqlite(engine):
        raise Blocked("database.grants.sqlite", "SQLite knows no roles; the file's permissions are all there is")
    parts = [part for part in re.sub(r"--.*", "", statements).split(";") if part.strip()]

    def work(conn: Connection) -> None:
        for part in parts:
            conn.exec_driver_sql(part)

    writing(engine, work)
