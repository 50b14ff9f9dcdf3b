"""How a page of events is judged: each event, and whatever is derived from it: results, and the ids of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from worker.domain.audit.event import bound_result, event_findings, stored_change
from worker.domain.audit.evidence import request_findings
from worker.domain.audit.finding import Finding, judged, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.canonical import sha256_hex
from worker.domain.change import ChangeEvent, Job
from worker.store.audit_facts import beside_events, requests_of, result_documents, result_sizes
from worker.store.audit_pages import BYTES_OF_PAGE, RawRow

RESULTS_AT_ONCE: Final = 250
Requests = dict[tuple[str, str], list[Mapping[str, Any]]]  # by job and result


def judge_events(conn: Connection, rows: Sequence[RawRow], _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with the events of a page, with their results' bindings and with the ids of their requests."""
    sound: list[tuple[RawRow, ChangeEvent]] = []
    for row in rows:
        change, findings = stored_change(row)
        yield from findings
        if change is not None:
            sound.append((row, change))
    changes = [change for _, change in sound]
    beside = beside_events(conn, rows, changes)
    for row, change in sound:
        yield from judged(
            row_of("event", row["event_id"]),
            lambda row=row, change=change: event_findings(row, change, beside),  # type: ignore[misc]
        )
    yield from _derived(conn, changes)


def _derived(conn: Connection, changes: Sequence[ChangeEvent]) -> Iterator[Finding]:
    events = {change.event_id: change for change in changes}
    jobs = {change.event_id: {job.job_id: job for job in change.jobs} for change in changes}
    owners = {job.job_id: (change, job) for change in changes for job in change.jobs}
    requests: Requests = {}
    for row in requests_of(conn, changes):
        requests.setdefault((row["job_id"], row["result_sha256"]), []).append(row)
    for chunk in _chunks(result_sizes(conn, owners)):
        for stored in result_documents(conn, chunk):
            asked = requests.pop((stored["job_id"], stored["result_sha256"]), [])
            yield from judged(
                row_of("result", stored["job_id"], stored["result_sha256"]),
                lambda stored=stored, asked=asked: _bound(stored, asked, owners, events, jobs),  # type: ignore[misc]
            )
    for asked in requests.values():
        for row in asked:
            about = row_of("evidence", row["request_id"])
            if row["job_id"] in jobs[row["event_id"]]:
                yield about.breaks("result_missing", "the result that the row asks about is gone")
            else:
                yield from request_findings(row, events[row["event_id"]], jobs[row["event_id"]], None)


def _bound(
    stored: Mapping[str, Any],
    asked: Sequence[Mapping[str, Any]],
    owners: Mapping[str, tuple[ChangeEvent, Job]],
    events: Mapping[str, ChangeEvent],
    jobs: Mapping[str, Mapping[str, Job]],
) -> Iterator[Finding]:
    result = None
    if sha256_hex(stored["document"]) == stored["result_sha256"]:  # else a finding of the result's own
        about = row_of("result", stored["job_id"], stored["result_sha256"])
        result, findings = bound_result(about, *owners[stored["job_id"]], stored["document"])
        yield from findings
    for row in asked:
        yield from request_findings(row, events[row["event_id"]], jobs[row["event_id"]], result)


def _chunks(sizes: Sequence[tuple[str, str, int]]) -> Iterator[list[tuple[str, str]]]:
    """Yield the results of a page of events in parts of bounded size; all results of one job may be in two parts."""
    chunk: list[tuple[str, str]] = []
    total = 0
    for job_id, digest, size in sizes:
        if chunk and (total + size > BYTES_OF_PAGE or len(chunk) >= RESULTS_AT_ONCE):
            yield chunk
            chunk, total = [], 0
        chunk.append((job_id, digest))
        total += size
    if chunk:
        yield chunk
