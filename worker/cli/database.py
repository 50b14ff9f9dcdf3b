"""`locseal db`: bring the database to the newest schema, and give each role what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

import config
from config.settings import load_settings
from worker.cli import output
from worker.cli.output import Json
from worker.store.engine import is_sqlite, open_engine
from worker.store.grants import apply_grants
from worker.store.schema_version import is_migrated, migrate

GRANTS: Final = Path(config.__file__).parent / "deploy" / "postgres" / "grants.sql"

app = typer.Typer(help="Look after the database.", no_args_is_help=True)


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


@app.command()
def grant(as_json: Json = False) -> None:
    """Grant each role of a fleet what it needs and nothing else; as the owner, after each upgrade. PostgreSQL only."""
    engine = open_engine(load_settings().database(), pool_size=1)
    try:
        apply_grants(engine, GRANTS.read_text(encoding="utf-8"))
    finally:
        engine.dispose()
    output.put({"granted": True}, as_json=as_json, lines=["each role has what it needs, and nothing else"])
