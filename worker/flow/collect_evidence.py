"""Step: collect evidence. Claim what is due, ask for every row at once, settle what finished, say what became ready.

One thread of a process does this at a time, for all rows that the process has places for; nobody waits for anybody.
No connection is held while a call is open. A process that dies here loses nothing but attempts: leases end by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from worker.domain.review import Collected
from worker.flow.collecting.collection import Collection
from worker.flow.collecting.open_calls import OpenCalls
from worker.flow.services import Services


def collect_evidence(services: Services, event_id: str | None, *, ready: Callable[[str], None]) -> Collected:
    """Claim due evidence rows and see them through until none is due and no call is open; return the counts.

    `event_id` only breaks ties between rows that are equally due. `ready` is called with each event that became ready,
    after the commit that made it so; what it raises as `Blocked` is left to the sweeper. Where another thread of the
    process collects already, a wake is left with it and this returns at once. A drain stops claiming and lets open
    calls finish. Raises `Unavailable` when the database is away and nothing is in hand that could still be settled.
    """
    calls = OpenCalls.enter(services)
    if calls is None:
        return Collected()
    try:
        return Collection(services, event_id, ready, calls).run()
    finally:
        calls.leave()
