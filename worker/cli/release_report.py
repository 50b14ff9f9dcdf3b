"""A change event as `locseal releases` prints it: one JSON object, plain lines, or a live table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from worker.cli import output
from worker.cli.output import counted, moment
from worker.domain.waiting import EventFacts, LocaleFacts, next_commands, waiting_sentence
from worker.store.event_lists import EventLine
from worker.store.views import EventView

COLOURS: Final = {"approved": "green", "failed": "red", "lapsed": "yellow", "leased": "cyan", "retrying": "yellow"}
LINE_COLUMNS: Final = ("event", "state", "approved", "delivery", "site", "version", "created")


def event_json(view: EventView) -> dict[str, Any]:
    """Return an event as JSON; `waiting` is the sentence, `next` the commands, of the event and of each locale."""
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
        "locales": [
            {**asdict(one), "waiting": locale_sentence(facts, one), "next": list(_next_of(facts, one))}
            for one in facts.locales
        ],
        "deliveries": [asdict(one) for one in view.deliveries],
        "documents": [{**asdict(one), "state": "accepted"} for one in view.documents],
    }


def event_lines(view: EventView) -> list[str]:
    """Return an event for people."""
    facts = view.facts
    lines = [
        f"{view.event_id}: {facts.state}",
        waiting_sentence(facts),
        f"site {view.site_id}, version {view.website_version}, since {moment(view.created_at)}",
        f"source {view.source_id}, sequence {view.source_sequence}",
        "",
        *output.table(
            ("locale", "state", "attempts", "code", "what it waits for"),
            [_locale(facts, one) for one in facts.locales],
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


def event_live(view: EventView) -> Group:
    """Return an event as a table that is drawn again and again."""
    facts = view.facts
    approved = sum(one.state == "approved" for one in facts.locales)
    head = f"{view.event_id}: {facts.state}, {approved} of {counted(len(facts.locales), 'locale')} approved"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("locale", "state", "attempts", "code", "what it waits for"):
        table.add_column(name.upper())
    for one in facts.locales:
        cells = [Text("-" if cell is None else str(cell)) for cell in _locale(facts, one)]
        cells[1].stylize(COLOURS.get(one.state, ""))
        table.add_row(*cells)
    following = [Text(f"next: {command}") for command in next_commands(facts)]
    return Group(Text(head, style="bold"), Text(waiting_sentence(facts)), table, *following)


def line_cells(one: EventLine) -> tuple[object, ...]:
    """Return an event of a list as a row under `LINE_COLUMNS`."""
    delivery = one.delivery_status if one.delivery_code is None else f"{one.delivery_status} ({one.delivery_code})"
    approved = f"{one.approved}/{one.locales}"
    return one.event_id, one.state, approved, delivery, one.site_id, one.website_version, moment(one.created_at)


def lines_live(found: Sequence[EventLine]) -> Table:
    """Return a list of events as a table that is drawn again and again."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in LINE_COLUMNS:
        table.add_column(name.upper())
    for one in found:
        table.add_row(*(Text("-" if cell is None else str(cell)) for cell in line_cells(one)))
    return table


def locale_sentence(facts: EventFacts, one: LocaleFacts) -> str:
    """Return what one locale waits for, until when, and when it gives up; of an ended event, what became of it."""
    if one.state == "approved":
        return f"approved until {moment(one.approval_expires_at)}"
    if facts.state != "open":
        return f"not approved when the event was {facts.state}"
    return waiting_sentence(_alone(facts, one))


def _next_of(facts: EventFacts, one: LocaleFacts) -> tuple[str, ...]:
    return () if one.state == "approved" else next_commands(_alone(facts, one))


def _alone(facts: EventFacts, one: LocaleFacts) -> EventFacts:
    return replace(facts, locales=(one,), delivery=None, older_delivery_id=None, needs_permit=False)


def _locale(facts: EventFacts, one: LocaleFacts) -> tuple[object, ...]:
    attempts = f"{one.attempts}/{one.max_attempts}" if one.request_id is not None else None
    return one.target_locale, one.state, attempts, one.code, locale_sentence(facts, one)
