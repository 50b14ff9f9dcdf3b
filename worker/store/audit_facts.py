"""What an audit reads beside submissions, events and results, in a page's snapshot: a few statements, never one a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, String, and_, func, select

from worker.domain.audit.event import BesideEvents, BesideJobs, BesideResults
from worker.domain.audit.submission import BesideSubmissions, BesideWithdrawals, Said
from worker.domain.canonical import parse_strict
from worker.domain.change import ChangeEvent
from worker.domain.errors import Invalid
from worker.store.audit_pages import Rows, column_of, named, rows_of
from worker.store.engine import json_rows, row_source
from worker.store.schema import (
    deliveries,
    delivery_answers,
    events,
    evidence,
    evidence_history,
    jobs,
    plan_jobs,
    pushed_responses,
    results,
    submissions,
    withdrawals,
)


def beside_submissions(conn: Connection, said: Sequence[Said]) -> BesideSubmissions:
    """Return what is stored of what some documents say."""
    ids = [one.event_id for one in said]
    known = rows_of(conn, events, "event_id", ids, "event_id", "event_sha256")
    wanted = {job_id for one in said for job_id, _ in one.results}
    kept = rows_of(conn, results, "job_id", wanted, "job_id", "result_sha256")
    withdrawn = rows_of(conn, withdrawals, "event_id", ids, "event_id", "site_id")
    handed = [one.about.row_id for one in said if one.request_id is not None]
    inbox = rows_of(conn, pushed_responses, "document_sha256", handed, "document_sha256", "request_id")
    return BesideSubmissions(
        event_hashes={row["event_id"]: row["event_sha256"] for row in known},
        results=frozenset((row["job_id"], row["result_sha256"]) for row in kept),
        withdrawals=frozenset((row["event_id"], row["site_id"]) for row in withdrawn),
        responses={row["document_sha256"]: row["request_id"] for row in inbox},
    )


def beside_withdrawals(conn: Connection, rows: Rows) -> BesideWithdrawals:
    """Return the events that withdrawals name, and the documents behind them that are kept."""
    known = rows_of(conn, events, "event_id", column_of(rows, "event_id"), "event_id", "site_id", "state")
    kept = rows_of(
        conn, submissions, "document_sha256", column_of(rows, "document_sha256"), "document_sha256", kind="withdrawal"
    )
    return BesideWithdrawals(
        events={row["event_id"]: (row["site_id"], row["state"]) for row in known},
        documents=frozenset(column_of(kept, "document_sha256")),
    )


def beside_events(conn: Connection, rows: Rows, changes: Sequence[ChangeEvent]) -> BesideEvents:
    """Return what is stored about sound events of a page."""
    ids = [change.event_id for change in changes]
    plans: dict[str, dict[str, str]] = {}
    for row in rows_of(conn, plan_jobs, "plan_id", [change.plan_id for change in changes]):
        plans.setdefault(row["plan_id"], {})[row["job_id"]] = row["target_locale"]
    wanted = [job.job_id for change in changes for job in change.jobs]
    submitted = rows_of(conn, submissions, "event_id", ids, "event_id", kind="release")
    withdrawn = rows_of(conn, withdrawals, "event_id", ids, "event_id", "site_id", "applied_at")
    successors = rows_of(
        conn,
        events,
        "event_id",
        column_of(rows, "superseded_by"),
        "event_id",
        "site_id",
        "source_id",
        "source_sequence",
    )
    sent: dict[str, list[tuple[str, str, str | None]]] = {}
    for row in rows_of(conn, deliveries, "event_id", ids, "event_id", "delivery_id", "status", "last_error_code"):
        sent.setdefault(row["event_id"], []).append((row["delivery_id"], row["status"], row["last_error_code"]))
    live = [one for found in sent.values() for one, _, _ in found]
    accepted = rows_of(conn, delivery_answers, "delivery_id", live, "delivery_id", outcome="accepted")
    return BesideEvents(
        plans=plans,
        jobs={
            row["job_id"]: (row["site_id"], row["target_locale"])
            for row in rows_of(conn, jobs, "job_id", wanted, "job_id", "site_id", "target_locale")
        },
        submitted=frozenset(column_of(submitted, "event_id")),
        withdrawn=frozenset((row["event_id"], row["site_id"]) for row in withdrawn if row["applied_at"] is not None),
        newest=_newest(conn, changes),
        successors={row["event_id"]: (row["site_id"], row["source_id"], row["source_sequence"]) for row in successors},
        deliveries={event_id: tuple(found) for event_id, found in sent.items()},
        accepted=frozenset(column_of(accepted, "delivery_id")),
    )


def _newest(conn: Connection, changes: Sequence[ChangeEvent]) -> dict[str, int]:
    source = row_source(conn, "asked", dict.fromkeys(("event_id", "site_id", "source_id"), String), "asked")
    found = conn.execute(
        select(source.c.event_id, func.max(events.c.source_sequence).label("newest"))
        .join(events, and_(events.c.site_id == source.c.site_id, events.c.source_id == source.c.source_id))
        .group_by(source.c.event_id),
        {
            "asked": json_rows(
                [
                    {"event_id": one.event_id, "site_id": one.site_id, "source_id": one.localization.source_id}
                    for one in changes
                ]
            )
        },
    )
    return {row.event_id: row.newest for row in found}


def requests_of(conn: Connection, changes: Sequence[ChangeEvent]) -> list[Mapping[str, Any]]:
    """Return what every evidence row of some events is bound to, those in history included."""
    bound = ("request_id", "event_id", "plan_id", "job_id", "result_sha256", "evidence_revision")
    found = rows_of(conn, evidence, "event_id", [change.event_id for change in changes], *bound)
    ids = {change.event_id for change in changes}
    wanted = [job.job_id for change in changes for job in change.jobs]
    for row in rows_of(conn, evidence_history, "job_id", wanted, "row_json"):
        try:
            was = parse_strict(row["row_json"], max_bytes=1024 * 1024)
            if was["event_id"] in ids:
                found.append({name: was[name] for name in bound})
        except (Invalid, KeyError, TypeError):  # a finding of the history's own
            continue
    return found


def result_sizes(conn: Connection, job_ids: Iterable[str]) -> list[tuple[str, str, int]]:
    """Return (job id, result hash, length) of every result of some jobs, in order."""
    wanted, parameters = named(conn, "wanted", list(job_ids))
    found = conn.execute(
        select(results.c.job_id, results.c.result_sha256, func.length(results.c.document))
        .where(results.c.job_id.in_(wanted))
        .order_by(results.c.job_id, results.c.result_sha256),
        parameters,
    )
    return [(job_id, digest, size or 0) for job_id, digest, size in found]


def result_documents(conn: Connection, pairs: Sequence[tuple[str, str]]) -> list[Mapping[str, Any]]:
    """Return job id, hash and document of named results."""
    wanted = set(pairs)
    found = rows_of(
        conn, results, "result_sha256", [digest for _, digest in pairs], "job_id", "result_sha256", "document"
    )
    return [row for row in found if (row["job_id"], row["result_sha256"]) in wanted]


def beside_jobs(conn: Connection, rows: Rows) -> BesideJobs:
    """Return which jobs of a page are planned, and their results."""
    ids = column_of(rows, "job_id")
    kept = rows_of(conn, results, "job_id", ids, "job_id", "result_sha256")
    return BesideJobs(
        results=frozenset((row["job_id"], row["result_sha256"]) for row in kept),
        planned=frozenset(column_of(rows_of(conn, plan_jobs, "job_id", ids, "job_id"), "job_id")),
    )


def beside_results(conn: Connection, rows: Rows) -> BesideResults:
    """Return the current results of the jobs of a page."""
    known = rows_of(conn, jobs, "job_id", column_of(rows, "job_id"), "job_id", "current_result_sha256")
    return BesideResults(current={row["job_id"]: row["current_result_sha256"] for row in known})
