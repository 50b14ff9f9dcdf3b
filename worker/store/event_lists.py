"""Lists of change events for people, newest first, by filters; in bounded statements and constant memory, however many.

Events are walked by their creation along one index, a window at a time, so a filter that fits few of a million rows takes
more statements and none that is long. What a window finds is then completed in one statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from sqlalchemy import ColumnElement, Connection, FromClause, and_, exists, func, or_, select, tuple_

from worker.store.approvals import stands
from worker.store.delivery_views import of_delivery
from worker.store.engine import clock, read_clock
from worker.store.schema import approvals, deliveries, events, evidence, jobs, plan_jobs

WINDOW: Final = 2000  # events that one statement looks at
Key = tuple[float, str]  # `created_at` and `event_id`


@dataclass(frozen=True, kw_only=True)
class EventLine:
    """One event of a list: how many locales it has, and for how many of them an approval stands."""

    event_id: str
    site_id: str
    website_version: str
    source_id: str
    source_sequence: int
    state: str
    locales: int
    approved: int
    delivery_status: str | None
    delivery_code: str | None
    created_at: float


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Which events are wanted; what is None is not asked for. Ages are in seconds since the event came."""

    state: str | None = None
    site_id: str | None = None
    website_version: str | None = None
    target_locale: str | None = None  # part of the plan
    code: str | None = None  # with which a locale's or a delivery's row stopped or waits
    least_age_seconds: float | None = None
    most_age_seconds: float | None = None

    def conditions(self, source: FromClause) -> list[ColumnElement[bool]]:
        """Return the conditions on some events, all but those of age."""
        equal = {"state": self.state, "site_id": self.site_id, "website_version": self.website_version}
        found = [source.c[name] == value for name, value in equal.items() if value is not None]
        if self.target_locale is not None:
            planned = exists().where(
                plan_jobs.c.plan_id == source.c.plan_id, plan_jobs.c.target_locale == self.target_locale
            )
            found.append(planned.correlate(source))
        if self.code is not None:
            asked = exists().where(evidence.c.event_id == source.c.event_id, evidence.c.last_error_code == self.code)
            sent = exists().where(deliveries.c.event_id == source.c.event_id, deliveries.c.last_error_code == self.code)
            found.append(or_(asked.correlate(source), sent.correlate(source)))
        return found


def list_events(
    conn: Connection,
    wanted: EventFilter | None = None,
    *,
    limit: int,
    before: Key | None = None,
    now: float | None = None,
) -> tuple[EventLine, ...]:
    """Return events, newest first, at most `limit`. `before` is (`created_at`, `event_id`) of the last one seen."""
    wanted = wanted or EventFilter()
    since, until = _span(conn, wanted, now)
    found: list[str] = []
    while len(found) < limit:
        ids, before = _window(conn, wanted, before, since=since, until=until, limit=limit - len(found))
        found += ids
        if before is None:
            break
    return _lines(conn, found, now=now)


def _span(conn: Connection, wanted: EventFilter, now: float | None) -> tuple[float | None, float | None]:
    """Return from when and until when wanted events came."""
    if wanted.least_age_seconds is None and wanted.most_age_seconds is None:
        return None, None
    at = read_clock(conn, now)
    since = None if wanted.most_age_seconds is None else at - wanted.most_age_seconds
    return since, None if wanted.least_age_seconds is None else at - wanted.least_age_seconds


def _window(
    conn: Connection, wanted: EventFilter, before: Key | None, *, since: float | None, until: float | None, limit: int
) -> tuple[list[str], Key | None]:
    """Return the wanted events among the next ones of the walk, and where it goes on; None at its end."""
    walk = select(events)
    if before is not None:
        walk = walk.where(tuple_(events.c.created_at, events.c.event_id) < tuple_(*before))
    if since is not None:
        walk = walk.where(events.c.created_at >= since)
    if until is not None:
        walk = walk.where(events.c.created_at <= until)
    newest = (events.c.created_at.desc(), events.c.event_id.desc())
    conditions = wanted.conditions(events)
    if not conditions:
        rows = conn.execute(walk.with_only_columns(events.c.event_id).order_by(*newest).limit(limit)).scalars().all()
        return list(rows), None
    window = walk.order_by(*newest).limit(WINDOW).subquery("window")
    fits = and_(*wanted.conditions(window))
    rows = conn.execute(
        select(window.c.event_id, window.c.created_at, fits.label("fits")).order_by(
            window.c.created_at.desc(), window.c.event_id.desc()
        )
    ).all()
    found = [row.event_id for row in rows if row.fits]
    last = None if len(rows) < WINDOW else (rows[-1].created_at, rows[-1].event_id)
    return found[:limit], last


def _lines(conn: Connection, event_ids: Sequence[str], *, now: float | None) -> tuple[EventLine, ...]:
    """Return the named events, newest first, each with its locales and its delivery."""
    if not event_ids:
        return ()
    paged = select(events).where(events.c.event_id.in_(event_ids)).subquery("page")
    of_plan = plan_jobs.c.plan_id == paged.c.plan_id
    is_approved = exists().where(
        approvals.c.job_id == jobs.c.job_id,
        approvals.c.result_sha256 == jobs.c.current_result_sha256,
        stands(clock(conn, now)),
    )
    planned = plan_jobs.join(jobs, jobs.c.job_id == plan_jobs.c.job_id)
    rows = conn.execute(
        select(
            paged,
            select(func.count()).select_from(plan_jobs).where(of_plan).scalar_subquery().label("locales"),
            select(func.count()).select_from(planned).where(of_plan, is_approved).scalar_subquery().label("approved"),
            of_delivery(deliveries.c.status, paged.c.event_id).label("delivery_status"),
            of_delivery(deliveries.c.last_error_code, paged.c.event_id).label("delivery_code"),
        ).order_by(paged.c.created_at.desc(), paged.c.event_id.desc())
    ).mappings()
    return tuple(EventLine(**{one.name: row[one.name] for one in fields(EventLine)}) for row in rows)
