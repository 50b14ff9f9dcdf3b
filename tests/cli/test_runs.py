"""`locseal runs` on a real SQLite file: what it prints, what it refuses, and the command it says to run next."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from tests.cli.conftest import Broker, Home
from tests.cli.test_releases import approved
from tests.fake_cms import FakeCms
from tests.run_builders import software_input, software_plan
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.run_step import run_step
from worker.store.engine import reading
from worker.store.installation import workspace_fingerprint
from worker.store.runs import RunStore
from worker.store.schema import run_commands

Locseal = Callable[..., Any]


@pytest.fixture
def guided(home: Home, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An installation with a guided site, one prepared event and a broker that takes messages."""
    policy = home.directory / "policy.json"
    policy.write_text('{"default":{"publication":"guided"},"sites":{}}')
    monkeypatch.setenv("LOCSEAL_POLICY_FILE", str(policy))
    monkeypatch.setenv("LOCSEAL_CMS", '{"default":{"url":"https://127.0.0.1:1/cms"}}')
    approved(home)
    prepare_delivery(home.services, "event-1")
    return home


def visit(home: Home, cms: FakeCms) -> str:
    """Do what the fleet does with the newest command."""
    with reading(home.engine) as conn:
        row = conn.execute(select(run_commands).where(run_commands.c.status != "succeeded")).mappings().one()
    process = replace(home.services, cms=lambda _site: cms)
    return run_step(process, row["run_id"], row["step_id"], row["attempt_id"]).status


def test_a_release_by_the_command_line(locseal: Locseal, guided: Home) -> None:
    """Plan, start, look: each answer names the one next command, which is run as it is printed."""
    cms = FakeCms(keys=guided.keys)
    planned = locseal("runs", "plan", "site-1", "2026.02", "--json")
    assert (planned.code, planned.err) == (0, "")
    run, command = planned.json["run_id"], planned.json["next_command"]
    assert planned.json["waiting"] == "preflight: waiting for an operator to start it"
    seen = []
    for step in ("preflight", "evidence", "prepare"):
        assert command == f"locseal runs start {run}"
        started = locseal(*command.split()[1:], "--json")
        assert started.json["executor"]["state"] == "due"
        seen.append(visit(guided, cms))
        shown = locseal("runs", "show", run, "--json").json
        command = shown["next_command"]
        assert next(one["state"] for one in shown["state"]["steps"] if one["id"] == step) == "succeeded"
    assert seen == ["succeeded"] * 3
    text = locseal("runs", "show", run)
    lines = text.out.splitlines()
    assert (text.code, lines[0]) == (0, f"{run}  planned")
    assert lines[1] == "site site-1, website version 2026.02, 1 event; 0 of 1 deliveries acknowledged"
    assert [line.split()[:3] for line in lines if line.startswith(("+", "."))] == [
        ["+", "preflight", "succeeded"],
        ["+", "evidence", "succeeded"],
        ["+", "prepare", "succeeded"],
        [".", "publish", "pending"],
        [".", "verify", "pending"],
    ]
    assert lines[-2:] == ["publish: waiting for an operator to start it", f"next: locseal runs start {run}"]
    assert "Welcome" not in text.out


def test_interrupted_and_reconciled(locseal: Locseal, guided: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume leads to reconcile; without the word nothing is recorded; with another word neither."""
    run = locseal("runs", "plan", "site-1", "2026.02", "--json").json["run_id"]
    cms = FakeCms(keys=guided.keys)
    for _ in range(3):
        locseal("runs", "start", run, "--json")
        visit(guided, cms)
    locseal("runs", "start", run, "--json")
    assert visit(guided, cms) == "waiting"
    publish_delivery(replace(guided.services, cms=lambda _site: cms), "event-1")
    resumed = locseal("runs", "resume", run, "--request-id", "request-resume", "--json").json
    assert resumed["next_command"] == f"locseal runs reconcile {run} publish"
    again = locseal("runs", "resume", run, "--request-id", "request-resume", "--json").json
    assert again["record_digest"] == resumed["record_digest"]
    unconfirmed = locseal("runs", "reconcile", run, "--json")
    assert (unconfirmed.code, unconfirmed.json["error"]["code"]) == (1, "run.unconfirmed")
    assert unconfirmed.json["error"]["details"]["outcome"] == "effect_succeeded"
    assert unconfirmed.json["error"]["allowed"] == [f"locseal runs reconcile {run} publish --confirm RECONCILE"]
    wrong = locseal("runs", "reconcile", run, "--confirm", "reconcile")
    assert (wrong.code, "run.conflict" in wrong.err) == (1, True)
    assert locseal("runs", "show", run, "--json").json["record_digest"] == resumed["record_digest"]
    done = locseal("runs", "reconcile", run, "--confirm", "RECONCILE")
    lines = done.out.splitlines()
    assert lines[0].split() == ["SOURCE", "EVENT", "DELIVERY", "OUTCOME", "WORD", "SIGNED", "BY", "NOTE"]
    assert lines[1].split()[:2] + lines[1].split()[3:5] == ["home.hero", "event-1", "accepted", "acknowledgement"]
    assert "the answers say: effect_succeeded" in lines
    assert lines[-1] == f"next: locseal runs start {run}"
    listed = locseal("runs", "list", "--json").json["runs"]
    assert [(row["run_id"], row["status"], row["event_count"]) for row in listed] == [(run, "planned", 1)]
    assert locseal("runs", "list").out.splitlines()[1].split()[:2] == [run, "planned"]


def test_refusals_say_what_is_allowed(locseal: Locseal, guided: Home) -> None:
    """Codes, exit codes and the next command; JSON is one value."""
    assert locseal("runs", "list").out.strip() == "no release run; make one with locseal runs plan SITE VERSION"
    for arguments, code in (
        (("plan", "site-1", "no-such-version"), "run.conflict"),
        (("show", "rr-20260102T030405Z-0123456789ab"), "run.not_found"),
        (("start", "not-a-run"), "run.not_found"),
        (("retry", "rr-20260102T030405Z-0123456789ab", "preflight"), "run.not_found"),
        (("resume", "rr-20260102T030405Z-0123456789ab"), "run.not_found"),
        (("reconcile", "rr-20260102T030405Z-0123456789ab"), "run.not_found"),
    ):
        refused = locseal("runs", *arguments, "--json")
        assert (refused.code, refused.json["error"]["code"]) == (1, code)
    run = locseal("runs", "plan", "site-1", "2026.02", "--json").json["run_id"]
    refused = locseal("runs", "retry", run, "preflight", "--json")
    assert refused.json["error"]["allowed"] == [f"locseal runs show {run}"]
    assert locseal("runs", "reconcile", run, "--outcome", "perhaps").code == 2


def test_a_run_of_another_tool_is_shown_and_not_executed(locseal: Locseal, guided: Home) -> None:
    """Software releases are recorded here too; no command of ours is recommended for them."""
    workspace = workspace_fingerprint(guided.engine)
    store = RunStore(guided.engine, workspace_fingerprint=workspace)
    view = store.create(input_snapshot=software_input(workspace_fingerprint=workspace), plan_snapshot=software_plan())
    shown = locseal("runs", "show", view["run_id"], "--json").json
    assert (shown["next_command"], shown["deliveries"], shown["moved_sources"]) == (None, [], [])
    text = locseal("runs", "show", view["run_id"]).out
    assert "channel stable: api 0.1.0-rc.1, site 1.2.3" in text
    assert json.loads(locseal("runs", "list", "--json").out)["runs"][0]["repo_versions"] == {
        "api": "0.1.0-rc.1",
        "site": "1.2.3",
    }
