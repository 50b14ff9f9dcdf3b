"""`locseal breakers`: which review routes and CMSs the fleet leaves alone for now, since when they fail, and until when."""

from __future__ import annotations

from dataclasses import asdict

import typer

from worker.cli import output
from worker.cli.installation import database
from worker.cli.output import Json, moment
from worker.store.breakers import list_breakers
from worker.store.engine import reading

app = typer.Typer(help="See which providers and CMSs are left alone.", no_args_is_help=True)


@app.callback()
def _breakers() -> None:
    """Make `app` a group although it has one command."""


@app.command("list")
def show_list(as_json: Json = False) -> None:
    """List the open breakers: until when, why, who opened it, and who is trying that side now."""
    with database() as engine, reading(engine) as conn:
        found = list_breakers(conn, now=None)
    rows = [
        (one.kind, one.name, moment(one.open_until_at), one.reason, one.opened_by, one.failures, _next(one.state))
        for one in found
    ]
    columns = ("kind", "name", "open until", "reason", "opened by", "failures", "what happens")
    lines = output.table(columns, rows, empty="no breaker is open")
    output.put({"breakers": [asdict(one) for one in found]}, as_json=as_json, lines=lines)


def _next(state: str) -> str:
    return {
        "closed_until": "nobody calls before then",
        "probed": "one call is trying it now",
        "to_be_probed": "the next due call tries it",
    }[state]
