"""Faults around one worker, and the same end each time: 27 approvals, one delivery, one publication."""

from __future__ import annotations

import re
import signal

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import URL, make_url

from tests.system.facts import DONE, Facts, attempts, facts, is_delivered, published, started, until
from worker.cli.local_fleet import LocalFleet, wait_for
from worker.cli.local_stage import Stage


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restarted_redis(fleet: LocalFleet, sqlite_stage: Stage, signed: str, number: int) -> None:
    """Redis is killed, or stopped cleanly, without persistence and with calls in hand; its messages are gone."""
    stage = sqlite_stage
    stage.control({"provider": {"delay_seconds": 2.0}})
    started(fleet)
    fleet.start_beat()
    stage.submit(signed)
    wait_for(lambda: facts(stage).leased == 27, None, "the leases")
    broker = fleet.children[0]
    broker.send(number)
    broker.process.wait(timeout=10)
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert facts(stage) == DONE
    assert attempts(stage) == [1] * 27
    assert [posts for _, posts in published(stage)] == [1]


def test_a_redis_that_is_away_for_long(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """A worker asks for Redis again every two seconds, also at the fourth time, and takes messages once it is back."""
    stage = sqlite_stage
    worker = started(fleet)
    broker = fleet.children.pop(0)
    broker.kill()
    wait_for(lambda: "(4/None)" in worker.log_text(), worker, "four tries", 60)
    waits = re.findall(r"Trying again in ([0-9.]+) seconds", worker.log_text())
    assert set(waits) == {"2.00"}
    fleet.start_broker()
    stage.submit(signed)
    fleet.start_beat()
    wait_for(lambda: is_delivered(stage), worker, "the delivery", 60)
    assert facts(stage) == DONE


def test_a_frozen_redis(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """Redis answers nothing for longer than every time-out of ours: what was settled stays settled, once."""
    stage = sqlite_stage
    stage.control({"provider": {"delay_seconds": 1.0}})
    worker = started(fleet)
    fleet.start_beat()
    stage.submit(signed)
    wait_for(lambda: facts(stage).leased == 27, worker, "the leases")
    fleet.children[0].send(signal.SIGSTOP)
    wait_for(lambda: facts(stage).approvals == 27, worker, "the approvals without Redis")
    wait_for(lambda: "wake.lost" in worker.log_text(), worker, "the lost wake")
    fleet.children[0].send(signal.SIGCONT)
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert facts(stage) == DONE
    assert attempts(stage) == [1] * 27
    assert [posts for _, posts in published(stage)] == [1]


def test_a_stopped_worker_finishes_what_it_has(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """SIGTERM during the calls: they are settled, their delivery is prepared, none is sent, and the exit code is 0."""
    stage = sqlite_stage
    stage.control({"provider": {"hold": True}})
    worker = started(fleet)
    stage.submit(signed)
    wait_for(lambda: stage.control()["running"]["provider"] == 27, worker, "the calls")
    worker.ask_to_stop()
    wait_for(lambda: "worker.draining" in worker.log_text(), worker, "the drain")
    stage.control({"provider": {}})
    assert worker.stop(60) == 0
    assert facts(stage) == Facts(approvals=27, deliveries=1, delivered=0, acknowledgements=0, leased=0, rejections=0)
    started(fleet)
    fleet.start_beat()
    wait_for(lambda: is_delivered(stage), None, "the delivery")
    assert facts(stage) == DONE
    assert attempts(stage) == [1] * 27


def test_a_killed_worker_loses_no_submission(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """A worker is killed with a submission in hand that it could not commit: Redis hands it out again."""
    stage = sqlite_stage
    quick = {"INTAKE_WAIT_SECONDS": "1", "INTAKE_PAUSE_SECONDS": "0.5", "VISIBILITY_TIMEOUT_SECONDS": "5"}
    fleet.settings |= quick
    worker = started(fleet)
    with stage.engine.begin() as conn:
        conn.execute(text("ALTER TABLE sources RENAME TO sources_away"))
    stage.submit(signed)
    wait_for(lambda: "intake.waiting" in worker.log_text(), worker, "the wait")
    worker.kill()
    with stage.engine.begin() as conn:
        conn.execute(text("ALTER TABLE sources_away RENAME TO sources"))
    fleet.start_beat()
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert facts(stage) == DONE
    assert [posts for _, posts in published(stage)] == [1]


@pytest.fixture
def admin(postgres_stage: Stage) -> Engine:
    """A connection to the PostgreSQL server outside the fleet's database."""
    url: URL = make_url(postgres_stage.fleet.settings["DATABASE_URL"])
    return create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")


def test_a_database_that_is_away(fleet: LocalFleet, postgres_stage: Stage, signed: str, admin: Engine) -> None:
    """The database refuses and drops every connection while submissions arrive; when it is back, all goes on."""
    stage = postgres_stage
    name = make_url(fleet.settings["DATABASE_URL"]).database
    worker = started(fleet)
    fleet.start_beat()
    with admin.connect() as conn:
        conn.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'))
        conn.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}
        )
        for _ in range(3):
            stage.submit(signed)
        wait_for(lambda: worker.log_text().count("intake.waiting") >= 6, worker, "the waits")
        conn.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'))
    admin.dispose()
    stage.engine.dispose()  # its connections were dropped too
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert facts(stage) == DONE
    assert attempts(stage) == [1] * 27
    assert worker.is_running()
    assert [posts for _, posts in published(stage)] == [1]
