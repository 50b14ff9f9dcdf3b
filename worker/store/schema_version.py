"""Which schema a database has, how it is brought to the newest one, and which versions of the workers may use it.

Every migration is one of two moves. An expansion only adds, so that workers of the version before go on beside those of
the new one; a contraction takes away what no version in use needs any more. Each migration says in `serves_from` the
oldest revision whose workers may still use the database after it, and `migrate` keeps that word in the database: a
worker that does not know the database's revision reads there whether it is meant to go on.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final, Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, delete, insert, select, text

from worker.domain.errors import Blocked
from worker.store.engine import is_sqlite, reading, writing
from worker.store.schema import installation

MIGRATION_LOCK: Final = 0x10C5EA1  # one advisory lock for all processes that upgrade the same database
MIGRATIONS: Final = Path(__file__).parent / "migrations"
SERVES_FROM: Final = "serves_from"  # the row of `installation`, and the name in each migration

Standing = Literal["newest", "older", "newer", "too_new"]
"""newest: exactly ours; older: to be upgraded; newer: of a later version, and it serves ours; too_new: it does not."""


def migrate(engine: Engine, migrations: Path = MIGRATIONS) -> None:
    """Bring the database to the newest schema of a directory of migrations; leave a newer one that serves us as it is.

    Safe to call from many processes at once, of different versions too; quick when nothing is to do. Raises `Blocked`
    with `database.too_new` where the database is of a later version that does not serve this one.
    """
    with reading(engine) as conn:
        standing = _standing(conn, migrations)
    _refuse_too_new(standing)
    if standing == "older":
        writing(engine, lambda conn: _upgrade(conn, migrations))


def is_migrated(engine: Engine) -> bool:
    """Tell whether this version may work on the database, without changing it; `Unavailable` when it cannot be asked."""
    return schema_standing(engine) in {"newest", "newer"}


def check_schema(engine: Engine) -> None:
    """Raise `Blocked` where this version may not work on the database: it is not upgraded yet, or too new."""
    standing = schema_standing(engine)
    _refuse_too_new(standing)
    if standing == "older":
        raise Blocked("database.unmigrated", "the database has not the newest schema; run `locseal db upgrade`")


def schema_standing(engine: Engine) -> Standing:
    """Return how the database's schema stands to this version; `Unavailable` when it cannot be asked."""
    with reading(engine) as conn:
        return _standing(conn, MIGRATIONS)


def _refuse_too_new(standing: Standing) -> None:
    if standing == "too_new":
        raise Blocked(
            "database.too_new",
            "a later version upgraded the database, and it serves this version no more; upgrade this installation",
        )


def _standing(conn: Connection, migrations: Path) -> Standing:
    scripts = _scripts(migrations)
    revision = MigrationContext.configure(conn).get_current_revision()
    if revision == scripts.get_current_head():
        return "newest"
    known = {script.revision for script in scripts.walk_revisions()}
    if revision is None or revision in known:
        return "older"
    oldest = conn.execute(select(installation.c.value).where(installation.c.name == SERVES_FROM)).scalar_one_or_none()
    return "newer" if oldest in known else "too_new"


def _upgrade(conn: Connection, migrations: Path) -> None:
    if not is_sqlite(conn):
        conn.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
    standing = _standing(conn, migrations)  # another process may have been faster, and newer
    _refuse_too_new(standing)
    if standing != "older":
        return
    config = _config(migrations)
    config.attributes["connection"] = conn
    command.upgrade(config, "head")
    head = _scripts(migrations).get_revision("head")
    conn.execute(delete(installation).where(installation.c.name == SERVES_FROM))
    conn.execute(insert(installation).values(name=SERVES_FROM, value=getattr(head.module, SERVES_FROM)))


def _config(migrations: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


@functools.cache
def _scripts(migrations: Path) -> ScriptDirectory:
    return ScriptDirectory.from_config(_config(migrations))
