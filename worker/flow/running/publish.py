"""The visit to `publish`: permit what is not accepted yet, wake who sends it, and see whether all is acknowledged.

The sending itself is `publish_delivery`'s, under each delivery's own lease and with all its checks. Nothing is sent
without a permit of this attempt, and a permit dies with the command.
"""

from __future__ import annotations

from sqlalchemy import Connection

from worker.domain.errors import Blocked
from worker.domain.messages import DELIVERY_PUBLISH
from worker.domain.run_visit import Again, Ended, Ending, after_publishing
from worker.flow.running.work import Work
from worker.flow.services import Services
from worker.store.engine import reading, writing
from worker.store.permits import grant_permits
from worker.store.run_commands import is_held
from worker.store.run_facts import delivery_standings

MOST_WAKES = 200
LOST = "run.lease_lost"
WAITS = "run.waits_for_cms"


def publish_all(services: Services, work: Work) -> Ending:
    """End the step once every delivery is acknowledged, or one failed; permit the others and wake who sends them.

    Ends with `permit_held` where another run is publishing one of them. Raises `run.lease_lost` where somebody resumed
    the run meanwhile; then nothing was permitted.
    """
    with reading(services.engine) as conn:
        standings = delivery_standings(conn, work.events, now=services.now())
    ended = after_publishing(standings)
    if ended is not None:
        return ended
    sending = [one for one in standings if not one.is_accepted and one.delivery_id is not None]

    def permit(conn: Connection) -> tuple[str, ...]:
        if not is_held(conn, work.lease, now=services.now()):
            raise Blocked(LOST, "the run was resumed, or the lease on its step ran out; nothing more is done")
        ids = [one.delivery_id for one in sending if one.delivery_id is not None]
        return grant_permits(conn, ids, run_id=work.run_id, attempt_id=work.attempt_id, now=services.now())

    if writing(services.engine, permit):
        return Ended(code="permit_held", succeeded=False)
    services.checkpoint("run.permitted")
    for one in [one for one in sending if one.is_due][:MOST_WAKES]:
        services.queue.wake(DELIVERY_PUBLISH, event_id=one.event_id)
    services.checkpoint("run.sending")
    return Again(code=WAITS)
