"""How a run ended: what the database says of each event, what the sandbox counted, and whether the two agree."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, text

from tests.chaos.plan import Sending
from worker.cli.local_stage import Stage
from worker.domain.breaker import is_outage
from worker.domain.review import NOT_YET
from worker.store.engine import reading

OPEN_ROWS: Final = "status IN ('pending', 'leased', 'retry_wait')"
ENDED: Final = {"delivered": "published", "superseded": "superseded", "withdrawn": "withdrawn"}


@dataclass(frozen=True, kw_only=True)
class EventEnd:
    """Where an event stands: published, superseded, withdrawn, failed (with its code), or still waiting."""

    state: str
    code: str | None = None


@dataclass(frozen=True, kw_only=True)
class Calls:
    """Provider calls about one request. `counted` are without those that answered "not yet" and without failed probes."""

    arrivals: int
    counted: int
    attempts: int
    handed_back: int  # claims that are not among the attempts
    max_attempts: int


def ends_of(stage: Stage) -> dict[str, EventEnd]:
    """Return where every event that was accepted stands. Raises `Unavailable`."""
    with reading(stage.engine) as conn:
        busy = set(_column(conn, f"SELECT DISTINCT event_id FROM evidence WHERE {OPEN_ROWS}"))
        busy |= set(_column(conn, f"SELECT DISTINCT event_id FROM deliveries WHERE {OPEN_ROWS}"))
        refused = _codes(conn, "SELECT event_id, last_error_code FROM evidence WHERE status = 'failed'")
        # The newest delivery decides; an older one may have given way to it.
        refused |= _codes(
            conn, "SELECT event_id, last_error_code FROM deliveries WHERE status = 'failed' ORDER BY created_at"
        )
        events = conn.execute(text("SELECT event_id, state FROM events")).all()
    return {row.event_id: _end(row.state, row.event_id in busy, refused.get(row.event_id)) for row in events}


def _end(state: str, is_busy: bool, code: str | None) -> EventEnd:
    if state in ENDED:
        return EventEnd(state=ENDED[state])
    if code is not None and not is_busy:
        return EventEnd(state="failed", code=code)
    return EventEnd(state="waiting", code=code)


def unknown_outcomes(stage: Stage) -> list[str]:
    """Return the deliveries that wait for an operator to say what became of them."""
    with reading(stage.engine) as conn:
        return _column(
            conn,
            "SELECT delivery_id FROM deliveries WHERE status = 'failed' AND last_error_code = 'cms.outcome_unknown'",
        )


def is_quiet(stage: Stage) -> bool:
    """Tell whether nothing is open any more: no row is due, leased or waiting for its time."""
    with reading(stage.engine) as conn:
        rows = "SELECT count(*) FROM {} WHERE " + OPEN_ROWS
        busy = sum(int(conn.execute(text(rows.format(table))).scalar_one()) for table in ("evidence", "deliveries"))
    return busy == 0 and all(end.state != "waiting" for end in ends_of(stage).values())


def sandbox_state(stage: Stage) -> dict[str, Any]:
    """Return what the sandbox counted: publications, posts, verdicts, and arrivals by request."""
    with urllib.request.urlopen(f"{stage.sandbox_url}/control?requests", timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def calls_by_request(stage: Stage, arrivals: dict[str, int]) -> dict[str, Calls]:
    """Return the provider calls about each evidence revision beside what the database counts of it."""
    handed_back: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    with reading(stage.engine) as conn:
        for row in conn.execute(
            text("SELECT subject_id, code FROM setbacks WHERE subject = 'evidence' AND outcome = 'released'")
        ):
            handed_back[row.subject_id] += 1
            uncounted[row.subject_id] += int(row.code == NOT_YET or is_outage(row.code, retryable=True))
        rows = conn.execute(text("SELECT request_id, attempts, max_attempts FROM evidence")).all()
    return {
        row.request_id: Calls(
            arrivals=arrivals.get(row.request_id, 0),
            counted=max(0, arrivals.get(row.request_id, 0) - uncounted[row.request_id]),
            attempts=row.attempts,
            handed_back=handed_back[row.request_id],
            max_attempts=row.max_attempts,
        )
        for row in rows
    }


@dataclass(frozen=True, kw_only=True)
class Publications:
    """What the sandbox's CMS has live, held against what was sent. Each list names events."""

    twice: list[str]
    partial: list[str]
    overwritten: list[str]  # older text after newer
    unrecorded: list[str]  # live, and the database does not say so
    missing: list[str]  # the database says live, and it is not
    live: int


def judge_publications(
    events: tuple[Sending, ...], ends: dict[str, EventEnd], published: list[dict[str, Any]]
) -> Publications:
    """Return what is wrong with the publications, in the order in which they went live."""
    sent = {one.event_id: one for one in events}
    times = Counter(one["event_id"] for one in published)
    newest: dict[tuple[str, str], int] = {}
    partial, overwritten = [], []
    for one in published:
        source = (one["site_id"], one["source_id"])
        if one["source_sequence"] <= newest.get(source, 0):
            overwritten.append(one["event_id"])
        newest[source] = max(newest.get(source, 0), one["source_sequence"])
        event = sent.get(one["event_id"])
        if event is None or one["target_sha256"] != event.targets:
            partial.append(one["event_id"])
    recorded = {event_id for event_id, end in ends.items() if end.state == "published"}
    return Publications(
        twice=sorted(event_id for event_id, count in times.items() if count > 1),
        partial=partial,
        overwritten=overwritten,
        unrecorded=sorted(times.keys() - recorded),
        missing=sorted(recorded - times.keys()),
        live=len(published),
    )


def _column(conn: Connection, statement: str) -> list[str]:
    return [str(row[0]) for row in conn.execute(text(statement))]


def _codes(conn: Connection, statement: str) -> dict[str, str]:
    return {str(row[0]): str(row[1]) for row in conn.execute(text(statement))}
