"""What a system test asks a database, a broker or a sandbox about; every question is one read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import text

from worker.cli.local_fleet import Child, LocalFleet, wait_for
from worker.cli.local_stage import Stage


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The end state that SPEC speaks of."""

    approvals: int
    deliveries: int
    delivered: int
    acknowledgements: int
    leased: int
    rejections: int


DONE = Facts(approvals=27, deliveries=1, delivered=1, acknowledgements=1, leased=0, rejections=0)


def facts(stage: Stage) -> Facts:
    """Return how things stand in the database."""
    with stage.engine.connect() as conn:

        def count(statement: str) -> int:
            return int(conn.execute(text(f"SELECT count(*) FROM {statement}")).scalar_one())

        return Facts(
            approvals=count("approvals"),
            deliveries=count("deliveries"),
            delivered=count("deliveries WHERE status = 'succeeded'"),
            acknowledgements=count("delivery_answers WHERE kind = 'acknowledgement' AND outcome = 'accepted'"),
            leased=count("evidence WHERE status = 'leased'") + count("deliveries WHERE status = 'leased'"),
            rejections=count("rejections"),
        )


def attempts(stage: Stage) -> list[int]:
    """Return the attempts of each evidence row."""
    with stage.engine.connect() as conn:
        return [int(row[0]) for row in conn.execute(text("SELECT attempts FROM evidence ORDER BY request_id"))]


def is_delivered(stage: Stage) -> bool:
    """Tell whether every delivery is acknowledged, and there is one."""
    seen = facts(stage)
    return seen.delivered == seen.deliveries > 0


def published(stage: Stage) -> list[tuple[str, int]]:
    """Return the sandbox CMS's publications with how often each delivery arrived there."""
    state = stage.control()
    return [(entry["delivery_id"], state["posts"][entry["delivery_id"]]) for entry in state["publications"]]


def started(fleet: LocalFleet, name: str = "worker", **settings: str) -> Child:
    """Return a worker that takes messages."""
    worker = fleet.start_worker(name, settings=settings)
    fleet.wait_for_worker(worker)
    return worker


def until(condition: Callable[[], bool], fleet: LocalFleet, what: str, seconds: float = 60.0) -> None:
    """Wait for a condition while a supervisor starts again whatever ends."""

    def supervised() -> bool:
        fleet.revive()
        return condition()

    wait_for(supervised, None, what, seconds)
