"""`locseal rejections`: what intake refused, and why. Bodies are there only where the settings keep them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from worker.cli import output
from worker.cli.installation import PAGE, Before, Limit, database, page_key, read_page_key
from worker.cli.output import Json, Refused, moment
from worker.store.engine import reading
from worker.store.rejections import find_rejection, list_rejections

app = typer.Typer(help="See what intake refused.", no_args_is_help=True)


@app.command("list")
def show_list(limit: Limit = PAGE, before: Before = None, as_json: Json = False) -> None:
    """List rejections, the latest first: one row for each document, code and path."""
    key = read_page_key(before)
    if key is not None and not key[1].isdecimal():
        raise typer.BadParameter("expected the `next` that a page printed", param_hint="--before")
    with database() as engine, reading(engine) as conn:
        found = list_rejections(conn, limit=limit, before=None if key is None else (key[0], int(key[1])))
    following = page_key(found[-1].last_at, found[-1].rejection_id) if len(found) == limit else None
    rows = [
        (one.rejection_id, one.code, one.path or None, one.message, one.times, one.size_bytes, moment(one.last_at))
        for one in found
    ]
    columns = ("id", "code", "path", "message", "times", "bytes", "last")
    lines = output.table(columns, rows, empty="intake has refused nothing")
    if following is not None:
        lines.append(f"more: --before {following}")
    listed = [{name: value for name, value in asdict(one).items() if name != "body"} for one in found]
    output.put({"rejections": listed, "next": following}, as_json=as_json, lines=lines)


@app.command()
def show(
    rejection: Annotated[int, typer.Argument(help="The id of the rejection.")],
    body: Annotated[bool, typer.Option("--body", help="Print the refused document too, where it was kept.")] = False,
    as_json: Json = False,
) -> None:
    """Show one rejection."""
    with database() as engine, reading(engine) as conn:
        found = find_rejection(conn, rejection)
    if found is None:
        raise Refused("rejection.unknown", "there is no such rejection", allowed=["locseal rejections list"])
    shown = asdict(found) | {"is_body_kept": found.body is not None}
    if not body:
        del shown["body"]
    lines = [
        f"{found.code}" + (f" at {found.path}" if found.path else ""),
        f"by {found.message}, {found.size_bytes} bytes, sha256 {found.document_sha256}",
        f"first {moment(found.first_at)}, last {moment(found.last_at)}, {found.times} times",
        "mend the document and send it again; a rejection needs no clearing",
    ]
    if found.body is not None:
        lines += ["", found.body] if body else ["the document was kept: --body prints it"]
    output.put(shown, as_json=as_json, lines=lines)
