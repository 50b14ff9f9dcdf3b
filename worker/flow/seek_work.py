"""Step: see whether due work waits that this worker could take, and ask for it as the sweeper would."""

from __future__ import annotations

from collections.abc import Collection

from worker.domain.messages import DELIVERY_PUBLISH, EVIDENCE_COLLECT, RUN_STEP
from worker.domain.stall import WorkKind
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.overdue import overdue_command, overdue_delivery, overdue_evidence


def seek_work(services: Services, kinds: Collection[WorkKind], *, overdue_seconds: float) -> frozenset[WorkKind]:
    """Return those kinds of which work waits that may be taken, and was due for so long; one of each is woken.

    A kind whose wake the broker did not take is left out: while nobody can be asked, nobody is to blame. Executes
    nothing itself. Raises `Unavailable`, and `Blocked` where the policies cannot be read.
    """
    now, seconds = services.now(), overdue_seconds
    found: dict[WorkKind, tuple[str, dict[str, str]]] = {}
    with reading(services.engine) as conn:
        if "evidence" in kinds:
            event_id = overdue_evidence(conn, seconds=seconds, limits=services.policies.limits(), now=now)
            if event_id is not None:
                found["evidence"] = (EVIDENCE_COLLECT, {"event_id": event_id})
        if "delivery" in kinds:
            event_id = overdue_delivery(
                conn,
                seconds=seconds,
                is_guided=lambda site_id: services.policies.for_site(site_id).publication == "guided",
                now=now,
            )
            if event_id is not None:
                found["delivery"] = (DELIVERY_PUBLISH, {"event_id": event_id})
        if "runs" in kinds:
            command = overdue_command(conn, seconds=seconds, now=now)
            if command is not None:
                found["runs"] = (RUN_STEP, dict(zip(("run_id", "step_id", "attempt_id"), command, strict=True)))
    return frozenset(kind for kind, (message, ids) in found.items() if services.queue.wake(message, **ids))
