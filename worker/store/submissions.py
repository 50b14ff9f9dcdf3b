"""Accepted documents, exactly as they came. Appended, never changed.

Whether a document is acceptable is decided in `intakes` and `withdrawals`.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, select

from worker.domain.messages import EVIDENCE_SUBMIT, RELEASE_SUBMIT, RELEASE_WITHDRAW
from worker.domain.signature import TrustSet
from worker.store.engine import clock, read_clock, reading
from worker.store.schema import submissions
from worker.store.upserts import insert_into

RELEASE = "release"
WITHDRAWAL = "withdrawal"
EVIDENCE = "evidence"
KIND_OF_MESSAGE = {RELEASE_SUBMIT: RELEASE, RELEASE_WITHDRAW: WITHDRAWAL, EVIDENCE_SUBMIT: EVIDENCE}


def accepted_event(conn: Connection, document_sha256: str, *, kind: str) -> str | None:
    """Return the event id of an accepted document of a kind, or None when these bytes were not accepted as one."""
    found: str | None = conn.execute(
        select(submissions.c.event_id).where(
            submissions.c.document_sha256 == document_sha256, submissions.c.kind == kind
        )
    ).scalar()
    return found


def release_bodies(conn: Connection, event_id: str, *, most: int) -> tuple[tuple[str, float], ...]:
    """Return the accepted submissions about an event, byte for byte, each with when it was accepted, oldest first."""
    rows = conn.execute(
        select(submissions.c.body, submissions.c.accepted_at)
        .where(submissions.c.event_id == event_id, submissions.c.kind == RELEASE)
        .order_by(submissions.c.accepted_at, submissions.c.document_sha256)
        .limit(most)
    )
    return tuple((row.body, row.accepted_at) for row in rows)


def insert_submission(
    conn: Connection,
    *,
    document_sha256: str,
    kind: str,
    site_id: str,
    event_id: str,
    kid: str,
    body: str,
    now: float | None,
) -> bool:
    """Keep an accepted document, byte for byte; return False when these bytes are there already."""
    statement = insert_into(conn, submissions).values(
        document_sha256=document_sha256,
        kind=kind,
        site_id=site_id,
        event_id=event_id,
        kid=kid,
        body=body,
        accepted_at=clock(conn, now),
    )
    kept = conn.execute(statement.on_conflict_do_nothing().returning(submissions.c.document_sha256))
    return kept.first() is not None


def arrival_time(engine: Engine, trust: TrustSet, *, now: float | None) -> float | None:
    """Return the time of arrival, by which a retired key is judged; None where the trust set has no retired key.

    Nobody can say when a document that arrives was signed, so it counts as signed on arrival. The clock is asked only
    where the answer matters.
    """
    if all(key.status != "retired" for key in trust.keys.values()):
        return None
    with reading(engine) as conn:
        return read_clock(conn, now)
