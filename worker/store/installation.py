"""The name of this database, and from it the workspace fingerprint that release runs are bound to.

The name is 32 random bytes, written once and never changed: every process on the database serves the same workspace, a
restored backup is the same workspace, and a new database is another one whatever its address.
"""

from __future__ import annotations

import secrets

from sqlalchemy import Connection, Engine, select

from worker.domain.canonical import sha256_hex
from worker.store.engine import reading, writing
from worker.store.schema import installation
from worker.store.upserts import insert_into

NAME = "workspace"


def workspace_fingerprint(engine: Engine) -> str:
    """Return the fingerprint of the workspace that a database is: the SHA-256 of its name, which is made if need be."""
    with reading(engine) as conn:
        found = _read(conn)
    return sha256_hex(found or writing(engine, _make))


def _make(conn: Connection) -> str:
    made = insert_into(conn, installation).values(name=NAME, value=secrets.token_hex(32))
    conn.execute(made.on_conflict_do_nothing())
    found = _read(conn)
    assert found is not None
    return found


def _read(conn: Connection) -> str | None:
    found: str | None = conn.execute(
        select(installation.c.value).where(installation.c.name == NAME)
    ).scalar_one_or_none()
    return found
