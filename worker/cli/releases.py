"""`locseal releases`: see what each change event waits for, follow one, and take one back."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from config.settings import Settings, load_settings
from worker.adapters.keys import FileKeys
from worker.cli import output
from worker.cli.installation import PAGE, Before, Limit, database, page_key, policy_of, read_page_key
from worker.cli.keys import Directory, key_directories
from worker.cli.output import Json, Refused, moment
from worker.cli.release_report import (
    LINE_COLUMNS,
    event_json,
    event_lines,
    event_live,
    line_cells,
    lines_live,
)
from worker.cli.sending import WaitCommand, send
from worker.cli.spans import required_span
from worker.domain.messages import RELEASE_WITHDRAW
from worker.domain.submission import parse_withdrawal
from worker.domain.waiting import waiting_sentence
from worker.store.engine import reading
from worker.store.event_lists import EventFilter, list_events
from worker.store.views import EventView, find_event_view, site_of_event

app = typer.Typer(help="See and withdraw change events.", no_args_is_help=True)

STATES = ("open", "delivered", "superseded", "withdrawn")
WATCHED = 30  # events that are followed at once

Event = Annotated[str, typer.Argument(help="The event's id.")]
State = Annotated[str | None, typer.Option(help=f"Only one state: {', '.join(STATES)}.")]
Site = Annotated[str | None, typer.Option(help="Only one site.")]
Version = Annotated[str | None, typer.Option(help="Only one website version.")]
Locale = Annotated[str | None, typer.Option(help="Only events that this locale is part of.")]
Code = Annotated[str | None, typer.Option(help="Only events of which a locale or a delivery stopped with this code.")]
OlderThan = Annotated[str | None, typer.Option(help="Only events that came longer ago than this: 12h, 7d.")]
NewerThan = Annotated[str | None, typer.Option(help="Only events that came since this long ago: 12h, 7d.")]


@app.command("list")
def show_list(
    state: State = None,
    site: Site = None,
    version: Version = None,
    locale: Locale = None,
    code: Code = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    limit: Limit = PAGE,
    before: Before = None,
    as_json: Json = False,
) -> None:
    """List change events, newest first."""
    wanted = _wanted(state, site, version, locale, code, older_than, newer_than)
    with database() as engine, reading(engine) as conn:
        found = list_events(conn, wanted, limit=limit, before=read_page_key(before))
    following = page_key(found[-1].created_at, found[-1].event_id) if len(found) == limit else None
    lines = output.table(LINE_COLUMNS, [line_cells(one) for one in found], empty="no such change event")
    if following is not None:
        lines.append(f"more: --before {following}")
    output.put({"events": [asdict(one) for one in found], "next": following}, as_json=as_json, lines=lines)


@app.command()
def show(event: Event, as_json: Json = False) -> None:
    """Show one event: what it waits for, each locale, its deliveries, the documents about it, and what to do next."""
    settings = load_settings()
    with database(settings) as engine:
        view = _view(settings, engine, event)
    output.put(event_json(view), as_json=as_json, lines=event_lines(view))


@app.command()
def watch(
    event: Annotated[str | None, typer.Argument(help="The event's id; left out: the newest open events.")] = None,
    site: Site = None,
    version: Version = None,
    locale: Locale = None,
    code: Code = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Follow one event until it has ended, locale by locale; or, without one, the newest open events until none is left.

    On a terminal the table is drawn again at every look. Elsewhere a line is printed whenever something changes, with
    --json one object a line.
    """
    settings = load_settings()
    wanted = _wanted("open", site, version, locale, code, older_than, newer_than)
    if event is not None and wanted != EventFilter(state="open"):
        raise typer.BadParameter("name an event, or filters, not both")
    console = Console()
    is_live = console.is_terminal and not as_json
    with database(settings) as engine, Live(console=console, auto_refresh=False) if is_live else nullcontext() as live:
        said: frozenset[str] = frozenset()
        while True:
            shown, lines, is_over = _look(settings, engine, event, wanted, as_json=as_json)
            if live is not None:
                live.update(shown, refresh=True)
            for key, line in lines.items() if live is None else ():
                if key not in said:
                    output.put_line(line)
            said = frozenset(lines)
            if is_over:
                break
            time.sleep(interval)
    if event is None and not as_json:
        output.put_line("no such event is open")


def _look(
    settings: Settings, engine: Any, event: str | None, wanted: EventFilter, *, as_json: bool
) -> tuple[RenderableType, dict[str, Any], bool]:
    """Return what one look shows: the live table, the lines by what makes them new, and whether the watch is over."""
    if event is not None:
        view = _view(settings, engine, event)
        sentence = waiting_sentence(view.facts)
        line = event_json(view) if as_json else f"{moment(view.facts.now)}  {sentence}"
        return event_live(view), {sentence: line}, view.facts.state != "open"
    with reading(engine) as conn:
        found = list_events(conn, wanted, limit=WATCHED)
    lines: dict[str, Any] = {}
    for one in found:
        said = "  ".join(str(cell) for cell in line_cells(one) if cell is not None)
        lines[said] = asdict(one) if as_json else said
    return lines_live(found), lines, not found


def _wanted(
    state: str | None,
    site: str | None,
    version: str | None,
    locale: str | None,
    code: str | None,
    older_than: str | None,
    newer_than: str | None,
) -> EventFilter:
    """Return the filter that some options make."""
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"states are {', '.join(STATES)}", param_hint="--state")
    return EventFilter(
        state=state,
        site_id=site,
        website_version=version,
        target_locale=locale,
        code=code,
        least_age_seconds=None if older_than is None else required_span(older_than, "--older-than"),
        most_age_seconds=None if newer_than is None else required_span(newer_than, "--newer-than"),
    )


@app.command(cls=WaitCommand)
def withdraw(
    event: Event,
    wait: Annotated[
        float | None, typer.Option(help="Wait until it is accepted or rejected; 60 s where no number follows.", min=0)
    ] = None,
    site: Annotated[str | None, typer.Option(help="The event's site, where the database does not know it yet.")] = None,
    keys: Directory = None,
    as_json: Json = False,
) -> None:
    """Withdraw an unpublished event, signed with this machine's submission key."""
    if site is None:
        with database() as engine, reading(engine) as conn:
            site = site_of_event(conn, event)
        if site is None:
            raise _unknown(event)
    document = {"schema": "locseal.withdrawal.v1", "event_id": event, "site_id": site}
    parse_withdrawal(document)
    signed = FileKeys(*key_directories(keys)).sign("submission", document)
    sent = send(RELEASE_WITHDRAW, "withdrawal", signed.to_text(), wait_seconds=wait)
    lines = [f"{sent.state}: the withdrawal of {event}", f"next: locseal releases show {event}"]
    output.put({**sent.to_json(), "event_id": event}, as_json=as_json, lines=lines)


def _view(settings: Settings, engine: Any, event_id: str) -> EventView:
    """Read one event, judged by its site's policy as it is now."""
    with reading(engine) as conn:
        site_id = site_of_event(conn, event_id)
        policy = policy_of(settings, site_id) if site_id is not None else None
        view = (
            find_event_view(
                conn,
                event_id,
                accepted=policy.accepted,
                is_guided=policy.publication == "guided",
                review_deadline_seconds=policy.review_deadline_seconds,
            )
            if policy is not None
            else None
        )
    if view is None:
        raise _unknown(event_id)
    return view


def _unknown(event_id: str) -> Refused:
    return Refused(
        "coordinator.event_id.unknown",
        f"no event {event_id!r} was accepted yet",
        allowed=["locseal releases list", "locseal rejections list", "locseal submit FILE --wait"],
    )
