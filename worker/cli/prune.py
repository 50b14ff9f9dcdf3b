"""`locseal prune`: remove what is old and nobody needs. Without `--apply` it says how much would go, and removes nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from worker.cli import output
from worker.cli.installation import database
from worker.cli.output import Json, moment
from worker.cli.spans import required_span, said_by
from worker.domain.retention import KINDS, STATES, Retention, retention
from worker.flow.count_prunable import count_prunable
from worker.flow.prune_database import prune_database
from worker.store.engine import read_clock, reading, writing
from worker.store.prunings import Pruning, begin_pruning, list_prunings

app = typer.Typer()


@app.command()
def prune(
    older_than: Annotated[str, typer.Option(help="Only what ended longer ago than this: 90d; at least 7d.")] = "90d",
    kind: Annotated[list[str] | None, typer.Option(help=f"Only these kinds: {', '.join(KINDS)}.")] = None,
    state: Annotated[list[str] | None, typer.Option(help=f"Only of events in: {', '.join(STATES)}.")] = None,
    site: Annotated[str | None, typer.Option(help="Only of this site.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Remove it. Without this nothing changes.")] = False,
    request_id: Annotated[
        str | None, typer.Option(help="Names this pruning: given again, it goes on where it was stopped.")
    ] = None,
    owner: Annotated[str | None, typer.Option(help="Who says so; the name you are logged in by if left out.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the prunings there were; remove nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Remove what is old and no audit needs, in batches that may be stopped. Says first how much, on --apply does it.

    Never touched: signed documents, events, results, approvals, receipts, what was sent, keys, and whatever a legal
    hold keeps (`locseal hold`).
    """
    age = required_span(older_than, "--older-than")
    with database() as engine:
        if show:
            _put_list(engine, as_json=as_json)
            return
        with reading(engine) as conn:
            now = read_clock(conn, None)
        wanted = retention(older_than_seconds=age, now=now, kinds=kind or (), states=state or (), site_id=site)
        if not apply:
            _put(None, count_prunable(engine, wanted), wanted, as_json=as_json)
            return
        named = request_id or f"prune-{secrets.token_hex(8)}"
        if not as_json:
            output.note(f"request id {named}: the same command with it goes on where this one was stopped")
        begun = writing(
            engine, lambda conn: begin_pruning(conn, named, said_by(owner), wanted, age_seconds=age, now=None)
        )
        with _progress(hidden=as_json) as progress:
            ended = prune_database(engine, begun, progress=progress)
    _put(ended, ended.removed, ended.retention, as_json=as_json)


def _put(ended: Pruning | None, counts: Mapping[str, int], wanted: Retention, *, as_json: bool) -> None:
    what = "would go" if ended is None else "went"
    rows = [(kind, counts[kind], said) for kind, said in KINDS.items() if counts.get(kind)]
    lines = [
        f"what ended before {moment(wanted.before_at)}:",
        *output.table(("kind", what, "which"), rows, empty="nothing to remove"),
    ]
    if ended is None and rows:
        lines.append("nothing was removed; add --apply to remove it")
    answer = {
        "applied": ended is not None,
        "pruning_id": None if ended is None else ended.pruning_id,
        "before_at": wanted.before_at,
        "kinds": list(wanted.kinds),
        "states": list(wanted.states),
        "site_id": wanted.site_id,
        "rows": dict(counts),
    }
    output.put(answer, as_json=as_json, lines=lines)


def _put_list(engine: Any, *, as_json: bool) -> None:
    with reading(engine) as conn:
        found = list_prunings(conn, limit=50)
    rows = [
        (
            one.pruning_id,
            one.owner,
            moment(one.started_at),
            moment(one.ended_at) or "stopped",
            one.retention.site_id or "all",
            ", ".join(f"{count} {kind}" for kind, count in one.removed.items()) or "nothing",
        )
        for one in found
    ]
    lines = output.table(("pruning", "by", "begun", "ended", "site", "removed"), rows, empty="nothing was pruned yet")
    shown = [
        {
            "pruning_id": one.pruning_id,
            "owner": one.owner,
            "before_at": one.retention.before_at,
            "kinds": list(one.retention.kinds),
            "states": list(one.retention.states),
            "site_id": one.retention.site_id,
            "rows": dict(one.removed),
            "started_at": one.started_at,
            "ended_at": one.ended_at,
        }
        for one in found
    ]
    output.put({"prunings": shown}, as_json=as_json, lines=lines)


@contextmanager
def _progress(*, hidden: bool) -> Iterator[Any]:
    """Lend what shows the rows removed so far, on a terminal alone."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task("removing", total=None)
        yield lambda removed: bar.update(task, description=f"{sum(removed.values())} rows removed")
