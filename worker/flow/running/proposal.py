"""What became of an interrupted publication, by the CMS's signed answers and our own rows. Moves nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Connection

from worker.domain.attempt import FAILED
from worker.domain.errors import RunConflict, RunNotFound
from worker.domain.run import is_mutating
from worker.domain.run_visit import DeliveryStanding, Told, frozen_events, proposed_outcome
from worker.domain.turn import ABSENT_SLACK_SECONDS
from worker.flow.cms_call import ask_about
from worker.flow.cms_reply import Reply
from worker.flow.services import Services
from worker.store.deliveries import Delivery, get_delivery
from worker.store.delivery_answers import Word, append_word
from worker.store.engine import read_clock, reading, writing
from worker.store.installation import workspace_fingerprint
from worker.store.run_facts import accepting_words, delivery_standings
from worker.store.run_rows import read_run

AT_ONCE = 20
SENDING = "run.delivery_leased"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What the CMS and our own rows say of every delivery of a run, and the outcome that follows from it."""

    outcome: str
    told: tuple[Told, ...]
    words: dict[str, Word] = field(repr=False)  # the signed look-up answers that count, by delivery id


def propose(services: Services, run_id: str, step_id: str) -> Proposal:
    """Ask the CMS for every delivery of an interrupted run that is in doubt, keep its signed answers, and propose.

    All accepted: `effect_succeeded`; any without an answer that counts: `unresolved`; else `effect_absent`, and the
    restart skips what was accepted. Raises `RunConflict` where the step is not an interrupted mutating one of a
    localization run, or a delivery of the run is being sent right now.
    """
    with reading(services.engine) as conn:
        record = read_run(conn, run_id, workspace=workspace_fingerprint(services.engine), lock=False)
        steps = {step["id"]: step for step in record["state"]["steps"]}
        if step_id not in steps:
            raise RunNotFound
        frozen = frozen_events(record)
        if steps[step_id]["state"] != "interrupted" or not is_mutating(record, step_id) or not frozen:
            raise RunConflict("only an interrupted publication is reconciled; see locseal runs show")
        standings = delivery_standings(conn, frozen, now=services.now())
        if any(one.is_leased for one in standings):
            raise RunConflict(
                "a delivery of this run is being sent or asked about right now; try again shortly", code=SENDING
            )
        doubtful = [get_delivery(conn, one.delivery_id) for one in standings if one.delivery_id and one.is_unknown]
        kept = accepting_words(conn, frozen)
        asked_at = read_clock(conn, services.now())
    replies: dict[str, Reply] = {}
    asking = [one for one in doubtful if one is not None and services.cms(one.site_id).has_lookup]
    for start in range(0, len(asking), AT_ONCE):
        few = asking[start : start + AT_ONCE]
        replies |= dict(zip((one.delivery_id for one in few), ask_about(services, few), strict=True))
    services.checkpoint("run.asked")
    words = {delivery_id: reply.word for delivery_id, reply in replies.items() if reply.word is not None}

    def keep(conn: Connection) -> None:
        for delivery in asking:  # an answer about an unknown outcome is kept by what settles the delivery with it
            word = words.get(delivery.delivery_id)
            if word is not None and not delivery.is_outcome_unknown:
                append_word(conn, delivery.delivery_id, word, now=services.now())

    if words:
        writing(services.engine, keep)
    known = {one.delivery_id: one for one in doubtful if one is not None}
    told = tuple(_told(services, one, known, words, kept.get(one.delivery_id or ""), asked_at) for one in standings)
    counting = {one.delivery_id for one in told if one.outcome != "unknown"}
    return Proposal(
        outcome=proposed_outcome(told),
        told=told,
        words={delivery_id: word for delivery_id, word in words.items() if delivery_id in counting},
    )


def _told(
    services: Services,
    one: DeliveryStanding,
    known: dict[str, Delivery],
    words: dict[str, Word],
    kept: tuple[str, str | None] | None,
    asked_at: float,
) -> Told:
    told = partial(Told, source_id=one.source_id, event_id=one.event_id, delivery_id=one.delivery_id)
    if one.is_accepted:
        kind, kid = kept or ("acknowledgement", None)
        return told(outcome="accepted", word=kind, kid=kid)
    if one.delivery_id is None or not one.is_unknown:
        return told(outcome="absent", word="refused" if one.status == FAILED else "never sent")
    word = words.get(one.delivery_id)
    if word is None:
        return told(outcome="unknown", word="none", note="no signed answer; ask again, or look at the CMS")
    sent_at = known[one.delivery_id].sent_at or 0.0
    if word.answer.outcome == "accepted":
        return told(outcome="accepted", word="lookup", kid=word.answer.kid)
    if asked_at <= sent_at + services.deadlines.send_seconds + ABSENT_SLACK_SECONDS:
        return told(outcome="unknown", word="none", note="absent, but the last send may still arrive; ask again")
    return told(outcome="absent", word="lookup", kid=word.answer.kid)
