"""What claimed rows ask about, loaded together; and those that need no call: altered in the store, or approved already.

Not a step. Nothing is written here; what it finds is settled with the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from worker.domain.canonical import sha256_hex
from worker.domain.errors import Blocked
from worker.domain.evidence import LONGEST_RESPONSE_BYTES, EvidenceRequest
from worker.domain.review import REQUEST_TAMPERED, RESPONSE_TAMPERED, Deferred, Ending, Refused, Reused
from worker.domain.signature import parse_signed, verify_detached
from worker.flow.services import Services
from worker.store.approvals import StoredApproval, choose, standing_approvals, verify_approval
from worker.store.due_evidence import ClaimedRow
from worker.store.engine import reading
from worker.store.requests import PushedResponse, load_requests

KEYS_UNREADABLE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Opened:
    """By request id: the verified requests, the endings of rows not to be asked about, and answers handed in."""

    requests: Mapping[str, EvidenceRequest]
    endings: Mapping[str, Ending]
    pushed: Mapping[str, object]  # answers that were handed in, parsed and verified, unjudged


def open_requests(services: Services, rows: Sequence[ClaimedRow]) -> Opened:
    """Load the requests of claimed rows in one statement, one more where a job of theirs is approved already.

    Raises `Unavailable` when the database cannot answer.
    """
    now = services.now()
    with reading(services.engine) as conn:
        loaded = load_requests(conn, [row.key for row in rows], now=now)
        standing = standing_approvals(conn, loaded.approved_jobs, now=now) if loaded.approved_jobs else {}
    endings: dict[str, Ending] = {
        request_id: Refused(code=REQUEST_TAMPERED, retryable=False) for request_id in loaded.tampered
    }
    renewed = {row.key.request_id: row.renewed_at for row in rows}
    for request_id, request in loaded.requests.items():
        since = renewed[request_id] or 0.0
        ending = _reuse(services, request, [a for a in standing.get(request.key.job_id, ()) if a.approved_at >= since])
        if ending is not None:
            endings[request_id] = ending
    pushed: dict[str, object] = {}
    for request_id in loaded.pushed.keys() - endings.keys():
        answer = _handed_in(services, loaded.pushed[request_id])
        if isinstance(answer, Refused | Deferred):
            endings[request_id] = answer
        elif answer is not None:
            pushed[request_id] = answer
    return Opened(requests=loaded.requests, endings=endings, pushed=pushed)


def _handed_in(services: Services, pushed: PushedResponse) -> dict[str, Any] | Refused | Deferred | None:
    """Return the answer in the inbox, verified again; None where its key is not trusted any more: then ask anew."""
    try:
        if sha256_hex(pushed.body) != pushed.document_sha256:
            return Refused(code=RESPONSE_TAMPERED, retryable=False)
        signed = parse_signed(pushed.body, max_bytes=LONGEST_RESPONSE_BYTES, code=RESPONSE_TAMPERED)
        verify_detached(
            services.keys.trust("evidence"),
            signed.payload(),
            signed.signature,
            code=RESPONSE_TAMPERED,
            signed_at=pushed.received_at,
        )
    except Blocked as refusal:
        return Deferred(code=refusal.code, wait_seconds=KEYS_UNREADABLE_SECONDS) if refusal.retryable else None
    return dict(signed.document)


def _reuse(services: Services, request: EvidenceRequest, standing: Sequence[StoredApproval]) -> Ending | None:
    """Return how a standing approval answers a request, or None where the provider is to be asked."""
    accepted = services.policies.for_site(request.site_id).accepted
    chosen = choose(standing, result_sha256=request.key.result_sha256, accepted=accepted)
    if chosen is None:
        return None
    try:
        verify_approval(chosen, services.keys.trust("approval"))
    except Blocked as refusal:
        if refusal.retryable:  # our keys cannot be read now: asking again would only buy what cannot be signed
            return Deferred(code=refusal.code, wait_seconds=KEYS_UNREADABLE_SECONDS)
        return Refused(code=refusal.code, retryable=False)
    return Reused()
