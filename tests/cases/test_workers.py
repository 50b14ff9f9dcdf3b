"""Field cases of leases, attempts and rescue (D), by hard kills and clocks that lie."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from sqlalchemy import Engine, text

from tests.builders import NOW, Keyring, change_event
from tests.cases.scenes import SHORT_LEASE, calls, consumers, running, scalar, submit
from tests.fakes import RecordingQueue
from tests.intake_builders import Rows, change_row
from tests.intake_builders import submit as take_in
from tests.system.facts import DONE, attempts, facts, is_delivered, published, started, until
from worker.cli.demo_event import EVENT_ID
from worker.cli.local_fleet import Child, LocalFleet, wait_for
from worker.cli.local_stage import Stage
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.schema import evidence

SKEWED = """
import sys, time, time_machine
time_machine.travel(time.time() + float(sys.argv.pop(1)), tick=True).start()
from celery.__main__ import main
main()
"""


def skewed(fleet: LocalFleet, name: str, seconds: int) -> Child:
    """Return a worker whose clock is wrong by so much."""
    options = ["-A", "worker.app", "worker", "--without-gossip", "--without-mingle", "--hostname", f"{name}@%h"]
    worker = fleet.start(name, [sys.executable, "-c", SKEWED, str(seconds), *options])
    fleet.wait_for_worker(worker)
    return worker


def test_29_no_lease_follows_a_workers_clock(fleet: LocalFleet, postgres_stage: Stage, signed: str) -> None:
    """A clock of +90 s leases, one of -90 s tries at once and gets nothing, and all once the database says so."""
    stage = postgres_stage
    fleet.settings |= SHORT_LEASE
    stage.control({"provider": {"hold": True}})
    fast = skewed(fleet, "fast", 90)
    stage.submit(signed)
    wait_for(lambda: running(stage) == 27, fast, "the calls")
    left = float(scalar(stage, f"SELECT max(lease_expires_at) - {CLOCK} FROM evidence"))
    assert 0 < left <= 6
    with stage.engine.begin() as conn:  # so that starting a second worker may take its time
        conn.execute(text("UPDATE evidence SET lease_expires_at = lease_expires_at + 6"))
    fast.kill()
    fleet.children.remove(fast)
    stage.control({"provider": {}})
    slow = skewed(fleet, "slow", -90)
    assert stage.queue.wake("evidence.collect", event_id=EVENT_ID)
    wait_for(lambda: fleet.broker_client().llen("evidence") == 0 and consumers(fleet) == 1, slow, "the message")
    assert (calls(stage), attempts(stage)) == (27, [1] * 27)
    fleet.start_beat()
    wait_for(lambda: is_delivered(stage), slow, "the delivery")
    assert (facts(stage), attempts(stage)) == (DONE, [2] * 27)
    assert abs(float(scalar(stage, f"SELECT max(approved_at) - {CLOCK} FROM approvals"))) < 30
    assert "drift" not in slow.log_text()


CLOCK = "extract(epoch FROM clock_timestamp())::float"


def test_61_work_that_kills_its_worker_is_given_up(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """Every worker that calls dies before an answer: 2 attempts of 2 (the case says 5), 2 calls, then it has failed."""
    stage = sqlite_stage
    policy = fleet.directory / "policy.json"
    policy.write_text(json.dumps({"default": {"evidence_max_attempts": 2}}))
    fleet.settings |= {**SHORT_LEASE, "POLICY_FILE": str(policy)}
    stage.control({"provider": {"hold": True}})
    started(fleet)
    fleet.start_beat()
    submit(stage, "deadly", ["de"])
    for number in (1, 2):
        until(lambda least=number: calls(stage) == least, fleet, "the call")
        assert attempts(stage) == [number]  # counted before the call
        next(child for child in fleet.children if child.name == "worker").send(9)
    stage.control({"provider": {}})  # now it would work, and is not asked again
    until(lambda: scalar(stage, "SELECT status FROM evidence") == "failed", fleet, "the end")
    until(lambda: consumers(fleet) == 1, fleet, "a living worker")
    assert (calls(stage), attempts(stage), facts(stage).approvals) == (2, [2], 0)
    assert scalar(stage, "SELECT last_error_code FROM evidence") == "lease_expired"
    with stage.engine.connect() as conn:
        setbacks = conn.execute(text("SELECT attempt FROM setbacks ORDER BY attempt")).all()
    assert [row[0] for row in setbacks] == [1, 2]


def test_63_a_rolling_restart_strands_nothing(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """3 workers, 6 restarts with 0.5 s of grace while 40 rows are due (the case says 4, 22 and 2 s): all is delivered."""
    stage = sqlite_stage
    fleet.settings |= {**SHORT_LEASE, "CONCURRENT_CALLS": "3"}
    stage.control({"provider": {"delay_seconds": 0.5}})
    workers = [started(fleet, f"worker{number}") for number in range(3)]
    fleet.start_beat()
    for number in range(2):
        submit(stage, f"event-{number}", [locale for locale in TWENTY if locale != "en"])
    for turn in range(6):
        before = facts(stage).approvals
        old = workers[turn % 3]
        old.stop(0.5)
        fleet.children.remove(old)
        workers[turn % 3] = started(fleet, old.name)
        until(lambda least=before: facts(stage).approvals > least or facts(stage).approvals == 40, fleet, "progress")
    until(lambda: facts(stage).delivered == 2, fleet, "the deliveries")
    assert (facts(stage).approvals, facts(stage).leased, facts(stage).deliveries) == (40, 0, 2)
    assert max(attempts(stage)) <= 5
    assert sorted(posts for _, posts in published(stage)) == [1, 1]


TWENTY = "ar bg cs da de el es et fi fr ga hr hu it ja ko lt lv nl pl".split()

DYING_SWEEP = """
import sys
now = float(sys.argv[2])
from worker.store.due import take_turn_to_sweep
from worker.store.engine import open_engine, writing
from worker.store.leases import EVIDENCE

