"""Step: settle a delivery whose outcome nobody knows, by the CMS's signed answer or by an operator's word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from worker.domain.canonical import canonical_text
from worker.domain.delivery import Advance
from worker.domain.errors import Blocked
from worker.domain.turn import ABSENT_SLACK_SECONDS
from worker.flow.cms_call import ask_cms
from worker.flow.services import Services
from worker.store.deliveries import Delivery, get_delivery
from worker.store.delivery_answers import Answer, Word
from worker.store.engine import read_clock, reading, writing
from worker.store.sends import reconcile

NOT_UNKNOWN = "cms.delivery.outcome_known"
NO_ANSWER = "cms.lookup.no_answer"
TOO_EARLY = "cms.lookup.absent_too_early"


@dataclass(frozen=True, kw_only=True)
class OperatorsWord:
    """What an operator found out at the CMS: whether exactly these bytes were accepted, who says so, and why."""

    outcome: Literal["accepted", "closed"]
    operator: str
    reason: str


def reconcile_delivery(services: Services, delivery_id: str, word: OperatorsWord | None = None) -> Advance:
    """Move a delivery that failed with `cms.outcome_unknown`: to succeeded, or to closed and replaceable.

    Without an operator's word the CMS is asked, and only its signed answer counts. What moved the row is appended to
    `delivery_answers` in the same transaction. Returns `delivered`, or `approved` where it was closed (see
    `locseal deliveries retry`). Raises `cms.delivery.outcome_known` for any other delivery, `cms.lookup.no_answer`
    (retryable) without a signed answer, `cms.lookup.absent_too_early` (retryable) where an absent does not count yet.
    Safe to run concurrently with itself: the first moves the row.
    """
    with reading(services.engine) as conn:
        delivery = get_delivery(conn, delivery_id)
        if delivery is None:
            raise Blocked("cms.delivery.unknown", "there is no such delivery; see locseal deliveries list")
        if not delivery.is_outcome_unknown:
            raise Blocked(NOT_UNKNOWN, "only a delivery with cms.outcome_unknown is reconciled")
        asked_at = read_clock(conn, services.now())
    said = _operators(delivery, word, asked_at) if word is not None else _asked(services, delivery, asked_at)
    services.checkpoint("reconcile.answered")
    is_accepted = said.answer.outcome == "accepted"

    def work(conn: Connection) -> bool:
        return reconcile(conn, delivery, said, is_accepted=is_accepted, now=services.now())

    if not writing(services.engine, work):
        raise Blocked(NOT_UNKNOWN, "somebody else reconciled it first; see locseal deliveries list")
    services.checkpoint("reconcile.committed")
    return Advance(
        status="delivered" if is_accepted else "approved",
        event_id=delivery.event_id,
        plan_id=delivery.plan_id,
        delivery_id=delivery_id,
    )


def _operators(delivery: Delivery, word: OperatorsWord, at: float) -> Word:
    statement = {
        "schema": "locseal.operators-word.v1",
        "delivery_id": delivery.delivery_id,
        "payload_sha256": delivery.payload_sha256,
        "outcome": word.outcome,
        "operator": word.operator,
        "reason": word.reason,
        "at": at,
    }
    answer = Answer(
        kind="operator", outcome=word.outcome, nonce=None, document=canonical_text(statement), signature=None, kid=None
    )
    return Word(answer=answer, key=None)


def _asked(services: Services, delivery: Delivery, asked_at: float) -> Word:
    word = ask_cms(services, delivery).word
    if word is None:
        raise Blocked(NO_ANSWER, "the CMS gave no signed answer; try again, or give your own word", retryable=True)
    counts_after = (delivery.sent_at or 0.0) + services.deadlines.send_seconds + ABSENT_SLACK_SECONDS
    if word.answer.outcome == "absent" and asked_at <= counts_after:
        raise Blocked(
            TOO_EARLY, "the CMS does not have it yet, but the send may still arrive; try again", retryable=True
        )
    return word
