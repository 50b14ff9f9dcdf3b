"""Which rows a pruning may remove, found and removed in bounded batches; every condition of `domain.retention` as SQL.

Events are walked by their creation; what hangs from one is found through its own index, so no statement grows with the
database. Ended events never open again. What is counted among the revisions of a job stays while an open event asks
for that job, and the locks of the sources keep such an event from arriving meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    Table,
    and_,
    delete,
    exists,
    literal_column,
    or_,
    select,
    tuple_,
)

from worker.domain.retention import (
    DELIVERIES,
    HISTORY,
    RELEASES,
    REQUESTS,
    TRACES,
    Retention,
)
from worker.store.engine import is_sqlite, json_rows, row_source
from worker.store.legal_holds import is_event_held
from worker.store.old_rows import ROWS_AT_ONCE, remove_setbacks
from worker.store.prunings import Cursor
from worker.store.schema import (
    approvals,
    deliveries,
    delivery_answers,
    delivery_history,
    event_traces,
    events,
    evidence,
    evidence_history,
    plan_jobs,
    setbacks,
    sources,
)
from worker.store.setbacks import RELEASED

EVENTS_AT_ONCE: Final = 200
UNANSWERED: Final = ("superseded", "withdrawn")  # only their requests go: a delivered event's tell how it got there


@dataclass(frozen=True, kw_only=True)
class EventPage:
    """Some events in the order of the walk: those whose rows may go, and where the walk goes on."""

    event_ids: tuple[str, ...]
    cursor: Cursor | None  # None: these were the last


@dataclass(frozen=True, kw_only=True)
class Found:
    """What of a page of events may go: for each kind the event of every row, by the row's key."""

    releases: Mapping[int, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    history: Mapping[int, str] = field(default_factory=dict)
    deliveries: Mapping[str, str] = field(default_factory=dict)
    traces: Mapping[str, str] = field(default_factory=dict)
    subjects: tuple[tuple[str, str], ...] = ()  # (subject, id) of rows that go, whose attempts go with them
    is_whole: bool = True  # false: there are more releases than one batch takes

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many rows of each event go, by kind."""
        counted: dict[str, dict[str, int]] = {}
        found: dict[str, Mapping[Any, str]] = {
            RELEASES: self.releases,
            REQUESTS: self.requests,
            HISTORY: self.history,
            DELIVERIES: self.deliveries,
            TRACES: self.traces,
        }
        for kind, rows in found.items():
            for event_id in rows.values():
                of_event = counted.setdefault(event_id, {})
                of_event[kind] = of_event.get(kind, 0) + 1
        return counted


def prunable_events(
    conn: Connection, wanted: Retention, after: Cursor | None, *, most: int = EVENTS_AT_ONCE
) -> EventPage:
    """Return the next events of the walk that ended early enough and that no hold keeps."""
    walk = select(events).where(events.c.created_at < wanted.before_at)
    if after is not None:
        walk = walk.where(tuple_(events.c.created_at, events.c.event_id) > tuple_(*after))
    page = walk.order_by(events.c.created_at, events.c.event_id).limit(most).subquery("page")
    may_go = [page.c.state.in_(wanted.states), page.c.updated_at < wanted.before_at]
    if wanted.site_id is not None:
        may_go.append(page.c.site_id == wanted.site_id)
    may_go.append(~is_event_held(page.c.event_id, page.c.site_id))
    rows = conn.execute(
        select(page.c.event_id, page.c.created_at, and_(*may_go).label("may_go")).order_by(
            page.c.created_at, page.c.event_id
        )
    ).all()
    return EventPage(
        event_ids=tuple(row.event_id for row in rows if row.may_go),
        cursor=(rows[-1].created_at, rows[-1].event_id) if len(rows) == most else None,
    )


def lock_sources(conn: Connection, event_ids: Sequence[str]) -> None:
    """Lock the sources of some events, in order: no newer event of theirs arrives until the transaction ends."""
    of_events = select(events.c.site_id, events.c.source_id).where(events.c.event_id.in_(_ids(conn, "named")))
    conn.execute(
        select(sources.c.source_id)
        .where(tuple_(sources.c.site_id, sources.c.source_id).in_(of_events))
        .order_by(sources.c.site_id, sources.c.source_id)
        .with_for_update(),
        {"named": _named(event_ids)},
    ).all()


def find_rows(
    conn: Connection, wanted: Retention, event_ids: Sequence[str], *, most_releases: int = ROWS_AT_ONCE
) -> Found:
    """Return what of some prunable events may go. Where there are too many releases, these come first and alone."""
    if not event_ids:
        return Found()
    releases = _releases(conn, wanted, event_ids, most_releases) if wanted.has(RELEASES) else {}
    if len(releases) >= most_releases:
        return Found(releases=releases, is_whole=False)
    requests = _requests(conn, wanted, event_ids) if wanted.has(REQUESTS) else {}
    history = _history(conn, wanted, event_ids) if wanted.has(HISTORY) else {}
    sends = _deliveries(conn, wanted, event_ids) if wanted.has(DELIVERIES) else {}
    return Found(
        releases=releases,
        requests=requests,
        history={history_id: event_id for history_id, (_, event_id) in history.items()},
        deliveries=sends,
        traces=_traces(conn, event_ids) if wanted.has(TRACES) else {},
        subjects=(
            *(("evidence", request_id) for request_id in requests),
            *(("evidence", request_id) for request_id, _ in history.values()),
            *(("delivery", delivery_id) for delivery_id in sends),
        ),
    )


def remove_rows(conn: Connection, found: Found) -> None:
    """Remove what was found in the same transaction, and the ends of the attempts at it."""
    _delete(conn, setbacks, "setback_id", found.releases)
    _delete(conn, evidence, "request_id", found.requests)
    _delete(conn, evidence_history, "history_id", found.history)
    _delete(conn, deliveries, "delivery_id", found.deliveries)
    _delete(conn, event_traces, "event_id", found.traces)
    remove_setbacks(conn, found.subjects)


# --- what hangs from events ------------------------------------------------------------------------------------------


def _releases(conn: Connection, wanted: Retention, event_ids: Sequence[str], most: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for subject, table, key in (("evidence", evidence, "request_id"), ("delivery", deliveries, "delivery_id")):
        rows = (
            select(setbacks.c.setback_id, table.c.event_id)
            .join(table, table.c[key] == setbacks.c.subject_id)
            .where(
                table.c.event_id.in_(_ids(conn, "named")),
                setbacks.c.subject == subject,
                setbacks.c.outcome == RELEASED,
                setbacks.c.ended_at < wanted.before_at,
            )
            .limit(most - len(found))
        )
        found |= _pairs(conn, rows, event_ids)
    return found


def _requests(conn: Connection, wanted: Retention, event_ids: Sequence[str]) -> dict[str, str]:
    rows = (
        select(evidence.c.request_id, evidence.c.event_id)
        .join(events, events.c.event_id == evidence.c.event_id)
        .where(
            evidence.c.event_id.in_(_ids(conn, "named")),
            events.c.state.in_(UNANSWERED),
            evidence.c.status == "failed",
            evidence.c.updated_at < wanted.before_at,
            ~_is_approved(evidence.c.request_id),
            ~_is_asked_by_open(evidence.c.job_id),
        )
    )
    return _pairs(conn, rows, event_ids)


def _history(conn: Connection, wanted: Retention, event_ids: Sequence[str]) -> dict[int, tuple[str, str]]:
    was = evidence_history.c.row_json
    member = "json_extract({}, '$.event_id')" if is_sqlite(conn) else "(({})::json ->> 'event_id')"
    event_id = literal_column(member.format(f"{evidence_history.name}.{was.name}"), String)
    planned = (
        select(plan_jobs.c.job_id)
        .join(events, events.c.plan_id == plan_jobs.c.plan_id)
        .where(events.c.event_id.in_(_ids(conn, "planning")))
    )
    rows = conn.execute(
        select(evidence_history.c.history_id, evidence_history.c.request_id, event_id.label("event_id")).where(
            evidence_history.c.job_id.in_(planned),
            event_id.in_(_ids(conn, "named")),
            evidence_history.c.moved_at < wanted.before_at,
            ~_is_approved(evidence_history.c.request_id),
            ~_is_asked_by_open(evidence_history.c.job_id),
        ),
        {"planning": _named(event_ids), "named": _named(event_ids)},
    )
    return {row.history_id: (row.request_id, row.event_id) for row in rows}


def _deliveries(conn: Connection, wanted: Retention, event_ids: Sequence[str]) -> dict[str, str]:
    is_known = or_(events.c.state != "superseded", events.c.superseded_by.is_not(None))  # else the row says why
    same = deliveries.c.delivery_id
    rows = (
        select(same, deliveries.c.event_id)
        .join(events, events.c.event_id == deliveries.c.event_id)
        .where(
            deliveries.c.event_id.in_(_ids(conn, "named")),
            deliveries.c.status == "failed",
            deliveries.c.sent_at.is_(None),
            deliveries.c.in_doubt.is_(False),
            deliveries.c.lookups == 0,
            deliveries.c.updated_at < wanted.before_at,
            is_known,
            ~exists().where(delivery_answers.c.delivery_id == same),
            ~exists().where(delivery_history.c.event_id == deliveries.c.event_id),
        )
    )
    return _pairs(conn, rows, event_ids)


def _traces(conn: Connection, event_ids: Sequence[str]) -> dict[str, str]:
    named = event_traces.c.event_id
    rows = select(named, named.label("of_event")).where(named.in_(_ids(conn, "named")))
    return _pairs(conn, rows, event_ids)


def _is_approved(request_id: ColumnElement[Any]) -> ColumnElement[bool]:
    return exists().where(approvals.c.request_id == request_id).correlate_except(approvals)


def _is_asked_by_open(job_id: ColumnElement[Any]) -> ColumnElement[bool]:
    asking, planned = events.alias("asking"), plan_jobs.alias("planned")
    return (
        exists()
        .where(planned.c.job_id == job_id, asking.c.plan_id == planned.c.plan_id, asking.c.state == "open")
        .correlate_except(asking, planned)
    )


def _pairs(conn: Connection, rows: Select[Any], event_ids: Sequence[str]) -> dict[Any, str]:
    return {row[0]: row[1] for row in conn.execute(rows, {"named": _named(event_ids)})}


def _delete(conn: Connection, table: Table, key: str, ids: Iterable[str | int]) -> None:
    rows = [{"id": one} for one in ids]
    if rows:
        column = table.c[key]
        gone = row_source(conn, "gone", {"id": type(column.type)}, "gone")
        conn.execute(delete(table).where(column.in_(select(gone.c.id))), {"gone": json_rows(rows)})


def _ids(conn: Connection, name: str) -> Select[tuple[str]]:
    return select(row_source(conn, name, {"id": String}, name).c.id)


def _named(event_ids: Sequence[str]) -> str:
    return json_rows([{"id": one} for one in event_ids])
