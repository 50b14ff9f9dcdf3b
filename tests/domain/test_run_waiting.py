"""What is said of a release run in one sentence, and the one command it recommends, in every state."""

from __future__ import annotations

from typing import Any

import pytest

from tests.run_builders import AT, RUN_ID, SECOND, localization_input, software_input, software_plan
from worker.domain import run
from worker.domain.run_plan import kind_of, normalised_input, normalised_plan
from worker.domain.run_view import view_of
from worker.domain.run_visit import (
    Again,
    DeliveryStanding,
    Ended,
    FrozenEvent,
    Told,
    after_publishing,
    frozen_events,
    is_executable,
    proposed_outcome,
    result_code,
    snapshots_of_release,
    wait_seconds,
)
from worker.domain.run_waiting import ExecutorFacts, RunFacts, next_command, run_sentence

Json = dict[str, Any]
HOME = FrozenEvent(source_id="home", event_id="e-1", source_sequence=1, source_sha256="b" * 64, plan_id="plan-1")
NOBODY = ExecutorFacts(state="none")


def record(*, status: str = "ready") -> Json:
    """Return a run of one event as `runs plan` makes it."""
    given, plan = snapshots_of_release("site:one", "2026.11", [HOME], workspace_fingerprint="a" * 64, generated_at=AT)
    plan["status"] = status
    given = normalised_input(given)
    return run.new_record(RUN_ID, given, normalised_plan(plan, kind=kind_of(given)), at=AT)


def upto(step_id: str) -> Json:
    """Return a run whose step is the next one."""
    made = record()
    for number, one in enumerate(("preflight", "evidence", "prepare", "publish", "verify")):
        if one == step_id:
            break
        made = ended(began(made, one, number), one, number, ok=True, code="done")
    return made


def began(made: Json, step_id: str, number: int = 9) -> Json:
    changed = run.start_step(made, step_id, attempt_id=f"attempt-{number}", at=AT)
    assert changed is not None
    return changed


def ended(made: Json, step_id: str, number: int = 9, *, ok: bool, code: str) -> Json:
    changed = run.finish_step(made, step_id, attempt_id=f"attempt-{number}", succeeded=ok, result_code=code, at=AT)
    assert changed is not None
    return changed


def resumed(made: Json) -> Json:
    changed = run.resume(made, request_id="request-1", at=AT)
    assert changed is not None
    return changed


def said(made: Json, executor: ExecutorFacts = NOBODY, **facts: Any) -> tuple[str, str | None]:
    """Return the sentence and the command about a run."""
    known: dict[str, Any] = {"standings": (), "moved": (), "waiting_event": None, "waiting_sentence": None}
    about = RunFacts(view=view_of(made), executor=executor, now=SECOND, **(known | facts))
    return run_sentence(about), next_command(about)


def standing(**changes: Any) -> DeliveryStanding:
    return DeliveryStanding(**({"source_id": "home", "event_id": "e-1", "delivery_id": "d-1"} | changes))


def test_what_waits_for_an_operator() -> None:
    """To start, to retry, to reconcile; and the end."""
    assert said(record()) == (
        "preflight: waiting for an operator to start it",
        f"locseal runs start {RUN_ID}",
    )
    failed = ended(began(record(), "preflight"), "preflight", ok=False, code="key_unusable")
    assert said(failed) == (
        "preflight: failed with key_unusable; waiting for an operator to retry it",
        f"locseal runs retry {RUN_ID} preflight",
    )
    interrupted = resumed(began(upto("publish"), "publish"))
    assert said(interrupted) == (
        "publish: interrupted, and may have taken effect; waiting for an operator to reconcile it",
        f"locseal runs reconcile {RUN_ID} publish",
    )
    assert said(interrupted, standings=(standing(status="leased", leased_until=SECOND + 60),))[0].endswith(
        "reconcile it, not before 03:05:05 UTC when the last lease on a delivery ends"
    )
    done = ended(began(upto("verify"), "verify"), "verify", ok=True, code="done")
    assert said(done) == ("complete: every step has succeeded", None)


def test_a_stale_plan_leads_to_a_new_one() -> None:
    """What moved is named, at most five of it."""
    plan = "locseal runs plan site:one 2026.11"
    assert said(record(), moved=("home",)) == (
        "preflight: waiting for an operator to start it; the plan is stale: home moved since it was made",
        plan,
    )
    assert "a, b, c, d, e and 2 more moved" in said(record(), moved=tuple("abcdefg"))[0]
    stale = ended(began(record(), "preflight"), "preflight", ok=False, code="plan_stale")
    assert said(stale)[1] == plan
    assert said(record(status="blocked")) == ("waiting for: an operator; The frozen plan is blocked.", plan)


