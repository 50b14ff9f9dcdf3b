"""What a visit to a step works on: the frozen run, and the lease under which it may act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker.domain.run_visit import FrozenEvent, frozen_events
from worker.store.run_commands import CommandLease


@dataclass(frozen=True, kw_only=True)
class Work:
    """One attempt at one step of a run, under this worker's lease on its command."""

    run_id: str
    step_id: str
    attempt_id: str
    site_id: str
    events: tuple[FrozenEvent, ...]
    lease: CommandLease


def work_on(record: Mapping[str, Any], lease: CommandLease) -> Work:
    """Return the work on a run's record under a lease."""
    return Work(
        run_id=record["run_id"],
        step_id=lease.step_id,
        attempt_id=lease.attempt_id,
        site_id=record["immutable"]["input"]["channel"],
        events=frozen_events(record),
        lease=lease,
    )
