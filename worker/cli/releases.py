"""`locseal releases`: see what each change event waits for, follow one, and take one back."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from config.settings import Settings, load_settings
from worker.adapters.keys import FileKeys
from worker.cli import output
from worker.cli.installation import PAGE, Before, Limit, database, page_key, policy_of, read_page_key
from worker.cli.keys import Directory, key_directories
from worker.cli.output import Json, Refused, moment
from worker.cli.sending import WaitCommand, send
from worker.domain.messages import RELEASE_WITHDRAW
from worker.domain.submission import parse_withdrawal
from worker.domain.waiting import LocaleFacts, next_commands, waiting_sentence
from worker.store.engine import reading
from worker.store.views import EventView, find_event_view, list_events, site_of_event

app = typer.Typer(help="See and withdraw change events.", no_args_is_help=True)

STATES = ("open", "delivered", "superseded", "withdrawn")
Event = Annotated[str, typer.Argument(help="The event's id.")]


@app.command("list")
def show_list(
    state: Annotated[str | None, typer.Option(help=f"Only one state: {', '.join(STATES)}.")] = None,
    site: Annotated[str | None, typer.Option(help="Only one site.")] = None,
    version: Annotated[str | None, typer.Option(help="Only one website version.")] = None,
    limit: Limit = PAGE,
    before: Before = None,
    as_json: Json = False,
) -> None:
    """List change events, newest first."""
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"states are {', '.join(STATES)}", param_hint="--state")
    with database() as engine, reading(engine) as conn:
        found = list_events(
            conn, limit=limit, before=read_page_key(before), state=state, site_id=site, website_version=version
        )
    following = page_key(found[-1].created_at, found[-1].event_id) if len(found) == limit else None
    rows = [
        (
            one.event_id,
            one.state,
            f"{one.approved}/{one.locales}",
            one.delivery_status if one.delivery_code is None else f"{one.delivery_status} ({one.delivery_code})",
            one.site_id,
            one.website_version,
            moment(one.created_at),
        )
        for one in found
    ]
    columns = ("event", "state", "approved", "delivery", "site", "version", "created")
    lines = output.table(columns, rows, empty="no such change event")
    if following is not None:
        lines.append(f"more: --before {following}")
    output.put({"events": [asdict(one) for one in found], "next": following}, as_json=as_json, lines=lines)


@app.command()
def show(event: Event, as_json: Json = False) -> None:
    """Show one event: what it waits for, each locale, its deliveries, the documents about it, and what to do next."""
    settings = load_settings()
    with database(settings) as engine:
        view = _view(settings, engine, event)
    output.put(_json(view), as_json=as_json, lines=_lines(view))


@app.command()
def watch(
    event: Event,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    as_json: Json = False,
) -> None:
    """Follow one event until it has ended; print its sentence whenever it changes (with --json one object a line)."""
    settings = load_settings()
    said = ""
    with database(settings) as engine:
        while True:
            view = _view(settings, engine, event)
            sentence = waiting_sentence(view.facts)
            if sentence != said:
                output.put_line(_json(view) if as_json else f"{moment(view.facts.now)}  {sentence}")
                said = sentence
            if view.facts.state != "open":
                return
            time.sleep(interval)


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


def _json(view: EventView) -> dict[str, Any]:
    """Return an event as JSON; `waiting` is the sentence, `next` the commands."""
    facts = view.facts
    return {
        "event_id": view.event_id,
        "state": facts.state,
        "waiting": waiting_sentence(facts),
        "next": list(next_commands(facts)),
        "site_id": view.site_id,
        "website_version": view.website_version,
        "source_id": view.source_id,
        "source_sequence": view.source_sequence,
        "plan_id": view.plan_id,
        "superseded_by": facts.superseded_by,
        "created_at": view.created_at,
        "now": facts.now,
        "locales": [asdict(one) for one in facts.locales],
        "deliveries": [asdict(one) for one in view.deliveries],
        "documents": [{**asdict(one), "state": "accepted"} for one in view.documents],
    }


def _lines(view: EventView) -> list[str]:
    """Return an event for people."""
    facts = view.facts
    lines = [
        f"{view.event_id}: {facts.state}",
        waiting_sentence(facts),
        f"site {view.site_id}, version {view.website_version}, since {moment(view.created_at)}",
        f"source {view.source_id}, sequence {view.source_sequence}",
        "",
        *output.table(
            ("locale", "state", "attempts", "next attempt or expiry", "code"),
            [_locale(one) for one in facts.locales],
            empty="no locale",
        ),
    ]
    if view.deliveries:
        rows = [
            (one.delivery_id, one.status, f"{one.attempts}/{one.max_attempts}", one.code) for one in view.deliveries
        ]
        lines += ["", *output.table(("delivery", "state", "attempts", "code"), rows, empty="")]
    documents = [(one.document_sha256, one.kind, one.kid, moment(one.accepted_at)) for one in view.documents]
    lines += ["", *output.table(("document", "kind", "signed by", "accepted"), documents, empty="no document")]
    return [*lines, *(f"next: {command}" for command in next_commands(facts))]


def _locale(one: LocaleFacts) -> tuple[object, ...]:
    """Return a locale as a row of the table."""
    attempts = f"{one.attempts}/{one.max_attempts}" if one.request_id is not None else None
    at = {
        "approved": one.approval_expires_at,
        "leased": one.lease_expires_at,
        "due": one.next_attempt_at,
        "retrying": one.next_attempt_at,
    }.get(one.state)
    return one.target_locale, one.state, attempts, moment(at), one.code
