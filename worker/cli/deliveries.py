"""`locseal deliveries`: see the outbox, let a failed delivery be followed, and settle one whose outcome is unknown."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import Annotated

import typer

from worker.cli import output
from worker.cli.installation import PAGE, Before, Limit, database, page_key, read_page_key, services
from worker.cli.output import Json, moment
from worker.domain.attempt import STATUSES
from worker.domain.waiting import delivery_sentence
from worker.flow.reconcile_delivery import OperatorsWord, reconcile_delivery
from worker.flow.retry_delivery import retry_delivery
from worker.store.delivery_views import list_deliveries
from worker.store.engine import read_clock, reading

app = typer.Typer(help="See, retry and reconcile deliveries.", no_args_is_help=True)


@app.command("list")
def show_list(
    state: Annotated[str | None, typer.Option(help=f"Only one state: {', '.join(STATUSES)}.")] = None,
    event: Annotated[str | None, typer.Option(help="Only one event.")] = None,
    site: Annotated[str | None, typer.Option(help="Only one site.")] = None,
    code: Annotated[str | None, typer.Option(help="Only one error code, such as cms.outcome_unknown.")] = None,
    in_doubt: Annotated[bool, typer.Option("--in-doubt", help="Only those sent without a verified answer.")] = False,
    limit: Limit = PAGE,
    before: Before = None,
    as_json: Json = False,
) -> None:
    """List deliveries, newest first, each with what it waits for."""
    if state is not None and state not in STATUSES:
        raise typer.BadParameter(f"states are {', '.join(STATUSES)}", param_hint="--state")
    with database() as engine, reading(engine) as conn:
        found = list_deliveries(
            conn,
            limit=limit,
            before=read_page_key(before),
            status=state,
            event_id=event,
            site_id=site,
            code=code,
            in_doubt=True if in_doubt else None,
        )
        now = read_clock(conn, None)
    following = page_key(found[-1].created_at, found[-1].delivery_id) if len(found) == limit else None
    rows = [
        (one.delivery_id, one.event_id, one.status, moment(one.created_at), delivery_sentence(one, now=now))
        for one in found
    ]
    lines = output.table(("delivery", "event", "state", "prepared", "what happens"), rows, empty="no such delivery")
    if following is not None:
        lines.append(f"more: --before {following}")
    listed = [{**asdict(one), "waiting": delivery_sentence(one, now=now)} for one in found]
    output.put({"deliveries": listed, "next": following}, as_json=as_json, lines=lines)


@app.command()
def retry(
    event: Annotated[str, typer.Argument(help="The event's id.")],
    as_json: Json = False,
) -> None:
    """Let an event whose delivery failed be delivered after all; refused where the CMS may have it."""
    with services() as used:
        outcome = retry_delivery(used, event)
    lines = [f"{event} may be delivered again; the fleet prepares it as soon as every locale is approved"]
    output.put(outcome.to_json(), as_json=as_json, lines=[*lines, f"next: locseal releases show {event}"])


@app.command()
def reconcile(
    delivery: Annotated[str, typer.Argument(help="The delivery's id.")],
    accepted: Annotated[bool, typer.Option("--accepted", help="My word: the CMS has exactly this delivery.")] = False,
    closed: Annotated[bool, typer.Option("--closed", help="My word: the CMS does not have it and never will.")] = False,
    reason: Annotated[str, typer.Option(help="How you know; kept for auditors. Needed for a word of yours.")] = "",
    operator: Annotated[str | None, typer.Option(help="Who says so. Default: the user running this.")] = None,
    as_json: Json = False,
) -> None:
    """Settle a delivery with cms.outcome_unknown: by asking the CMS, or by your own word on what it has."""
    if accepted and closed:
        raise typer.BadParameter("--accepted and --closed contradict each other")
    if (accepted or closed) and not reason.strip():
        raise typer.BadParameter("say how you know: --reason TEXT", param_hint="--reason")
    word = None
    if accepted or closed:
        word = OperatorsWord(
            outcome="accepted" if accepted else "closed", operator=operator or getpass.getuser(), reason=reason.strip()
        )
    with services() as used:
        outcome = reconcile_delivery(used, delivery, word)
    lines = [
        f"{delivery}: the CMS has it; the event is delivered"
        if outcome.status == "delivered"
        else f"{delivery}: closed; next: locseal deliveries retry {outcome.event_id}"
    ]
    output.put(outcome.to_json(), as_json=as_json, lines=lines)
