"""The inbox of finished reviews: what a provider hands in by itself, kept until the next claim uses it.

The signed bytes lie in `submissions`; a row here says which request they answer. Nothing is ever taken out: a row that
has ended is never claimed again, and one that has not uses the newest answer, as often as its attempts need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import Connection, String, exists, insert, select, text, update

from worker.domain.attempt import FAILED, RETRY_WAIT, SUCCEEDED
from worker.domain.errors import Blocked, Invalid
from worker.domain.evidence import EvidenceKey
from worker.domain.key import PublicKey
from worker.store.engine import clock, json_rows, row_source
from worker.store.evidence_claims import key_of
from worker.store.leases import EVIDENCE
from worker.store.public_keys import keep_public_keys
from worker.store.schema import DUE, evidence, pushed_responses
from worker.store.submissions import EVIDENCE as OF_EVIDENCE
from worker.store.submissions import accepted_event, insert_submission

UNKNOWN = "evidence.request.unknown"
FINISHED = "evidence.request.finished"


@dataclass(frozen=True, kw_only=True)
class Handed:
    """A verified and judged answer on its way in."""

    document_sha256: str
    body: str = field(repr=False)
    request_id: str
    site_id: str
    key: PublicKey


def asked_key(conn: Connection, request_id: str) -> EvidenceKey:
    """Return the question that an evidence row asks; `Invalid("evidence.request.unknown")` where there is none."""
    row = conn.execute(select(evidence).where(evidence.c.request_id == request_id)).mappings().one_or_none()
    if row is None:
        raise _unknown()
    return key_of(row)


def take_response(conn: Connection, handed: Handed, *, now: float | None) -> str:
    """Keep an answer and make its row due at once; a repeat changes nothing. Returns the event's id.

    A row that is leased keeps its lease; whoever settles it without an answer makes it due (`hurry_pushed`). Raises
    `Invalid`, and the transaction must then be undone: `evidence.request.unknown` where the row is gone,
    `evidence.request.finished` where it has ended and so is never claimed again, `evidence.state.invalid` where it is
    damaged. Safe to run concurrently with claims and settles: both wait for the row's lock.
    """
    event_id = accepted_event(conn, handed.document_sha256, kind=OF_EVIDENCE)
    if event_id is not None:
        return event_id
    try:
        row = EVIDENCE.lock(conn, handed.request_id)
    except Blocked as refusal:
        raise Invalid(refusal.code, refusal.message, path="request_id") from None
    if row is None:
        raise _unknown()
    if row["status"] in {SUCCEEDED, FAILED}:
        raise Invalid(FINISHED, "the request has ended; see locseal evidence retry or renew", path="request_id")
    event_id = str(row["event_id"])
    if not insert_submission(
        conn,
        document_sha256=handed.document_sha256,
        kind=OF_EVIDENCE,
        site_id=handed.site_id,
        event_id=event_id,
        kid=handed.key.kid,
        body=handed.body,
        now=now,
    ):
        return event_id
    at = clock(conn, now)
    conn.execute(
        insert(pushed_responses).values(
            document_sha256=handed.document_sha256, request_id=handed.request_id, received_at=at
        )
    )
    conn.execute(
        update(evidence)
        .where(evidence.c.request_id == handed.request_id, text(DUE), evidence.c.next_attempt_at > at)
        .values(next_attempt_at=at, updated_at=at, last_woken_at=at)
    )
    keep_public_keys(conn, [handed.key], now=now)
    return event_id


def hurry_pushed(conn: Connection, request_ids: Iterable[str], *, now: float | None) -> None:
    """Make those of these rows due now that fell back to waiting while an answer lay in the inbox, unread.

    For whoever just settled them, in the same transaction. An answer that was read and could not be verified for now
    waits for its back-off like any other.
    """
    named = sorted(request_ids)
    if not named:
        return
    at = clock(conn, now)
    source = row_source(conn, "unread", {"request_id": String}, "unread")
    conn.execute(
        update(evidence)
        .where(
            evidence.c.request_id.in_(select(source.c.request_id)),
            evidence.c.status == RETRY_WAIT,
            evidence.c.next_attempt_at > at,
            exists().where(pushed_responses.c.request_id == evidence.c.request_id),
        )
        .values(next_attempt_at=at),
        {"unread": json_rows([{"request_id": request_id} for request_id in named])},
    )


def _unknown() -> Invalid:
    return Invalid(UNKNOWN, "no such request is open; it may belong to a replaced translation", path="request_id")
