"""Messages that intake refused: one row per document, code and path, with a count of how often it came.

Nothing here decides what is refused; rows hold no content unless the settings ask for the body.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, select, tuple_

from worker.domain.acceptance import Acceptance, Refusal
from worker.store.engine import clock, writing
from worker.store.schema import rejections
from worker.store.submissions import KIND_OF_MESSAGE, accepted_event
from worker.store.upserts import insert_into


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """One row of `rejections` for operators. Times are seconds since the epoch; `body` only where it was kept."""

    rejection_id: int
    document_sha256: str
    size_bytes: int
    message: str
    code: str
    path: str
    body: str | None
    times: int
    first_at: float
    last_at: float


def refuse(engine: Engine, refusal: Refusal, *, now: float | None) -> Acceptance:
    """Keep a refusal in a transaction of its own and return the answer to the message.

    A document that was accepted before by the same kind of message stays accepted, whatever speaks against its repeat now (its key may have been
    revoked since), and nothing is kept.
    """

    def work(conn: Connection) -> str | None:
        kind = KIND_OF_MESSAGE.get(refusal.message, refusal.message)
        event_id = accepted_event(conn, refusal.document_sha256, kind=kind)
        if event_id is None:
            record_rejection(conn, refusal, now=now)
        return event_id

    event_id = writing(engine, work)
    if event_id is not None:
        return Acceptance(document_sha256=refusal.document_sha256, state="accepted", event_id=event_id)
    return Acceptance(document_sha256=refusal.document_sha256, state="rejected", code=refusal.code, path=refusal.path)


def record_rejection(conn: Connection, refusal: Refusal, *, now: float | None) -> None:
    """Keep a refusal; a repeat only counts up and moves `last_at`. Safe to run concurrently with itself."""
    at = clock(conn, now)
    statement = insert_into(conn, rejections).values(
        document_sha256=refusal.document_sha256,
        size_bytes=refusal.size_bytes,
        message=refusal.message,
        code=refusal.code,
        path=refusal.path,
        body=refusal.body,
        times=1,
        first_at=at,
        last_at=at,
    )
    conn.execute(
        statement.on_conflict_do_update(
            index_elements=[rejections.c.document_sha256, rejections.c.code, rejections.c.path],
            set_={"times": rejections.c.times + 1, "last_at": statement.excluded.last_at},
        )
    )


def list_rejections(
    conn: Connection, *, limit: int = 50, before: tuple[float, int] | None = None
) -> tuple[Rejection, ...]:
    """Return the newest rejections without their bodies, newest first.

    `before` is (`last_at`, `rejection_id`) of the last one seen: the next page begins behind it.
    """
    columns = [column for column in rejections.c if column.name != "body"]
    query = select(*columns).order_by(rejections.c.last_at.desc(), rejections.c.rejection_id.desc()).limit(limit)
    if before is not None:
        query = query.where(tuple_(rejections.c.last_at, rejections.c.rejection_id) < tuple_(*before))
    return tuple(Rejection(**row, body=None) for row in conn.execute(query).mappings())


def find_rejection(conn: Connection, rejection_id: int) -> Rejection | None:
    """Return one rejection with whatever body was kept, or None."""
    row = conn.execute(select(rejections).where(rejections.c.rejection_id == rejection_id)).mappings().one_or_none()
    return None if row is None else Rejection(**row)
