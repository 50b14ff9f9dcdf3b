"""Step: withdraw an event that is not published, or keep the withdrawal until its event arrives."""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain.acceptance import Acceptance, message_bytes, refusal_of
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Invalid
from worker.domain.messages import RELEASE_WITHDRAW
from worker.domain.signature import parse_signed, verify_detached
from worker.domain.submission import LONGEST_WITHDRAWAL_BYTES, parse_withdrawal
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.rejections import refuse
from worker.store.submissions import arrival_time
from worker.store.withdrawals import Retraction, take_back

INVALID = "withdrawal.invalid"
SIGNATURE_INVALID = "withdrawal.signature.invalid"
NOT_FOR_SITE = "submission.key.not_for_site"


def withdraw_event(services: Services, text: str) -> Acceptance:
    """Accept one signed withdrawal, the exact text of its message, or keep its rejection.

    Returns `accepted` once the event is withdrawn or, where it is not known yet, will be on arrival; repeats change
    nothing. Returns `rejected` with `withdrawal.in_flight` or `withdrawal.published` where it comes too late, and with
    a code and path of its own where the document is wrong. Raises only `Unavailable`. Safe to run concurrently.
    """
    body = message_bytes(text)
    now = services.now()
    try:
        retraction = _verified(services, text, body)
    except Invalid as fault:
        return _reject(services, body, fault)
    services.checkpoint("withdraw.verified")

    def work(conn: Connection) -> None:
        take_back(conn, retraction, now=now)
        services.checkpoint("withdraw.written")

    try:
        writing(services.engine, work)
    except Invalid as fault:
        return _reject(services, body, fault)
    services.checkpoint("withdraw.committed")
    return Acceptance(document_sha256=retraction.document_sha256, state="accepted", event_id=retraction.event_id)


def _verified(services: Services, text: str, body: bytes) -> Retraction:
    """Return the withdrawal once its signature, its own rules and its key's site hold; else raise `Invalid`."""
    trust = services.keys.trust("submission")
    arrived_at = arrival_time(services.engine, trust, now=services.now())
    signed = parse_signed(text, max_bytes=LONGEST_WITHDRAWAL_BYTES, code=INVALID)
    key = verify_detached(trust, signed.payload(), signed.signature, code=SIGNATURE_INVALID, signed_at=arrived_at)
    withdrawal = parse_withdrawal(signed.document)
    if not key.speaks_for(withdrawal.site_id):
        raise Invalid(
            NOT_FOR_SITE, "the key may not speak for this site; name the site in its trust entry", path="site_id"
        )
    return Retraction(
        document_sha256=sha256_hex(body),
        body=text,
        event_id=withdrawal.event_id,
        site_id=withdrawal.site_id,
        key=key,
    )


def _reject(services: Services, body: bytes, fault: Invalid) -> Acceptance:
    """Keep the rejection of a message whose transaction, if it had one, is undone."""
    refusal = refusal_of(RELEASE_WITHDRAW, body, fault.code, fault.path, keep_body=services.keep_rejected_bodies)
    services.checkpoint("withdraw.refused")
    answer = refuse(services.engine, refusal, now=services.now())
    services.checkpoint("withdraw.rejected")
    return answer
