"""Evidence: ask the review providers for whatever is due."""

from __future__ import annotations

from tasks.border import FleetTask
from tasks.delivery import prepare
from worker.app import app, services, takes
from worker.domain.messages import DELIVERY_PREPARE, EVIDENCE_COLLECT
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence


@app.task(name=EVIDENCE_COLLECT, base=FleetTask)
def collect(event_id: str) -> Collected:
    """Collect due evidence; the event of the message only breaks ties. An event that became ready is handed on.

    A worker that takes deliveries prepares the event itself, at once: that spares a message and its wait, and what was
    verified a moment ago is still remembered here.
    """
    here = services()

    def ready(ready_id: str) -> None:
        if takes(DELIVERY_PREPARE):
            prepare.run_here(event_id=ready_id)
        else:
            here.queue.wake(DELIVERY_PREPARE, event_id=ready_id)

    return collect_evidence(here, event_id, ready=ready)
