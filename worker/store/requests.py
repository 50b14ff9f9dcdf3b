"""The evidence requests behind claimed rows: one read for many rows, and everything read is verified before use.

A request is rebuilt from the stored event and result and must derive the very id that its row carries. So a row whose
event, text or result was altered in the database is never sent anywhere; only that row stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Dialect,
    Float,
    String,
    cast,
    literal,
    null,
    select,
    tuple_,
    union_all,
)

from worker.domain.canonical import sha256_hex
from worker.domain.change import ChangeEvent
from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceKey, EvidenceRequest, build_request
from worker.domain.result import check_result
from worker.store.approvals import stands
from worker.store.engine import Moment, clock, json_rows, row_source
from worker.store.prepared import prepared
from worker.store.schema import approvals, events, pushed_responses, results, submissions
from worker.store.stored_documents import read_change, read_result

NAMES = ("request_id", "event_id", "job_id", "result_sha256")  # of a key, as the statement needs them


@dataclass(frozen=True, kw_only=True)
class PushedResponse:
    """A finished review that was handed in, as it lies in the inbox."""

    document_sha256: str
    body: str = field(repr=False)
    received_at: float


@dataclass(kw_only=True)
class Loaded:
    """What one read found for a batch of claimed rows."""

    requests: dict[str, EvidenceRequest] = field(default_factory=dict)  # by request id, verified
    tampered: list[str] = field(default_factory=list)  # request ids whose stored documents do not fit the row
    pushed: dict[str, PushedResponse] = field(default_factory=dict)  # the newest by request id; unverified
    approved_jobs: set[str] = field(default_factory=set)  # jobs with an unexpired, unrevoked approval; unverified


def load_requests(conn: Connection, keys: Sequence[EvidenceKey], *, now: float | None) -> Loaded:
    """Return the requests behind the keys of claimed rows in one statement, whatever their number.

    Each event's document is read and parsed once, however many of its locales were claimed.
    """
    statement, moment = _loading(conn, now)
    wanted = [{name: getattr(key, name) for name in NAMES} for key in keys]
    found = conn.execute(statement, {"claimed": json_rows(wanted), **moment}).all()
    loaded = Loaded(approved_jobs={one.id for one in found if one.kind == "approval"})
    changes = {one.id: _change(one.document, one.sha256) for one in found if one.kind == "event"}
    texts = {(one.id, one.sha256): one.document for one in found if one.kind == "result"}
    handed_in = [one for one in found if one.kind == "pushed"]
    for one in sorted(handed_in, key=lambda one: (one.at, one.sha256)):  # the newest comes to stand
        loaded.pushed[one.id] = PushedResponse(document_sha256=one.sha256, body=one.document, received_at=one.at)
    for key in keys:
        request = _request(key, changes.get(key.event_id), texts.get((key.job_id, key.result_sha256)))
        if request is None:
            loaded.tampered.append(key.request_id)
        else:
            loaded.requests[key.request_id] = request
    return loaded


@prepared
def _loading(bind: Dialect, now: Moment) -> CompoundSelect[Any]:
    claimed = row_source(bind, "claimed", dict.fromkeys(NAMES, String), "claimed")
    no_time = cast(null(), Float)
    return union_all(
        select(literal("event").label("kind"), events.c.event_id.label("id"), events.c.event_sha256.label("sha256"))
        .add_columns(events.c.document, no_time.label("at"))
        .where(events.c.event_id.in_(select(claimed.c.event_id))),
        select(literal("result"), results.c.job_id, results.c.result_sha256, results.c.document, no_time).where(
            tuple_(results.c.job_id, results.c.result_sha256).in_(select(claimed.c.job_id, claimed.c.result_sha256))
        ),
        select(literal("approval"), approvals.c.job_id, null(), null(), no_time).where(
            approvals.c.job_id.in_(select(claimed.c.job_id)),
            stands(clock(bind, now)),
        ),
        select(
            literal("pushed"),
            pushed_responses.c.request_id,
            pushed_responses.c.document_sha256,
            submissions.c.body,
            pushed_responses.c.received_at,
        )
        .join(submissions, submissions.c.document_sha256 == pushed_responses.c.document_sha256)
        .where(pushed_responses.c.request_id.in_(select(claimed.c.request_id))),
    )


def _change(document: str, sha256: str) -> ChangeEvent | None:
    """Return a stored change event, or None where it is not the one that was accepted."""
    try:
        return read_change(document) if sha256_hex(document) == sha256 else None
    except Blocked:
        return None


def _request(key: EvidenceKey, change: ChangeEvent | None, document: str | None) -> EvidenceRequest | None:
    """Return the request of a row, or None where anything stored does not derive the row's own ids."""
    job = next((job for job in change.jobs if job.job_id == key.job_id), None) if change is not None else None
    if change is None or job is None or document is None:
        return None
    try:
        result = read_result(document)
        check_result(job, change, result)
        request = build_request(change, job, result, key.evidence_revision)
    except Blocked:
        return None
    return request if request.key == key else None
