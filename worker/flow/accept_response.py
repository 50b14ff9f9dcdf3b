"""Step: take in a finished review that its provider hands in, for the next claim to use in place of a call."""

from __future__ import annotations

from worker.domain.acceptance import Acceptance, message_bytes, refusal_of
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Invalid
from worker.domain.evidence import LONGEST_RESPONSE_BYTES, judge_response
from worker.domain.identifier import require_token
from worker.domain.messages import EVIDENCE_COLLECT, EVIDENCE_SUBMIT
from worker.domain.review import REQUEST_TAMPERED
from worker.domain.signature import parse_signed, verify_detached
from worker.flow.services import Services
from worker.store.engine import reading, writing
from worker.store.rejections import refuse
from worker.store.requests import load_requests
from worker.store.responses import Handed, asked_key, take_response
from worker.store.submissions import arrival_time

INVALID = "evidence.response.invalid"
SIGNATURE_INVALID = "evidence.response.signature.invalid"


def accept_response(services: Services, text: str) -> Acceptance:
    """Accept one signed response to an evidence request, the exact text of its message, or keep its rejection.

    Its signature, its request and its shape are judged here, so that a bad one costs the request nothing; its receipts
    are verified under the lease of the claim that uses it, like those of an answer that was asked for. Returns
    `accepted` once it is committed, also for a repeat, or `rejected` with a stable code: `evidence.request.unknown`,
    `evidence.request.finished` where the request needs no answer any more, or whatever is wrong with the answer. Raises
    only `Unavailable`. Safe to run concurrently, and twice.
    """
    body = message_bytes(text)
    try:
        handed = _verified(services, text, body)
        services.checkpoint("respond.verified")
        event_id = writing(services.engine, lambda conn: take_response(conn, handed, now=services.now()))
    except Invalid as fault:
        refusal = refusal_of(EVIDENCE_SUBMIT, body, fault.code, fault.path, keep_body=services.keep_rejected_bodies)
        answer = refuse(services.engine, refusal, now=services.now())
        services.checkpoint("respond.rejected")
        return answer
    services.checkpoint("respond.committed")
    services.queue.wake(EVIDENCE_COLLECT, event_id=event_id)
    return Acceptance(document_sha256=handed.document_sha256, state="accepted", event_id=event_id)


def _verified(services: Services, text: str, body: bytes) -> Handed:
    """Return the answer once its signature, its request and its shape hold; else raise `Invalid`."""
    trust = services.keys.trust("evidence")
    arrived_at = arrival_time(services.engine, trust, now=services.now())
    signed = parse_signed(text, max_bytes=LONGEST_RESPONSE_BYTES, code=INVALID)
    key = verify_detached(trust, signed.payload(), signed.signature, code=SIGNATURE_INVALID, signed_at=arrived_at)
    request_id = signed.document.get("request_id")
    require_token(request_id, INVALID, "request_id")
    with reading(services.engine) as conn:
        asked = asked_key(conn, str(request_id))
        loaded = load_requests(conn, [asked], now=services.now())
    request = loaded.requests.get(asked.request_id)
    if request is None:
        raise Invalid(REQUEST_TAMPERED, "what is stored of this request is not what was asked; audit the event")
    judge_response(request, dict(signed.document))
    return Handed(
        document_sha256=sha256_hex(body),
        body=text,
        request_id=asked.request_id,
        site_id=request.site_id,
        key=key,
    )
