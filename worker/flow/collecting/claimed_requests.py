"""What claimed rows ask about, loaded together; and those that need no call: altered in the store, or approved already.

Not a step. Nothing is written here; what it finds is settled with the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceRequest
from worker.domain.review import REQUEST_TAMPERED, Deferred, Ending, Refused, Reused
from worker.flow.services import Services
from worker.store.approvals import StoredApproval, choose, standing_approvals, verify_approval
from worker.store.due_evidence import ClaimedRow
from worker.store.engine import reading
from worker.store.requests import load_requests

KEYS_UNREADABLE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The verified requests by request id, and the endings of rows that are not to be asked about."""

    requests: Mapping[str, EvidenceRequest]
    endings: Mapping[str, Ending]


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
    for request_id, request in loaded.requests.items():
        ending = _reuse(services, request, standing.get(request.key.job_id, ()))
        if ending is not None:
            endings[request_id] = ending
    return Opened(requests=loaded.requests, endings=endings)


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
