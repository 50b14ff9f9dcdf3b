"""`locseal db`: bring the database to the newest schema."""

from __future__ import annotations

import typer

from config.settings import load_settings
from worker.cli import output
from worker.cli.output import Json
from worker.store.engine import is_sqlite, open_engine
from worker.store.schema_version import is_migrated, migrate

app = typer.Typer(help="Look after the database.", no_args_is_help=True)


@app.callback()
def _database() -> None:
    """Keep `db` a group while it has one command."""


@app.command()
def upgrade(as_json: Json = False) -> None:
    """Bring the database to the newest schema; makes the private SQLite file where there is none."""
    engine = open_engine(load_settings().database(), pool_size=1)
    try:
        was_newest = is_migrated(engine)
        migrate(engine)
        kind = "sqlite" if is_sqlite(engine) else "postgresql"
    finally:
        engine.dispose()
    line = "the database has the newest schema" + (" already" if was_newest else " now")
    output.put({"database": kind, "upgraded": not was_newest}, as_json=as_json, lines=[line])
