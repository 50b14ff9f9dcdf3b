"""The lines about leases that a sweep took away because they had run out. Not a step; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from worker.domain.attempt import LEASE_EXPIRED

log = structlog.get_logger(__name__)

SUBJECTS: Final = (("evidence", "request_id"), ("run_command", "attempt_id"), ("delivery", "delivery_id"))


def tell_expired(moved: Sequence[Mapping[str, str]]) -> None:
    """Write one line for each lease: of evidence, of commands and of deliveries, with the state its row went to."""
    for (subject, name), rows in zip(SUBJECTS, moved, strict=True):
        for row_id, state in sorted(rows.items()):
            log.warning(f"{subject}.expired", code=LEASE_EXPIRED, state=state, **{name: row_id})
