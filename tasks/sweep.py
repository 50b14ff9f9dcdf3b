"""The sweep: wake again whatever is due, expired or ready. Sent by beat; a sweep too early returns at once."""

from __future__ import annotations

from tasks.border import FleetTask
from worker.app import app, plant, queue
from worker.domain.messages import DELIVERY_PREPARE, EVIDENCE_COLLECT, FLEET_SWEEP, RUN_STEP
from worker.flow.renew_expiring import renew_expiring
from worker.flow.sweep_fleet import Swept, sweep_fleet


@app.task(name=FLEET_SWEEP, base=FleetTask)
def sweep() -> Swept:
    """Find whatever waits without a wake and wake it, as far as the queues have room; renew what is about to expire."""
    here = plant()
    swept = sweep_fleet(
        here.services,
        room=queue.room(here.settings.sweep_wakes, EVIDENCE_COLLECT, DELIVERY_PREPARE),
        visits_room=queue.room(here.settings.sweep_wakes, RUN_STEP),
        interval_seconds=here.settings.sweep_interval_seconds,
        recovery_seconds=here.settings.recovery_bound_seconds,
    )
    if swept.is_turn:
        renew_expiring(here.services)
    return swept
