"""Corrections through a whole fleet: refused and mended, replaced, revoked, withdrawn; the history stays."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from sqlalchemy import text

from tests.builders import change_event, job_for, result_for, results_for, submission
from tests.system.facts import facts, is_delivered
from worker.cli.demo_event import SITE_ID
from worker.cli.local_fleet import LocalFleet, wait_for
from worker.cli.local_stage import LOCSEAL, Stage
from worker.domain.canonical import hash_of

EVENT = change_event(target_locales=["de", "fr-CA"], site_id=SITE_ID)


def locseal(fleet: LocalFleet, *arguments: str, stdin: str = "") -> tuple[int, Any]:
    """Run the command line as an operator of this fleet does; return the exit code and its JSON."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCSEAL_")}
    environment |= {f"LOCSEAL_{name}": value for name, value in fleet.settings.items()}
    done = subprocess.run(
        [*LOCSEAL, *arguments, "--json"],
        input=stdin,
        env=environment,
        cwd=fleet.directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, json.loads(done.stdout)


def count(stage: Stage, what: str) -> int:
    """Count rows."""
    with stage.engine.connect() as conn:
        return int(conn.execute(text(f"SELECT count(*) FROM {what}")).scalar_one())


def test_a_corrected_translation_takes_the_place_of_a_refused_one(fleet: LocalFleet, stage: Stage) -> None:
    """Refused by the reviewer; `locseal submit` brings a better text that names what it replaces; one publication."""
    stage.control({"provider": {"refuse": {"de": "terminology.mismatch"}}})
    worker = fleet.start_worker()
    fleet.wait_for_worker(worker)
    stage.submit(stage.sign(submission(EVENT, results_for(EVENT))))
    wait_for(lambda: count(stage, "evidence WHERE status = 'failed'") == 1, worker, "the refusal")
    stage.control({"provider": {}})
    old = result_for(job_for(EVENT, "de"))
    new = result_for(job_for(EVENT, "de"), candidate="Willkommen zurück.")
    code, refused = locseal(fleet, "submit", "-", "--wait", stdin=json.dumps(submission(EVENT, [new])))
    assert (code, refused["error"]["code"]) == (1, "submission.result.conflict")
    replacing = new | {"replaces": hash_of(old)}
    code, taken = locseal(fleet, "submit", "-", "--wait", stdin=json.dumps(submission(EVENT, [replacing])))
    assert (code, taken["state"]) == (0, "accepted")
    wait_for(lambda: is_delivered(stage), worker, "the delivery")
    [publication] = stage.control()["publications"]
    assert publication["target_sha256"]["de"] == new["target_sha256"]
    assert count(stage, "results WHERE replaced_at IS NOT NULL") == 1
    assert count(stage, "evidence_history") == 1
    code, listed = locseal(fleet, "rejections", "list")
    assert [one["code"] for one in listed["rejections"]] == ["submission.result.conflict"]


def test_an_approved_text_is_revoked_and_replaced_before_it_is_sent(fleet: LocalFleet, stage: Stage) -> None:
    """A guided site: the prepared delivery names the old text; revoked and replaced, it is closed and followed."""
    policy = fleet.directory / "policy.json"
    policy.write_text(json.dumps({"default": {"publication": "guided"}}))
    fleet.settings["POLICY_FILE"] = str(policy)
    worker = fleet.start_worker()
    fleet.wait_for_worker(worker)
    stage.submit(stage.sign(submission(EVENT, results_for(EVENT))))
    wait_for(lambda: facts(stage).deliveries == 1, worker, "the delivery")
    old = result_for(job_for(EVENT, "de"))
    new = result_for(job_for(EVENT, "de"), candidate="Willkommen zurück.", replaces=hash_of(old))
    body = json.dumps(submission(EVENT, [new]))
    code, refused = locseal(fleet, "submit", "-", "--wait", stdin=body)
    assert (code, refused["error"]["code"]) == (1, "submission.result.approved")
    _, listed = locseal(fleet, "approvals", "list", "--job", old["job_id"])
    [approval] = listed["approvals"]
    code, revoked = locseal(fleet, "approvals", "revoke", approval["approval_id"], "--reason", "term", "--yes")
    assert (code, [one["event_id"] for one in revoked["deliveries"]]) == (0, ["event-1"])
    code, taken = locseal(fleet, "submit", "-", "--wait", stdin=body)
    assert (code, taken["state"]) == (0, "accepted")
    wait_for(lambda: count(stage, "deliveries WHERE status = 'pending'") == 1, worker, "the successor")
    _, shown = locseal(fleet, "releases", "show", "event-1")
    assert [one["status"] for one in shown["deliveries"]] == ["pending", "failed"]
    assert shown["deliveries"][1]["code"] in {"cms.delivery.result_replaced", "cms.delivery.approval_expired"}
    assert stage.control()["publications"] == []


def test_a_refused_submission_is_mended_and_sent_again(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """The rejection says code and path; the mended document is accepted, and the rejection needs no clearing."""
    stage = sqlite_stage
    worker = fleet.start_worker()
    fleet.wait_for_worker(worker)
    results = results_for(EVENT)
    wrong = [results[0] | {"target_sha256": "0" * 64}, results[1]]
    stage.submit(stage.sign(submission(EVENT, wrong)))
    wait_for(lambda: facts(stage).rejections == 1, worker, "the rejection")
    _, listed = locseal(fleet, "rejections", "list")
    [one] = listed["rejections"]
    assert (one["path"], one["message"]) == ("results.0.target_sha256", "release.submit")
    _, shown = locseal(fleet, "rejections", "show", str(one["rejection_id"]))
    assert shown["code"] == one["code"]
    stage.submit(stage.sign(submission(EVENT, results)))
    wait_for(lambda: is_delivered(stage), worker, "the delivery")
    assert facts(stage).rejections == 1


def test_an_event_is_withdrawn_before_it_is_published(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """A locale is still with its reviewer: withdrawn, its review no longer counts, and nothing is ever sent."""
    stage = sqlite_stage
    stage.control({"provider": {"by_hand": ["quality"]}})
    worker = fleet.start_worker()
    fleet.wait_for_worker(worker)
    stage.submit(stage.sign(submission(EVENT, results_for(EVENT))))
    wait_for(lambda: count(stage, "evidence WHERE awaited_since_at IS NOT NULL") == 2, worker, "the reviews")
    code, taken = locseal(fleet, "releases", "withdraw", "event-1", "--wait")
    assert (code, taken["state"]) == (0, "accepted")
    _, shown = locseal(fleet, "releases", "show", "event-1")
    assert shown["state"] == "withdrawn"
    assert count(stage, "evidence WHERE last_error_code = 'evidence.withdrawn'") == 2
    code, again = locseal(fleet, "releases", "withdraw", "event-1", "--wait")
    assert (code, again["state"]) == (0, "accepted")
    assert stage.control()["publications"] == []
