"""Step: find again whatever is expired, due or ready, and wake it: the fleet's answer to every message that was lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from worker.domain.messages import DELIVERY_PREPARE, DELIVERY_PUBLISH, EVIDENCE_COLLECT
from worker.flow.running.waking import wake_visits
from worker.flow.services import Services
from worker.store.due import stamp_due_deliveries, stamp_due_evidence, stamp_ready_events, take_turn_to_sweep
from worker.store.engine import writing
from worker.store.leases import DELIVERIES, EVIDENCE, QUARANTINED
from worker.store.revisions import close_ended
from worker.store.run_commands import RUN_COMMANDS

MOST_WAKES = 200
MOST_EXPIRED = 1000  # leases of each kind that one sweep takes away


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What one sweep did; nothing at all where the interval's turn was taken. Wakes are event ids."""

    is_turn: bool
    expired_evidence: int = 0
    expired_deliveries: int = 0
    quarantined: tuple[str, ...] = ()  # ids of rows that failed since their leases ran out too often
    visits: tuple[str, ...] = ()  # run ids
    prepares: tuple[str, ...] = ()
    publishes: tuple[str, ...] = ()
    collects: tuple[str, ...] = ()


def sweep_fleet(
    services: Services,
    *,
    room: int = MOST_WAKES,
    visits_room: int = MOST_WAKES,
    interval_seconds: float = 2.0,
    recovery_seconds: float = 10.0,
) -> Swept:
    """Expire leases, then wake what is ready or due and was not woken within the recovery bound.

    `room` is how many messages the queues still have room for (`visits_room` that of the runs); at most 200 wakes are sent, none where it is 0 or less.
    Steps of runs, ready events and due deliveries take at most a third each, evidence the rest. Executes nothing itself. Raises
    `Unavailable`. Safe to run twice at once: one of the two finds the interval's turn taken and returns.
    """
    engine, now = services.engine, services.now()
    if not writing(engine, lambda conn: take_turn_to_sweep(conn, interval_seconds=interval_seconds, now=now)):
        return Swept(is_turn=False)
    services.checkpoint("sweep.turn")

    def expire(conn: Connection) -> tuple[dict[str, str], ...]:
        tables = (EVIDENCE, RUN_COMMANDS, DELIVERIES)
        moved = tuple(one.expire(conn, now=now, most=MOST_EXPIRED, bound=services.quarantine) for one in tables)
        close_ended(conn, moved[0], now=now)  # of events that ended while the row was leased
        return moved

    expired = writing(engine, expire)
    services.checkpoint("sweep.expired")
    services.meters.expired(evidence=len(expired[0]), deliveries=len(expired[2]))
    room = min(room, MOST_WAKES)
    third = max(1, room // 3)

    def ready(conn: Connection) -> tuple[str, ...]:
        return stamp_ready_events(
            conn,
            room=third,
            recovery_seconds=recovery_seconds,
            accepted=lambda site_id: services.policies.for_site(site_id).accepted,
            now=now,
        )

    def deliver(conn: Connection) -> tuple[str, ...]:
        return stamp_due_deliveries(
            conn,
            room=most,
            recovery_seconds=recovery_seconds,
            is_guided=lambda site_id: services.policies.for_site(site_id).publication == "guided",
            now=now,
        )

    visits = wake_visits(services, min(third, visits_room) if room > 0 else 0, recovery_seconds)
    room -= len(visits)
    prepares = _wake(services, DELIVERY_PREPARE, ready, room)
    most = min(third, room - len(prepares))
    publishes = _wake(services, DELIVERY_PUBLISH, deliver, most)
    left = room - len(prepares) - len(publishes)

    def collect(conn: Connection) -> tuple[str, ...]:
        return stamp_due_evidence(conn, room=left, recovery_seconds=recovery_seconds, now=now)

    collects = _wake(services, EVIDENCE_COLLECT, collect, left)
    return Swept(
        is_turn=True,
        expired_evidence=len(expired[0]),
        expired_deliveries=len(expired[2]),
        quarantined=tuple(sorted(row_id for one in expired for row_id, to in one.items() if to == QUARANTINED)),
        visits=visits,
        prepares=prepares,
        publishes=publishes,
        collects=collects,
    )


def _wake(
    services: Services, message: str, find: Callable[[Connection], tuple[str, ...]], room: int
) -> tuple[str, ...]:
    """Stamp what is found, then send its wakes; a wake that is lost between the two is found after the bound."""
    if room <= 0:
        return ()
    found = writing(services.engine, find)
    services.checkpoint(f"sweep.{message}")
    for event_id in found:
        services.queue.wake(message, event_id=event_id)
    return found
