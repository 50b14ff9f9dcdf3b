"""Step: take a submission in. Verified first, stored in one transaction, and only then somebody is woken.

The message is the only copy of what it says until the commit; so whatever is wrong with the document ends in a
rejection row, and whatever is wrong with us (database, key files) is raised, for the task to try again.
"""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain.acceptance import Acceptance, message_bytes, refusal_of
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Invalid
from worker.domain.messages import DELIVERY_PREPARE, EVIDENCE_COLLECT, RELEASE_SUBMIT
from worker.domain.signature import parse_signed, verify_detached
from worker.domain.submission import INVALID, LONGEST_SUBMISSION_BYTES, parse_submission
from worker.domain.trace import TraceContext
from worker.flow.services import Services
from worker.flow.tracing.kept import begin_event_trace, tell_event
from worker.store.engine import writing
from worker.store.intakes import Incoming, TakenIn, take_in
from worker.store.rejections import refuse
from worker.store.submissions import arrival_time

SIGNATURE_INVALID = "submission.signature.invalid"
NOT_FOR_SITE = "submission.key.not_for_site"


def accept_submission(services: Services, text: str) -> Acceptance:
    """Accept one signed submission, the exact text of its message, or keep its rejection.

    Returns `accepted` once it is committed, also for an exact repeat, which changes nothing; `rejected` with a stable
    code and the path of the offending member. Never raises for what the document says; raises `Unavailable` when the
    database or the keys cannot answer, and then nothing was written. Safe to run concurrently, and twice.
    """
    body = message_bytes(text)
    now, began = services.now(), services.monotonic()
    try:
        incoming = _verified(services, text, body)
    except Invalid as fault:
        return _reject(services, body, fault)
    event_id = incoming.submission.event.event_id
    services.checkpoint("submit.verified")

    def work(conn: Connection) -> tuple[TakenIn, TraceContext | None]:
        taken = take_in(conn, incoming, now=now)
        trace = begin_event_trace(services, conn, event_id)
        services.checkpoint("submit.written")
        return taken, trace

    try:
        taken, trace = writing(services.engine, work)
    except Invalid as fault:
        return _reject(services, body, fault)
    services.checkpoint("submit.committed")
    tell_event(services, trace, RELEASE_SUBMIT, event_id, began=began)
    _wake(services, taken, event_id)
    return Acceptance(document_sha256=incoming.document_sha256, state="accepted", event_id=event_id)


def _verified(services: Services, text: str, body: bytes) -> Incoming:
    """Return the submission once its signature, its own rules and its key's site hold; else raise `Invalid`."""
    trust = services.keys.trust("submission")
    arrived_at = arrival_time(services.engine, trust, now=services.now())
    signed = parse_signed(text, max_bytes=LONGEST_SUBMISSION_BYTES, code=INVALID)
    key = verify_detached(trust, signed.payload(), signed.signature, code=SIGNATURE_INVALID, signed_at=arrived_at)
    submission = parse_submission(signed.document)
    if not key.speaks_for(submission.site_id):
        raise Invalid(
            NOT_FOR_SITE, "the key may not speak for this site; name the site in its trust entry", path="event.site_id"
        )
    return Incoming(
        document_sha256=sha256_hex(body),
        body=text,
        submission=submission,
        places={item["job_id"]: place for place, item in reversed([*enumerate(signed.document["results"])])},
        key=key,
        policy=services.policies.for_site(submission.site_id),
        approval_trust=lambda: services.keys.trust("approval"),
    )


def _reject(services: Services, body: bytes, fault: Invalid) -> Acceptance:
    """Keep the rejection of a message whose transaction, if it had one, is undone."""
    refusal = refusal_of(RELEASE_SUBMIT, body, fault.code, fault.path, keep_body=services.keep_rejected_bodies)
    services.checkpoint("submit.refused")
    answer = refuse(services.engine, refusal, now=services.now())
    services.checkpoint("submit.rejected")
    return answer


def _wake(services: Services, taken: TakenIn, event_id: str) -> None:
    """Say once that evidence is due, and of each event that standing approvals answered, that it may be ready."""
    if taken.asks:
        services.queue.wake(EVIDENCE_COLLECT, event_id=event_id if event_id in taken.asks else taken.asks[0])
    for approved in taken.approved:
        services.queue.wake(DELIVERY_PREPARE, event_id=approved)
    services.checkpoint("submit.woken")
