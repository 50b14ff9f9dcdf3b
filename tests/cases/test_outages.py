"""Field cases of stopping, of parts that go away, of giving up and of keys that change (9, 37, 67, 81), as whole fleets."""

from __future__ import annotations

import json
import signal
import subprocess

from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from tests.cases.scenes import calls, locales, scalar, submit
from tests.system.facts import attempts, facts, is_delivered, published, started, until
from worker.adapters.key_changes import generate_key
from worker.cli.local_fleet import LocalFleet, wait_for
from worker.cli.local_stage import LOCSEAL, Stage

CANARY = "CANARY"


def test_9_a_worker_stopped_in_the_middle_of_its_post(fleet: LocalFleet, sqlite_stage: Stage, signed: str) -> None:
    """SIGTERM while the CMS takes its time, SIGKILL when the grace of 0.5 s is over: the next worker sends nothing again."""
    stage = sqlite_stage
    fleet.settings |= {
        "DELIVERY_LEASE_SECONDS": "5",
        "SEND_DEADLINE_SECONDS": "3",
        "LOOKUP_DEADLINE_SECONDS": "1",
        "MARGIN_SECONDS": "1",
    }
    stage.control({"cms": {"answer_delay_seconds": 60}})
    worker = started(fleet)
    stage.submit(signed)
    wait_for(lambda: published(stage) != [], worker, "the publication")
    assert worker.stop(0.5) == -signal.SIGKILL
    fleet.children.remove(worker)
    stage.control({"cms": {}})
    started(fleet, "next")
    fleet.start_beat()
    until(lambda: is_delivered(stage), fleet, "the delivery")
    assert [posts for _, posts in published(stage)] == [1]
    assert attempts(stage) == [1] * 27


def test_37_no_password_is_logged_when_parts_go_away(fleet: LocalFleet, postgres_stage: Stage, signed: str) -> None:
    """Provider, CMS, Redis and PostgreSQL go away in turn under a worker at DEBUG: no secret, but host, port and name."""
    stage = postgres_stage
    url = make_url(fleet.settings["DATABASE_URL"])
    token = fleet.directory / "token"
    token.write_text(f"{CANARY}-token")
    here = {"url": f"{stage.sandbox_url}/provider", "token_file": str(token)}
    fleet.settings |= {
        "LOG_LEVEL": "DEBUG",
        "DATABASE_URL": url.set(password=f"{CANARY}-database").render_as_string(hide_password=False),
        "PROVIDERS": json.dumps({"default": here}),
        "CMS": json.dumps({"default": {**here, "url": f"{stage.sandbox_url}/cms"}}),
    }
    worker = started(fleet)
    beat = fleet.start_beat()
    stage.control({"cms": {"fail_times": 1}})
    stage.submit(signed)
    wait_for(lambda: facts(stage).approvals == 27, worker, "the approvals")
    wait_for(lambda: scalar(stage, "SELECT count(*) FROM setbacks") > 0, worker, "the CMS's refusal")
    sandbox = next(child for child in fleet.children if child.name == "sandbox")
    sandbox.send(signal.SIGSTOP)
    sandbox.kill()
    submit(stage, "unreachable", ["de"])
    wait_for(
        lambda: scalar(stage, "SELECT count(*) FROM setbacks WHERE code LIKE 'evidence%'") > 0,
        worker,
        "the lost provider",
    )
    stage.engine.dispose()
    admin = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as conn:
        conn.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS false'))
        conn.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": url.database}
        )
        stage.submit(signed)
        wait_for(lambda: "database.unavailable" in worker.log_text(), worker, "the lost database")
        conn.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS true'))
    admin.dispose()
    broker = next(child for child in fleet.children if child.name == "broker")
    password = (fleet.directory / "broker" / "password").read_text()
    broker.kill()
    wait_for(lambda: "Cannot connect" in worker.log_text(), worker, "the lost Redis")
    wait_for(lambda: "Connection" in beat.log_text(), beat, "the lost Redis of beat")
    for child in (worker, beat):
        assert [secret for secret in (CANARY, password) if secret in child.log_text()] == [], child.name
        assert f"127.0.0.1:{fleet.broker_port}" in child.log_text()
    assert f"{url.host}:{url.port}/{url.database}" in worker.log_text()


def test_67_given_up_listed_and_asked_again(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """A provider of 500s uses up 2 attempts of one locale; it is shown with its reason, retried, and the rest untouched."""
    stage = sqlite_stage
    policy = fleet.directory / "policy.json"
    policy.write_text(json.dumps({"default": {"evidence_max_attempts": 2}}))
    fleet.settings["POLICY_FILE"] = str(policy)
    stage.control({"provider": {"fail_times": 2, "fail_status": 500}})
    worker = started(fleet, CONCURRENT_CALLS="1")
    fleet.start_beat()
    submit(stage, "poison", ["de"])
    wait_for(lambda: scalar(stage, "SELECT count(*) FROM evidence WHERE status = 'failed'") == 1, worker, "the end")
    submit(stage, "other", ["de", "fr"])
    wait_for(lambda: facts(stage).delivered == 1, worker, "the other event's delivery")
    shown = command(fleet, "releases", "show", "poison")
    (de,) = json.loads(shown)["locales"]
    assert (de["state"], de["attempts"], de["code"]) == ("failed", 2, "evidence.provider.status_500")
    with stage.engine.connect() as conn:
        ends = conn.execute(text("SELECT attempt, code, outcome FROM setbacks ORDER BY attempt")).all()
    assert [tuple(row) for row in ends] == [
        (1, "evidence.provider.status_500", "retry_wait"),
        (2, "evidence.provider.status_500", "failed"),
    ]
    command(fleet, "evidence", "retry", "poison")
    wait_for(lambda: facts(stage).delivered == 2, worker, "the delivery")
    assert calls(stage) == 5
    assert sorted(attempts(stage)) == [1, 1, 1, 2]


def command(fleet: LocalFleet, *words: str) -> str:
    """Run a command of the product and return its answer."""
    done = subprocess.run(
        [*LOCSEAL, *words, "--json"],
        env=fleet.environment(),
        cwd=fleet.directory,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_81_our_signing_keys_change_under_way(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """The approval key is replaced and retired among 60 reviews (the case says 200): none is lost, each names its key."""
    stage = sqlite_stage
    fleet.settings |= {"CONCURRENT_CALLS": "4"}
    stage.control({"provider": {"delay_seconds": 0.2}, "cms": {"hold": True}})
    worker = started(fleet)
    submit(stage, "rotated", locales(60))
    wait_for(lambda: facts(stage).approvals >= 10, worker, "some approvals")
    keys = fleet.directory / "state" / "keys"
    [old] = stage.keys.trust("approval").keys
    made = generate_key("approval", private_dir=keys / "private", trust_dir=keys / "trust", first=True)
    command(fleet, "keys", "retire", "approval", old)
    wait_for(lambda: facts(stage).deliveries == 1, worker, "the prepared delivery")
    fresh = generate_key("publication", private_dir=keys / "private", trust_dir=keys / "trust", first=True)
    stage.control({"cms": {}})
    wait_for(lambda: is_delivered(stage), worker, "the delivery")
    with stage.engine.connect() as conn:
        kids = {str(row[0]) for row in conn.execute(text("SELECT DISTINCT kid FROM approvals"))}
    assert kids == {old, made.kid}
    assert (facts(stage).approvals, attempts(stage)) == (60, [1] * 60)
    assert scalar(stage, "SELECT kid FROM deliveries") != fresh.kid
    assert [posts for _, posts in published(stage)] == [1]
