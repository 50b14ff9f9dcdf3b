"""`locseal hold`: keep everything of a site or an event from being removed, and let it go again."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import Annotated

import typer

from worker.cli import output
from worker.cli.installation import database
from worker.cli.output import Json, moment
from worker.cli.spans import said_by
from worker.domain.retention import LegalHold
from worker.store.engine import reading, writing
from worker.store.legal_holds import list_holds, place_hold, release_hold

app = typer.Typer(help="Legal holds: what may not be removed.", no_args_is_help=True)

Reason = Annotated[str, typer.Option(help="Why, in one line; kept for auditors.")]
Owner = Annotated[str | None, typer.Option(help="Who says so; the name you are logged in by if left out.")]
RequestId = Annotated[
    str | None,
    typer.Option(help="Names this command: sent again under the same id, it does nothing more. Made by default."),
]


@app.command()
def place(
    reason: Reason,
    site: Annotated[str | None, typer.Option(help="Keep everything of this site.")] = None,
    event: Annotated[str | None, typer.Option(help="Keep everything of this event.")] = None,
    owner: Owner = None,
    request_id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Place a hold. While any is in force, rejections are kept too, since they belong to no site."""
    if (site is None) == (event is None):
        raise typer.BadParameter("name a site or an event")
    named = request_id or f"operator-{secrets.token_hex(8)}"
    with database() as engine:
        placed, is_new = writing(
            engine,
            lambda conn: place_hold(
                conn,
                scope="event" if site is None else "site",
                name=str(event if site is None else site),
                reason=reason,
                owner=said_by(owner),
                request_id=named,
                now=None,
            ),
        )
    line = f"{placed.hold_id}: nothing of {placed.scope} {placed.name} is removed from now on"
    answer = {**asdict(placed), "is_new": is_new, "request_id": named}
    output.put(answer, as_json=as_json, lines=[line, f"request id {named}"])


@app.command()
def release(
    hold: Annotated[str, typer.Argument(help="The hold's id; `locseal hold list` shows it.")],
    reason: Reason,
    owner: Owner = None,
    request_id: RequestId = None,
    as_json: Json = False,
) -> None:
    """Release a hold. It stays on record, with who released it and why."""
    named = request_id or f"operator-{secrets.token_hex(8)}"
    with database() as engine:
        released, is_new = writing(
            engine,
            lambda conn: release_hold(conn, hold, reason=reason, owner=said_by(owner), request_id=named, now=None),
        )
    when = f"{moment(released.released_at)} by {released.released_by}"
    line = f"{hold}: released" if is_new else f"{hold}: was released before, at {when}"
    answer = {**asdict(released), "is_new": is_new, "request_id": named}
    output.put(answer, as_json=as_json, lines=[line, f"request id {named}"])


@app.command("list")
def show_list(
    every: Annotated[bool, typer.Option("--all", help="With those that were released.")] = False,
    as_json: Json = False,
) -> None:
    """List the holds in force, oldest first."""
    with database() as engine, reading(engine) as conn:
        found = list_holds(conn, with_released=every)
    columns = ("hold", "keeps", "since", "by", "why", "released")
    lines = output.table(columns, [_row(one) for one in found], empty="no hold is in force")
    output.put({"holds": [asdict(one) for one in found]}, as_json=as_json, lines=lines)


def _row(one: LegalHold) -> tuple[object, ...]:
    released = None if one.released_at is None else f"{moment(one.released_at)} by {one.released_by}"
    return one.hold_id, f"{one.scope} {one.name}", moment(one.placed_at), one.owner, one.reason, released