def work(conn):
    assert take_turn_to_sweep(conn, interval_seconds=0.5, now=now)
    assert len(EVIDENCE.expire(conn, now=now, most=1000)) == 2
    print("inside", flush=True)
    sys.stdin.read()

writing(open_engine(sys.argv[1]), work)
"""


def test_57_a_killed_sweeper_holds_nobody_up(
    services: Services, keys: Keyring, engine: Engine, queue: RecordingQueue, rows: Rows
) -> None:
    """SIGKILL inside a sweep's transaction: the next sweep takes the turn at once and frees the same two leases."""
    take_in(services, keys, change_event())
    queue.take()
    for row in rows(evidence):
        lease = {"lease_owner": "w", "lease_token": "t", "lease_expires_at": NOW + 1}
        change_row(engine, row, status="leased", attempts=1, **lease)
    url = engine.url.render_as_string(hide_password=False)
    dying = subprocess.Popen(
        [sys.executable, "-c", DYING_SWEEP, url, str(NOW + 60)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert dying.stdout is not None
    watch = threading.Timer(30, dying.kill)
    watch.start()
    try:
        assert dying.stdout.readline() == "inside\n"
    finally:
        watch.cancel()
        dying.kill()
        dying.communicate()
    assert [row["status"] for row in rows(evidence)] == ["leased"] * 2
    swept = sweep_fleet(replace(services, now=lambda: NOW + 60))
    assert (swept.is_turn, swept.expired_evidence, swept.collects) == (True, 2, ("event-1",))
    assert [row["status"] for row in rows(evidence)] == ["retry_wait"] * 2


@pytest.mark.parametrize("holder", ["a live name", "another"])
def test_59_a_restarted_name_hides_no_orphans(
    services: Services, keys: Keyring, engine: Engine, rows: Rows, holder: str
) -> None:
    """A lease ends by its expiry alone: whether a process of the owner's name lives or was ever heard of is not asked."""
    take_in(services, keys, change_event())
    owner = services.worker_id if holder == "a live name" else "w-nobody"
    for row in rows(evidence):
        change_row(
            engine,
            row,
            status="leased",
            attempts=1,
            lease_owner=owner,
            lease_token="t",
            next_attempt_at=1000.0,
            lease_expires_at=1001.0,
        )
    assert sweep_fleet(replace(services, now=lambda: 1000.9)).expired_evidence == 0
    assert sweep_fleet(replace(services, now=lambda: 1003.5)).expired_evidence == 2
    assert {(row["status"], row["last_error_code"]) for row in rows(evidence)} == {("retry_wait", "lease_expired")}
