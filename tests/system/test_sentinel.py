"""A fleet behind Redis Sentinel: real sentinel, real Redis, real worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.system.conftest import QUICK
from worker.cli.local_fleet import LocalFleet, free_port, installed_redis, wait_for
from worker.cli.local_stage import LOCSEAL
from worker.store.engine import open_engine
from worker.store.schema_version import migrate


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    """A fleet that knows its broker only through a Sentinel."""
    program = installed_redis()
    if program is None:
        missing("Redis", "redis-server is not installed")
    with LocalFleet(directory=tmp_path / "fleet", settings=dict(QUICK), broker_program=program) as own:
        own.start_broker()
        port = free_port()
        conf = own.directory / "broker" / "sentinel.conf"
        password = (own.directory / "broker" / "password").read_text()
        conf.write_text(
            f"bind 127.0.0.1\nport {port}\ndir {own.directory / 'broker'}\n"
            f"sentinel monitor watched 127.0.0.1 {own.broker_port} 1\nsentinel auth-pass watched {password}\n"
        )
        sentinel = own.start("sentinel", [program, conf, "--sentinel"])
        wait_for(lambda: "+monitor master watched" in sentinel.log_text(), sentinel, "the sentinel", 60)
        own.settings |= {"BROKER_URL": f"sentinel://127.0.0.1:{port}/0", "BROKER_SENTINEL_MASTER": "watched"}
        state = Path(own.settings["STATE_DIR"])
        engine = open_engine(f"sqlite:///{state / 'locseal.db'}")
        migrate(engine)
        engine.dispose()
        (state / "keys" / "trust").mkdir(parents=True)
        yield own


def test_a_fleet_behind_a_sentinel(fleet: LocalFleet) -> None:
    """A worker finds the Redis that is watched, survives a broken entry there, and doctor sees who reads its queues."""
    worker = fleet.start_worker()
    wait_for(lambda: "worker.started" in worker.log_text(), worker, "the worker", 60)
    with fleet.broker_client() as client:
        client.lpush("intake", "no JSON")
        wait_for(lambda: "queue.entry.unreadable" in worker.log_text(), worker, "the entry to be dropped", 60)
    asked = fleet.start("doctor", [*LOCSEAL, "doctor", "--json", "--flower", "http://127.0.0.1:1"])
    asked.process.wait(timeout=100)
    told = json.loads(asked.log_text())
    assert told["facts"]["broker"]["consumers"]["intake"] != []
    assert not {one["code"] for one in told["symptoms"]} & {"broker.unavailable", "queue.unconsumed"}
    assert worker.is_running()
