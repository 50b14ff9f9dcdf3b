"""How a release run is printed: steps, timeline, what it waits for, and the one command to paste."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from worker.cli import output
from worker.domain.run_visit import Told
from worker.domain.run_waiting import RunFacts, deliveries_sentence, next_command, run_sentence

SHOWN_EVENTS: Final = 20
WIDE: Final = 400  # nothing is cut to the width of a terminal

MARKS: Final = {"pending": ".", "running": ">", "succeeded": "+", "failed": "x", "interrupted": "!"}


def report_json(facts: RunFacts) -> dict[str, Any]:
    """Return a run as JSON: the view, with what it waits for beside it."""
    return {
        **facts.view,
        "waiting": run_sentence(facts),
        "next_command": next_command(facts),
        "executor": asdict(facts.executor),
        "moved_sources": list(facts.moved),
        "deliveries": [asdict(one) for one in facts.standings],
    }


def report_lines(facts: RunFacts) -> list[str]:
    """Return a run as lines for people."""
    view = facts.view
    given, state = view["immutable"]["input"], view["state"]
    lines = [f"{view['run_id']}  {state['status']}", *_about(given, facts), ""]
    lines += _rendered(_steps(state["steps"]))
    lines += ["", *_rendered(_timeline(state["events"][-SHOWN_EVENTS:]))]
    if len(state["events"]) > SHOWN_EVENTS:
        lines.append(f"(the newest {SHOWN_EVENTS} of {len(state['events'])} kept events; --json has them all)")
    lines += ["", run_sentence(facts)]
    command = next_command(facts)
    return [*lines, f"next: {command}"] if command is not None else lines


def list_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return runs as a table."""
    cells = [
        (
            row["run_id"],
            row["status"],
            row.get("channel"),
            row.get("website_version")
            or ", ".join(f"{k} {v}" for k, v in row.get("repo_versions", {}).items())
            or None,
            row.get("event_count"),
            row["recommended_next"]["id"] if "recommended_next" in row else row.get("error"),
            row["recommended_next"]["step_id"] if "recommended_next" in row else None,
        )
        for row in rows
    ]
    return output.table(
        ("run", "status", "site", "version", "events", "next", "step"),
        cells,
        empty="no release run; make one with locseal runs plan SITE VERSION",
    )


def answers_table(told: Iterable[Told]) -> list[str]:
    """Return what is known of each delivery of an interrupted publication, and whose word that is."""
    cells = [
        (one.source_id, one.event_id, one.delivery_id, one.outcome, one.word, one.kid, one.note or None) for one in told
    ]
    return output.table(("source", "event", "delivery", "outcome", "word", "signed by", "note"), cells, empty="nothing")


def _about(given: dict[str, Any], facts: RunFacts) -> list[str]:
    if "website_version" not in given:
        return [f"channel {given['channel']}: {', '.join(f'{k} {v}' for k, v in given['repo_versions'].items())}"]
    named = f"site {given['channel']}, website version {given['website_version']}"
    named += f", {output.counted(len(given['events']), 'event')}"
    return [f"{named}; {deliveries_sentence(facts.standings)}"]


def _steps(steps: Sequence[dict[str, Any]]) -> Table:
    table = _table("", "step", "state", "attempts", "started", "finished", "result", "what it does")
    for step in steps:
        cells = [
            MARKS[step["state"]],
            step["id"],
            step["state"],
            step["attempt_count"] or "-",
            step["started_at"] or "-",
        ]
        cells += [step["finished_at"] or "-", step["result_code"] or "-", step["title"] or step["id"]]
        table.add_row(*(Text(str(cell)) for cell in cells))
    return table


def _timeline(events: Sequence[dict[str, Any]]) -> Table:
    table = _table("#", "at", "what happened", "step", "code")
    for event in events:
        cells = (event["sequence"], event["at"], event["type"].replace("_", " "), event.get("step_id", "-"))
        table.add_row(*(Text(str(cell)) for cell in cells), Text(event.get("result_code", "-")))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name.upper(), no_wrap=True)
    return table


def _rendered(table: Table) -> list[str]:
    """Return a table as plain lines, as wide as they are."""
    written = io.StringIO()
    console = Console(file=written, width=WIDE, force_terminal=False, highlight=False)
    console.print(table)
    return [line.rstrip() for line in written.getvalue().splitlines()]
