"""Step: find again whatever is expired, due or ready, and wake it: the fleet's answer to every message that was lost."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from worker.domain.messages import DELIVERY_PREPARE, DELIVERY_PUBLISH, EVIDENCE_COLLECT, RUN_STEP
from worker.flow.services import Services
from worker.flow.sweeping.wakes import Wakes
from worker.flow.tracing.expiries import tell_expired
from worker.store.due import stamp_due_deliveries, stamp_due_evidence, take_turn_to_sweep
from worker.store.due_runs import stamp_due_commands
from worker.store.engine import writing
from worker.store.leases import DELIVERIES, EVIDENCE, QUARANTINED
from worker.store.recovery import Found
from worker.store.revisions import close_ended
from worker.store.run_commands import RUN_COMMANDS
from worker.store.unprepared import stamp_ready_events

MOST_WAKES = 200
MOST_EXPIRED = 1000  # leases of each kind that one sweep takes away


@dataclass(frozen=True, kw_only=True)
class Swept:
    """What one sweep did; nothing at all where the interval's turn was taken. Wakes are those that were really sent."""

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

    `room` is how many messages the queues still have room for (`visits_room` that of the runs); at most 200 wakes are
    sent, none where it is 0 or less, and none after one that the broker did not take. Steps of runs, ready events and
    due deliveries take at most a third each, evidence the rest. Executes nothing itself, and keeps what it measured
    (`store.recovery`). Raises `Unavailable`. Safe to run twice at once: one of the two finds the turn taken.
    """
    engine, now, began = services.engine, services.now(), services.monotonic()
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
    tell_expired(expired)
    wakes = Wakes(services, room=min(room, MOST_WAKES))
    third = max(1, wakes.room // 3)

    def visit(conn: Connection, most: int) -> Found:
        return stamp_due_commands(conn, room=most, recovery_seconds=recovery_seconds, now=now)

    def ready(conn: Connection, most: int) -> Found:
        return stamp_ready_events(
            conn,
            room=most,
            recovery_seconds=recovery_seconds,
            accepted=lambda site_id: services.policies.for_site(site_id).accepted,
            now=now,
        )

    def deliver(conn: Connection, most: int) -> Found:
        return stamp_due_deliveries(
            conn,
            room=most,
            recovery_seconds=recovery_seconds,
            is_guided=lambda site_id: services.policies.for_site(site_id).publication == "guided",
            now=now,
        )

    def collect(conn: Connection, most: int) -> Found:
        return stamp_due_evidence(conn, room=most, recovery_seconds=recovery_seconds, now=now)

    visits = wakes.send(RUN_STEP, visit, min(third, visits_room))
    prepares = wakes.send(DELIVERY_PREPARE, ready, third)
    publishes = wakes.send(DELIVERY_PUBLISH, deliver, third)
    collects = wakes.send(EVIDENCE_COLLECT, collect, wakes.room)
    wakes.keep(took_seconds=services.monotonic() - began)
    return Swept(
        is_turn=True,
        expired_evidence=len(expired[0]),
        expired_deliveries=len(expired[2]),
        quarantined=tuple(sorted(row_id for one in expired for row_id, to in one.items() if to == QUARANTINED)),
        visits=tuple(one["run_id"] for one in visits),
        prepares=tuple(one["event_id"] for one in prepares),
        publishes=tuple(one["event_id"] for one in publishes),
        collects=tuple(one["event_id"] for one in collects),
    )
