"""How the outcome of an interrupted publication is recorded, and its deliveries go on from there."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from worker.domain import run
from worker.domain.messages import DELIVERY_PUBLISH
from worker.domain.run_visit import frozen_events
from worker.flow.services import Services
from worker.store.deliveries import get_delivery
from worker.store.delivery_answers import Word
from worker.store.engine import reading, writing
from worker.store.installation import workspace_fingerprint
from worker.store.run_facts import delivery_standings
from worker.store.run_rows import read_run
from worker.store.runs import RunStore
from worker.store.sends import reconcile


def record_outcome(
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
    run.check_reconcile(step_id, request_id, outcome, confirmation)
    workspace = workspace_fingerprint(services.engine)
    store = RunStore(services.engine, workspace_fingerprint=workspace, now=services.now())
    view = store.reconcile_step(run_id, step_id, request_id=request_id, outcome=outcome, confirmation=confirmation)
    services.checkpoint("run.reconciled")

    def settle(conn: Connection) -> None:
        for delivery_id, word in sorted(words.items()):
            delivery = get_delivery(conn, delivery_id)
            if delivery is not None and delivery.is_outcome_unknown:
                reconcile(conn, delivery, word, is_accepted=word.answer.outcome == "accepted", now=services.now())

    if words:
        writing(services.engine, settle)
    with reading(services.engine) as conn:
        record = read_run(conn, run_id, workspace=workspace, lock=False)
        doubtful = [one for one in delivery_standings(conn, frozen_events(record), now=services.now()) if one.in_doubt]
    for one in doubtful:
        services.queue.wake(DELIVERY_PUBLISH, event_id=one.event_id)
    return view
