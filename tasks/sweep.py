"""The sweep: wake again whatever is due, expired or ready. Sent by beat; a sweep too early returns at once."""

from __future__ import annotations

from tasks.border import FleetTask
from worker.app import app, services
from worker.domain.messages import FLEET_SWEEP
from worker.flow.sweep_fleet import sweep_fleet


@app.task(name=FLEET_SWEEP, base=FleetTask)
def sweep() -> None:
    """Find whatever waits without a wake and wake it."""
    sweep_fleet(services())
