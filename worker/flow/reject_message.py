"""Step: keep the rejection of a message that never became a document (unknown version, unknown field, no string)."""

from __future__ import annotations

from worker.domain.acceptance import Acceptance, refusal_of
from worker.flow.services import Services
from worker.store.rejections import refuse


def reject_message(services: Services, *, message: str, body: bytes, code: str, path: str) -> Acceptance:
    """Keep the rejection of one message by the wire name it came by, with the hash and size of its bytes.

    A repeat only counts up. Raises `Unavailable` when the database cannot answer. Safe to run concurrently.
    """
    refusal = refusal_of(message, body, code, path, keep_body=services.keep_rejected_bodies)
    services.checkpoint("reject.refused")
    answer = refuse(services.engine, refusal, now=services.now())
    services.checkpoint("reject.recorded")
    return answer
