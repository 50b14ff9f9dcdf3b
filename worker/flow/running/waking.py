"""How a sweep wakes the steps of release runs whose next visit is due."""

from __future__ import annotations

from worker.domain.messages import RUN_STEP
from worker.flow.services import Services
from worker.store.due_runs import stamp_due_commands
from worker.store.engine import writing


def wake_visits(services: Services, room: int, recovery_seconds: float) -> tuple[str, ...]:
    """Stamp at most `room` due commands, send a message for each, and return the ids of their runs."""
    if room <= 0:
        return ()
    now = services.now()
    found = writing(
        services.engine,
        lambda conn: stamp_due_commands(conn, room=room, recovery_seconds=recovery_seconds, now=now),
    )
    for run_id, step_id, attempt_id in found:
        services.queue.wake(RUN_STEP, run_id=run_id, step_id=step_id, attempt_id=attempt_id)
    return tuple(run_id for run_id, _, _ in found)
