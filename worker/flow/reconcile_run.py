"""Step: record what became of an interrupted publication, on an operator's word."""

from __future__ import annotations

from typing import Any

from worker.flow.running.outcome import record_outcome
from worker.flow.services import Services
from worker.store.delivery_answers import Word


def reconcile_run(
    services: Services,
    run_id: str,
    step_id: str,
    *,
    request_id: str,
    outcome: str,
    confirmation: str,
    words: dict[str, Word],
) -> dict[str, Any]:
    """Record an outcome with the confirmation word and return the run's view; the same request id does it once.

    `words` are the signed answers of a proposal: they settle the deliveries of unknown outcome. Those in doubt are
    woken and settle themselves by a look-up. Raises `RunConflict`, also while a delivery of the run is being sent.
    """
    return record_outcome(
        services, run_id, step_id, request_id=request_id, outcome=outcome, confirmation=confirmation, words=words
    )
