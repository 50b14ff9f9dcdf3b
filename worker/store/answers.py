"""What CMSs and operators said about deliveries, as it was kept. Reading only; `deliveries` appends."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Connection, select

from worker.store.schema import delivery_answers


@dataclass(frozen=True, kw_only=True)
class KeptAnswer:
    """One signed answer, or an operator's word. Unverified."""

    kind: str  # acknowledgement | lookup | operator
    outcome: str  # accepted | absent | closed
    document: str = field(repr=False)  # canonical
    signature: str | None = field(repr=False)
    kid: str | None
    answered_at: float


def answers_about(conn: Connection, delivery_id: str) -> tuple[KeptAnswer, ...]:
    """Return every answer about a delivery, the oldest first."""
    kept = delivery_answers.c
    rows = conn.execute(
        select(kept.kind, kept.outcome, kept.document, kept.signature, kept.kid, kept.answered_at)
        .where(kept.delivery_id == delivery_id)
        .order_by(kept.answer_id)
    )
    return tuple(KeptAnswer(**row) for row in rows.mappings())
