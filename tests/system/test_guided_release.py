"""A guided release by the command line and real processes; the worker is killed while the CMS has the delivery."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.system.facts import facts, published
from worker.cli.demo_event import SITE_ID, demo_submission
from worker.cli.local_fleet import Child, LocalFleet, wait_for
from worker.cli.local_stage import LOCSEAL, Stage
from worker.store.installation import workspace_fingerprint
from worker.store.runs import RunStore


def locseal(stage: Stage, *arguments: str, code: int = 0) -> Any:
    """Run `locseal … --json` as an operator does, and return the one value it prints."""
    done = subprocess.run(
        [*LOCSEAL, *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=stage.fleet.environment(),
        cwd=stage.fleet.directory,
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return json.loads(done.stdout)


def step(stage: Stage, run: str, name: str) -> tuple[str, str | None]:
    """Return state and result code of a step."""
    store = RunStore(stage.engine, workspace_fingerprint=workspace_fingerprint(stage.engine))
    steps = store.get(run)["state"]["steps"]
    found = next(one for one in steps if one["id"] == name)
    return found["state"], found["result_code"]


def do(stage: Stage, run: str, name: str, worker: Child) -> tuple[str, str | None]:
    """Start the next step, which must be this one, and wait until it has ended."""
    locseal(stage, "runs", "start", run, name)
    wait_for(lambda: step(stage, run, name)[0] != "running", worker, f"the step {name}")
    return step(stage, run, name)


@pytest.mark.timeout(240)
def test_a_worker_killed_while_it_publishes(fleet: LocalFleet, stage: Stage) -> None:
    """Resume, reconcile by the CMS's signed word, complete: one publication, one POST, nothing sent twice."""
    policy = Path(fleet.settings["STATE_DIR"]) / "policy.json"
    policy.write_text('{"default": {"publication": "guided"}, "sites": {}}')
    fleet.settings["POLICY_FILE"] = str(policy)
    worker = fleet.start_worker()
    fleet.start_beat()
    fleet.wait_for_worker(worker)
    stage.submit(stage.sign(demo_submission()[1]))
    wait_for(lambda: facts(stage).deliveries == 1, worker, "the delivery")
    planned = locseal(stage, "runs", "plan", SITE_ID, "2026.11")
    run = planned["run_id"]
    assert planned["next_command"] == f"locseal runs start {run}"
    assert [do(stage, run, name, worker) for name in ("preflight", "evidence", "prepare")] == [
        ("succeeded", "preflight_passed"),
        ("succeeded", "all_approved"),
        ("succeeded", "all_prepared"),
    ]
    assert published(stage) == []  # a guided site: nothing goes out by itself

    stage.control({"cms": {"answer_delay_seconds": 600}})
    locseal(stage, "runs", "start", run)
    wait_for(lambda: len(published(stage)) == 1, worker, "the publication")
    for child in [child for child in fleet.children if child.name in {"worker", "beat"}]:
        child.was_asked = True
        child.kill()
    refused = locseal(stage, "runs", "resume", run, code=1)
    assert refused["error"]["code"] == "run.executor_alive"
    resumed = locseal(stage, "runs", "resume", run, "--force")
    assert resumed["next_command"] == f"locseal runs reconcile {run} publish"
    assert locseal(stage, "runs", "reconcile", run, code=1)["error"]["code"] == "run.delivery_leased"
    stage.control({"cms": {}})

    revived = fleet.start_worker("revived")
    fleet.start_beat("beat-again")
    fleet.wait_for_worker(revived)
    wait_for(lambda: facts(stage).leased == 0, revived, "the end of the lease", seconds=60)
    assert step(stage, run, "publish") == ("interrupted", "process_interrupted")
    asked = locseal(stage, "runs", "reconcile", run, code=1)["error"]
    assert (asked["code"], asked["details"]["outcome"]) == ("run.unconfirmed", "effect_succeeded")
    reconciled = locseal(stage, "runs", "reconcile", run, "--confirm", "RECONCILE")
    assert [(one["outcome"], one["event_id"]) for one in reconciled["answers"]] == [("accepted", "demo-event-1")]
    assert step(stage, run, "publish") == ("succeeded", "reconciled_effect_succeeded")
    wait_for(lambda: facts(stage).delivered == 1, revived, "the acknowledgement")
    assert do(stage, run, "verify", revived) == ("succeeded", "all_confirmed")
    assert locseal(stage, "runs", "list")["runs"][0]["status"] == "completed"
    assert [posts for _, posts in published(stage)] == [1]
