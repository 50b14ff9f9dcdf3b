"""PostgreSQL is gone, server and all, while submissions arrive or calls are in hand; the end is the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.conftest import stage_on
from tests.system.facts import DONE, attempts, facts, is_delivered, published, started, until
from tests.system.own_postgres import OwnPostgres
from worker.cli.local_fleet import LocalFleet, wait_for
from worker.cli.local_stage import Stage


@pytest.fixture
def server() -> Iterator[OwnPostgres]:
    """A server that this test may stop."""
    own = OwnPostgres()
    try:
        own.start()
        yield own
    finally:
        own.close()


@pytest.fixture
def postgres_stage(fleet: LocalFleet, server: OwnPostgres) -> Iterator[Stage]:
    """A stage on that server."""
    yield from stage_on(fleet, server.url)


# Shorter than the wait in the slot (ten seconds), and longer (sixty, with the wait scaled from 120 to 3 seconds).
TEN_SECONDS = ({"INTAKE_WAIT_SECONDS": "60", "INTAKE_PAUSE_MAX_SECONDS": "2"}, "intake.waiting", 3 * 7)
SIXTY_SECONDS = ({"INTAKE_WAIT_SECONDS": "3", "INTAKE_PAUSE_MAX_SECONDS": "1"}, " rejected [Reject", 3 * 2)


@pytest.mark.parametrize(("settings", "fact", "times"), [TEN_SECONDS, SIXTY_SECONDS], ids=["ten", "sixty"])
def test_submissions_arrive_without_a_database(
    fleet: LocalFleet,
    postgres_stage: Stage,
    signed: str,
    server: OwnPostgres,
    settings: dict[str, str],
    fact: str,
    times: int,
) -> None:
    """Each submission is kept in its slot, or handed back to Redis and taken again, until it can be committed."""
    stage = postgres_stage
    fleet.settings |= {"INTAKE_PAUSE_SECONDS": "0.5", **settings}
    worker = started(fleet)
    fleet.start_beat()
    server.crash()
    stage.engine.dispose()
    for _ in range(3):
        stage.submit(signed)
    wait_for(lambda: worker.log_text().count(fact) >= times, worker, "the waits", 60)
    server.start()
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert facts(stage) == DONE
    assert attempts(stage) == [1] * 27
    assert worker.is_running()
    assert [posts for _, posts in published(stage)] == [1]


def test_the_answers_come_without_a_database(
    fleet: LocalFleet, postgres_stage: Stage, signed: str, server: OwnPostgres
) -> None:
    """The database goes while 27 calls are open and comes back within their leases: the answers are kept and count."""
    stage = postgres_stage
    stage.control({"provider": {"hold": True}})
    worker = started(fleet)
    stage.submit(signed)
    wait_for(lambda: stage.control()["running"]["provider"] == 27, worker, "the calls")
    server.crash()
    stage.engine.dispose()
    stage.control({"provider": {}})
    wait_for(lambda: stage.control()["running"]["provider"] == 0, worker, "the answers")
    fleet.start_beat()
    wait_for(lambda: worker.log_text().count('"task.blocked"') >= 3, worker, "sweeps in vain")
    server.start()
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert facts(stage) == DONE
    assert attempts(stage) == [1] * 27
    assert stage.control()["calls"]["provider"] == 27
    assert [posts for _, posts in published(stage)] == [1]