@pytest.mark.parametrize(
    ("executor", "sentence", "command"),
    [
        (
            ExecutorFacts(state="visited", owner="w-7", until=SECOND + 60),
            "publish: being worked at; 1 of 2 deliveries acknowledged, 1 in doubt; lease held by w-7 until 03:05:05 UTC",
            "show {} --watch",
        ),
        (
            ExecutorFacts(state="waiting", until=SECOND + 86_400, code="run.waits_for_cms"),
            (
                "publish: waiting for the CMS; 1 of 2 deliveries acknowledged, 1 in doubt; "
                "next visit at 2026-01-03 03:04:05 UTC"
            ),
            "show {} --watch",
        ),
        (
            ExecutorFacts(state="due", code="database.unavailable"),
            (
                "publish: waiting for its next visit; 1 of 2 deliveries acknowledged, 1 in doubt; "
                "the last visit met database.unavailable; next visit is due now"
            ),
            "show {} --watch",
        ),
        (
            ExecutorFacts(state="dead"),
            "publish: its worker died in the middle; nothing new is sent, until the run is resumed",
            "resume {}",
        ),
        (
            NOBODY,
            "publish: running, but not by the fleet: whoever started it reports its end, or resume the run",
            "resume {}",
        ),
    ],
)
def test_what_a_running_step_waits_for(executor: ExecutorFacts, sentence: str, command: str) -> None:
    """Who works at it until when, or when the next visit is due, and how many deliveries are through."""
    standings = (standing(status="succeeded"), standing(status="retry_wait", in_doubt=True))
    found = said(began(upto("publish"), "publish"), executor, standings=standings)
    assert found == (sentence, f"locseal runs {command.format(RUN_ID)}")


def test_deliveries_under_way_are_told() -> None:
    """How many are being sent, and when the last lease ends."""
    executor = ExecutorFacts(state="waiting", until=SECOND + 5, code="run.waits_for_cms")
    sentence, _ = said(
        began(upto("publish"), "publish"), executor, standings=(standing(status="leased", leased_until=SECOND + 60),)
    )
    assert "1 being sent or asked about, the last lease until 03:05:05 UTC; next visit at 03:04:10 UTC" in sentence


def test_the_fleet_may_reconcile_by_itself() -> None:
    """Then the sentence says so; the operator may still be quicker."""
    interrupted = resumed(began(upto("publish"), "publish"))
    executor = ExecutorFacts(state="waiting", until=SECOND + 5)
    assert said(interrupted, executor) == (
        "publish: interrupted; the fleet asks the CMS what became of it; next visit at 03:04:10 UTC",
        f"locseal runs reconcile {RUN_ID} publish",
    )


def test_runs_of_other_tools_recommend_nothing_of_ours() -> None:
    """Their steps are theirs."""
    given = normalised_input(software_input())
    made = run.new_record(RUN_ID, given, normalised_plan(software_plan(), kind="software"), at=AT)
    assert said(made) == ("check: waiting for an operator to start it", None)
    assert (frozen_events(made), is_executable(made, "check"), is_executable(made, "publish")) == ((), False, False)


def test_only_the_five_steps_as_they_are_meant_are_executed() -> None:
    """Another id, or `publish` planned as a read-only step, has no executor."""
    made = record()
    assert [is_executable(made, one) for one in ("preflight", "publish", "nowhere")] == [True, True, False]
    made["immutable"]["plan"]["dry_run_steps"][3]["mutating"] = False
    assert not is_executable(made, "publish")
    assert frozen_events(made) == (HOME,)
    other = {"immutable": {"input": localization_input(), "plan": {"dry_run_steps": []}}}
    assert not is_executable(other, "publish")


@pytest.mark.parametrize(
    ("standings", "expected"),
    [
        ([standing(status="succeeded")], Ended(code="all_acknowledged", succeeded=True)),
        ([standing(status="succeeded"), standing(status="pending")], None),
        ([standing(status="retry_wait", in_doubt=True)], None),
        ([standing(delivery_id=None)], Ended(code="delivery_missing", succeeded=False)),
        (
            [standing(status="failed", code="cms.delivery.http_422")],
            Ended(code="cms_delivery_http_422", succeeded=False),
        ),
        ([standing(status="failed", code=None)], Ended(code="delivery_failed", succeeded=False)),
    ],
)
def test_how_publishing_ends(standings: list[DeliveryStanding], expected: Ended | None) -> None:
    """All acknowledged, one missing, one failed, or not yet."""
    assert after_publishing(standings) == expected


@pytest.mark.parametrize(
    ("outcomes", "proposed"),
    [
        (["accepted", "accepted"], "effect_succeeded"),
        (["accepted", "absent"], "effect_absent"),
        (["absent"], "effect_absent"),
        (["accepted", "unknown"], "unresolved"),
        (["absent", "unknown"], "unresolved"),
    ],
)
def test_what_is_proposed(outcomes: list[Any], proposed: str) -> None:
    """All accepted; any unknown; else absent."""
    told = [Told(source_id="s", event_id="e", delivery_id="d", outcome=one, word="lookup") for one in outcomes]
    assert proposed_outcome(told) == proposed


def test_codes_and_waits() -> None:
    """Error codes fit the grammar of result codes; a command is visited every 2 to 30 seconds."""
    assert result_code("release.event.tampered") == "release_event_tampered"
    assert len(result_code("a" * 128)) == 64
    assert [wait_seconds(age) for age in (0, 20, 100, 3600)] == [2.0, 2.0, 10.0, 30.0]
    assert Again(code="run.waits_for_cms").code == "run.waits_for_cms"
