"""What was said of a delivery, kept for auditors: signed acknowledgements and look-up answers, the operator's word."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from sqlalchemy import Connection

from worker.domain.delivery import CmsAnswer
from worker.domain.key import PublicKey, TrustSet
from worker.store.engine import clock
from worker.store.public_keys import keep_public_keys
from worker.store.schema import delivery_answers


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a CMS or an operator said of a delivery, as it is kept for auditors."""

    kind: str  # acknowledgement | lookup | operator
    outcome: str  # accepted | absent | closed
    nonce: str | None
    document: str = field(repr=False)  # canonical
    signature: str | None = field(repr=False)
    kid: str | None


@dataclass(frozen=True, kw_only=True)
class Word:
    """An answer that was verified, and the public key that verified it (None for an operator's word)."""

    answer: Answer
    key: PublicKey | None


def append_word(conn: Connection, delivery_id: str, word: Word, *, now: float | None) -> None:
    """Append what was said of a delivery, in the transaction that acts on it."""
    values = {one.name: getattr(word.answer, one.name) for one in fields(Answer)}
    conn.execute(delivery_answers.insert().values(delivery_id=delivery_id, answered_at=clock(conn, now), **values))
    if word.key is not None:
        keep_public_keys(conn, [word.key], now=now)


def word_of(answer: CmsAnswer, nonce: str | None, trust: TrustSet) -> Word | None:
    """Return a CMS's verified answer as it is kept, or None where nothing was signed."""
    if answer.signed is None or answer.kid is None or answer.outcome not in {"accepted", "absent"}:
        return None
    kept = Answer(
        kind="acknowledgement" if nonce is None else "lookup",
        outcome=answer.outcome,
        nonce=nonce,
        document=answer.signed.payload().decode(),
        signature=answer.signed.signature,
        kid=answer.kid,
    )
    return Word(answer=kept, key=trust.keys.get(answer.kid))
