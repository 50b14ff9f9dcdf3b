"""Change events as rows: inserted with their plan, superseded, withdrawn, found again.

An event is `open` until it is delivered, superseded or withdrawn. Under the source lock at most one event of a source
is open: the one with the highest sequence. Evidence and deliveries of an event are closed in `revisions` and
`deliveries`; the locales of its plan are in `plan_jobs`, written here because a plan is never written without an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Dialect, String, bindparam, select, update

from worker.domain.canonical import parse_strict, sha256_hex
from worker.domain.change import ChangeEvent, parse_change
from worker.domain.submission import LONGEST_SUBMISSION_BYTES
from worker.store.engine import Moment, clock, json_rows, row_source
from worker.store.prepared import prepared
from worker.store.schema import events, plan_jobs
from worker.store.upserts import Insertion, insert_into

EVENT_COLUMNS = ("event_id", "site_id", "source_id", "source_sequence", "plan_id", "event_sha256", "state")


@dataclass(frozen=True, kw_only=True)
class EventRow:
    """An event without its text."""

    event_id: str
    site_id: str
    source_id: str
    source_sequence: int
    plan_id: str
    event_sha256: str
    state: str


def find_event(conn: Connection, event_id: str) -> EventRow | None:
    """Return an event by its id, or None."""
    columns = (events.c[name] for name in EVENT_COLUMNS)
    row = conn.execute(select(*columns).where(events.c.event_id == event_id)).mappings().one_or_none()
    return None if row is None else EventRow(**row)


def insert_event(
    conn: Connection,
    event: EventRow,
    *,
    website_version: str,
    document: str,
    locales: Sequence[tuple[str, str]],
    superseded_by: str | None,
    now: float | None,
) -> None:
    """Insert a new event and its plan; `locales` are the (job id, target locale) pairs of the plan.

    A plan that another event brought already stays as it is: its id is derived from its content.
    """
    at = clock(conn, now)
    conn.execute(
        events.insert().values(
            **{name: getattr(event, name) for name in EVENT_COLUMNS},
            website_version=website_version,
            document=document,
            superseded_by=superseded_by,
            created_at=at,
            updated_at=at,
        )
    )
    planning, _ = _planning(conn, None)
    planned = json_rows([{"job_id": job_id, "target_locale": locale} for job_id, locale in locales])
    conn.execute(planning, {"plan_id": event.plan_id, "planned": planned})


@prepared
def _planning(bind: Dialect, _now: Moment) -> Insertion:
    planned = row_source(bind, "planned", {"job_id": String, "target_locale": String}, "planned")
    rows = select(bindparam("plan_id", type_=String), planned.c.job_id, planned.c.target_locale)
    return (
        insert_into(bind, plan_jobs)
        .from_select(["plan_id", "job_id", "target_locale"], rows.order_by(planned.c.job_id))
        .on_conflict_do_nothing()
    )


def supersede_older(
    conn: Connection, *, site_id: str, source_id: str, below_sequence: int, superseded_by: str, now: float | None
) -> tuple[str, ...]:
    """Mark every older open event of a source superseded and return their ids. Needs the source lock."""
    older = (
        update(events)
        .where(
            events.c.site_id == site_id,
            events.c.source_id == source_id,
            events.c.source_sequence < below_sequence,
            events.c.state == "open",
        )
        .values(state="superseded", superseded_by=superseded_by, updated_at=clock(conn, now))
        .returning(events.c.event_id)
    )
    return tuple(sorted(conn.execute(older).scalars()))


def mark_withdrawn(conn: Connection, event_id: str, *, now: float | None) -> None:
    """Mark an event withdrawn that was not published; whoever calls has checked its deliveries under the source lock."""
    conn.execute(
        update(events)
        .where(events.c.event_id == event_id, events.c.state.in_(("open", "superseded")))
        .values(state="withdrawn", updated_at=clock(conn, now))
    )


def open_events_with(conn: Connection, job_ids: Iterable[str], *, besides: str) -> tuple[ChangeEvent, ...]:
    """Return the open events, besides one, whose plans contain any of these jobs.

    An event whose stored text is not what was accepted is left out: whoever prepares it stops at it with a code.
    """
    wanted = row_source(conn, "wanted", {"job_id": String}, "wanted")
    plans = select(plan_jobs.c.plan_id).where(plan_jobs.c.job_id.in_(select(wanted.c.job_id)))
    found = conn.execute(
        select(events.c.event_sha256, events.c.document)
        .where(events.c.plan_id.in_(plans), events.c.state == "open", events.c.event_id != besides)
        .order_by(events.c.event_id),
        {"wanted": json_rows([{"job_id": job_id} for job_id in sorted(job_ids)])},
    )
    return tuple(
        parse_change(parse_strict(row.document, max_bytes=LONGEST_SUBMISSION_BYTES))
        for row in found
        if sha256_hex(row.document) == row.event_sha256
    )
