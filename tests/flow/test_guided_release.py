"""A website version released step by step on the fleet: what each step finds, what it sends, and what stays untouched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table, event, select, update

from tests.builders import SOURCE_TEXT, Keyring, change_event, parsed
from tests.delivery_builders import approve, submit
from tests.fake_cms import FakeCms
from tests.fakes import Crash, FixedPolicies, RecordingQueue
from tests.flow.releasing import Release
from tests.run_builders import localization_input, localization_plan
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Blocked, RunConflict, RunNotFound, Unavailable
from worker.domain.policy import SitePolicy
from worker.domain.run_waiting import next_command, run_sentence
from worker.flow.plan_run import plan_run
from worker.flow.propose_outcome import propose_outcome
from worker.flow.resume_run import resume_run
from worker.flow.retry_delivery import retry_delivery
from worker.flow.retry_run import retry_run
from worker.flow.run_step import run_step
from worker.flow.services import Services
from worker.flow.start_run import start_run
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.engine import reading, writing
from worker.store.installation import workspace_fingerprint
from worker.store.run_views import report_run
from worker.store.runs import RunStore
from worker.store.schema import (
    deliveries,
    delivery_answers,
    delivery_permits,
    events,
    evidence,
    release_runs,
    run_commands,
    submissions,
)

Rows = Callable[[Table], list[dict[str, Any]]]


def alter(engine: Engine, table: Table, event_id: str, **values: Any) -> None:
    """Change what is stored of an event behind the product's back."""
    writing(engine, lambda conn: conn.execute(update(table).where(table.c.event_id == event_id).values(**values)))


@pytest.fixture
def release(services: Services, queue: RecordingQueue, keys: Keyring, policies: FixedPolicies) -> Release:
    """A guided site with two approved events, and nothing planned."""
    policies.policy = SitePolicy(publication="guided")
    found = Release(services=services, queue=queue, keys=keys, cms=FakeCms(keys=keys))
    found.approve(["home", "about"])
    return found


def test_a_release_runs_step_by_step(release: Release) -> None:
    """Each start is one step; both events are published once, in the publish step and not before."""
    release.live(3)
    assert release.cms.requests == []
    release.plan()
    results = []
    for step in ("preflight", "evidence", "prepare", "publish", "verify"):
        assert release.start()["recommended_next"]["step_id"] == step
        release.live(4)
        results.append(release.step(step))
        if step == "prepare":
            assert release.cms.requests == []
    assert results == [
        ("succeeded", "preflight_passed"),
        ("succeeded", "all_approved"),
        ("succeeded", "all_prepared"),
        ("succeeded", "all_acknowledged"),
        ("succeeded", "all_confirmed"),
    ]
    assert sorted(release.publications().values()) == [1, 1]
    assert release.view()["state"]["status"] == "completed"


# --- messages and leases ----------------------------------------------------------------------------------------------


def test_a_lost_message_is_sent_again_and_a_doubled_one_executes_once(release: Release, rows: Rows) -> None:
    """The sweeper finds the command after the recovery bound; of two messages for one visit the second is idle."""
    release.plan()
    release.start()
    ((message, ids),) = release.queue.take()
    assert (message, set(ids)) == ("run.step", {"run_id", "step_id", "attempt_id"})
    release.live()
    assert release.visits == []  # woken a moment ago
    release.now += 11
    process = release.born()
    sweep_fleet(process)
    assert release.queue.take() == [(message, ids)]
    assert run_step(process, **ids).status == "succeeded"
    before = rows(release_runs)
    assert run_step(process, **ids).status == "idle"
    assert rows(release_runs) == before
    assert [(row["status"], row["attempts"]) for row in rows(run_commands)] == [("succeeded", 1)]


def test_a_visit_under_anothers_lease_is_idle(release: Release, rows: Rows) -> None:
    """While one worker visits, another's message does nothing; neither does one for another run or step."""
    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()
    found: list[str] = []

    def look(name: str) -> None:
        if name == "run.claimed":
            other = replace(release.born(), worker_id="w-other")
            found.append(run_step(other, **ids).status)
            found.append(run_step(other, **(ids | {"step_id": "publish"})).status)
            found.append(run_step(other, **(ids | {"attempt_id": "attempt-unknown"})).status)
            found.append(run_step(other, **(ids | {"run_id": "rr-20260102T030405Z-0123456789ab"})).status)

    assert run_step(replace(release.born(), checkpoint=look), **ids).status == "succeeded"
    assert found == ["idle"] * 4


def test_a_draining_worker_starts_no_visit(release: Release, rows: Rows) -> None:
    """The command stays as it is for another."""
    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()
    assert run_step(replace(release.born(), draining=lambda: True), **ids).status == "idle"
    assert [row["status"] for row in rows(run_commands)] == ["pending"]


def test_a_late_worker_finishes_nothing_after_a_resume(release: Release, rows: Rows) -> None:
    """The run was resumed while it visited: its visit is lost, in the record and in the outbox."""
    release.until("publish")
    release.start()
    ((_, ids),) = release.queue.take()

    def meanwhile(name: str) -> None:
        if name == "run.claimed":
            release.resume(force=True)

    visit = run_step(replace(release.born(), checkpoint=meanwhile), **ids)
    assert (visit.status, release.step("publish")) == ("lost", ("interrupted", "process_interrupted"))
    assert rows(delivery_permits) == []
    release.live(5)
    assert release.cms.requests == []


def test_a_dead_publish_sends_nothing_new(release: Release, rows: Rows) -> None:
    """The worker dies with the permits granted: messages and sweeps send nothing, the step waits for `resume`."""
    release.until("publish")
    release.start()
    ((_, ids),) = release.queue.take()

    def die(name: str) -> None:
        if name == "run.permitted":
            raise Crash(name)

    with pytest.raises(Crash):
        run_step(replace(release.born(), checkpoint=die), **ids)
    assert len(rows(delivery_permits)) == 2
    release.now += 301
    release.live(5)
    assert run_step(release.born(), **ids).status == "idle"
    assert release.cms.requests == []
    assert [row["status"] for row in rows(run_commands) if row["step_id"] == "publish"] == ["failed"]
    assert release.step("publish")[0] == "running"
    release.resume()
    assert rows(delivery_permits) == []
    assert [row["step_id"] for row in rows(run_commands) if row["status"] != "succeeded"] == []


def test_a_read_only_visit_whose_lease_expired_is_visited_again(release: Release, rows: Rows) -> None:
    """Nobody has to resume: the next visit ends the step."""
    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()

    def die(name: str) -> None:
        raise Crash(name)

    with pytest.raises(Crash):
        run_step(replace(release.born(), checkpoint=die), **ids)
    release.now += 301
    release.live(2)
    assert release.step("preflight") == ("succeeded", "preflight_passed")


def test_a_damaged_command_is_left_alone(release: Release, rows: Rows, engine: Engine) -> None:
    """Its visit is refused with a code of its own."""
    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()
    writing(engine, lambda conn: conn.execute(update(run_commands).values(attempts=99)))
    with pytest.raises(Blocked) as refused:
        run_step(release.born(), **ids)
    assert refused.value.code == "run.command.invalid"
    assert [row["attempts"] for row in rows(run_commands)] == [99]


# --- requests ---------------------------------------------------------------------------------------------------------


def test_requests_are_idempotent(release: Release, rows: Rows) -> None:
    """The same request id starts, retries and resumes once, whatever has happened since; nothing is woken again."""
    release.plan()
    process = release.born()
    first = start_run(process, release.run_id, request_id="request-start")
    assert start_run(process, release.run_id, request_id="request-start") == first
    assert len(release.queue.take()) == len(rows(run_commands)) == 1
    resume_run(process, release.run_id, request_id="request-resume")
    retry_run(process, release.run_id, "preflight", request_id="request-start")  # a name space of its own
    assert len(release.queue.sent) == 1
    before = rows(release_runs)
    assert retry_run(process, release.run_id, "preflight", request_id="request-start") == release.view()
    assert resume_run(process, release.run_id, request_id="request-resume") == release.view()
    assert start_run(process, release.run_id, request_id="request-start") == release.view()
    assert rows(release_runs) == before
    release.live(2)
    assert release.step("preflight") == ("succeeded", "preflight_passed")


def test_resume_under_a_live_worker_needs_force(release: Release) -> None:
    """The worker is named; forced, its end of the step is refused."""
    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()
    said: list[RunConflict] = []

    def meanwhile(name: str) -> None:
        if name == "run.claimed":
            with pytest.raises(RunConflict) as refused:
                release.resume()
            said.append(refused.value)

    assert run_step(replace(release.born(), checkpoint=meanwhile), **ids).status == "succeeded"
    assert [refusal.code for refusal in said] == ["run.executor_alive"]
    assert "w-test" in said[0].message


@pytest.mark.parametrize("bad", ["", "short", None, 7])
def test_malformed_request_ids_are_conflicts(release: Release, bad: Any) -> None:
    """Of every command; nothing is written."""
    release.plan()
    before = release.view()
    for call in (
        lambda: start_run(release.born(), release.run_id, request_id=bad),
        lambda: retry_run(release.born(), release.run_id, "preflight", request_id=bad),
        lambda: resume_run(release.born(), release.run_id, request_id=bad),
    ):
        with pytest.raises(RunConflict):
            call()
    assert release.view() == before


def test_a_complete_run_has_nothing_to_start(release: Release) -> None:
    """Nor has a step that another tool planned."""
    release.plan()
    release.until("verify")
    release.start()
    release.live(4)
    with pytest.raises(RunConflict, match="complete"):
        release.start()
    store = RunStore(release.services.engine, workspace_fingerprint=workspace_fingerprint(release.services.engine))
    given = localization_input(workspace_fingerprint=workspace_fingerprint(release.services.engine))
    foreign = store.create(input_snapshot=given, plan_snapshot=localization_plan())["run_id"]
    with pytest.raises(RunConflict, match="no executor"):
        start_run(release.born(), foreign, request_id="request-foreign")
    assert store.get(foreign)["state"]["status"] == "planned"


# --- stale plans ------------------------------------------------------------------------------------------------------


def test_a_stale_plan_refuses_to_start_and_names_what_moved(release: Release, rows: Rows) -> None:
    """A newer sequence of one source: `run.plan_stale` names it, and the run stays as it was."""
    release.plan()
    newer = change_event(event_id="event-newer", source_id="about", source_sequence=2)
    submit(release.born(), release.keys, newer)
    before = rows(release_runs)
    with pytest.raises(RunConflict, match="about") as refused:
        release.start()
    assert (refused.value.code, "home" in refused.value.message) == ("run.plan_stale", False)
    assert (rows(release_runs), rows(run_commands)) == (before, [])


def test_a_plan_that_grows_stale_while_a_step_runs_ends_it(release: Release) -> None:
    """The record holds the code alone; what moved is in the database."""
    release.until("publish")
    release.start()
    release.queue.take()
    submit(release.born(), release.keys, change_event(event_id="event-newer", source_id="home", source_sequence=2))
    release.now += 31
    release.live(2)
    assert release.step("publish") == ("failed", "plan_stale")
    assert release.cms.requests == []
    with pytest.raises(RunConflict, match="home"):
        release.retry("publish")


def test_a_plan_holds_the_current_events_of_the_version(release: Release) -> None:
    """Superseded, withdrawn and foreign events are left out; a version without any makes no run."""
    newer = change_event(event_id="event-newer", source_id="about", source_sequence=2, website_version="2026.03")
    submit(release.born(), release.keys, newer)
    release.plan()
    given = release.view()["immutable"]["input"]
    assert (given["channel"], given["website_version"], list(given["events"])) == ("site-1", "2026.02", ["home"])
    assert given["events"]["home"] == {
        "event_id": "event-home",
        "source_sequence": 1,
        "source_sha256": sha256_hex(SOURCE_TEXT),
        "plan_id": parsed(change_event(event_id="event-home", source_id="home")).plan_id,
    }
    for site, version in (("site-1", "2026.09"), ("site-2", "2026.02")):
        with pytest.raises(RunConflict, match="no current event"):
            plan_run(release.born(), site, version)


def test_the_workspace_is_the_database(release: Release) -> None:
    """Its fingerprint stays, and a store of another workspace does not see the run."""
    release.plan()
    own = workspace_fingerprint(release.services.engine)
    assert own == workspace_fingerprint(release.services.engine)
    assert release.view()["immutable"]["input"]["workspace_fingerprint"] == own
    with pytest.raises(RunNotFound):
        RunStore(release.services.engine, workspace_fingerprint="f" * 64).get(release.run_id)


# --- what each step finds ---------------------------------------------------------------------------------------------


def test_preflight_finds_what_was_altered(release: Release, engine: Engine) -> None:
    """A changed text in the database ends the step with a code, and a retry succeeds once it is restored."""
    release.plan()
    with reading(engine) as conn:
        kept = conn.execute(select(events.c.document).where(events.c.event_id == "event-home")).scalar_one()
    alter(engine, events, "event-home", document=kept.replace("Welcome", "Goodbye"))
    release.start()
    release.live(2)
    assert release.step("preflight") == ("failed", "release_event_tampered")
    alter(engine, events, "event-home", document=kept)
    release.retry("preflight")
    release.live(2)
    assert release.step("preflight") == ("succeeded", "preflight_passed")


def test_preflight_wants_a_submission_that_vouches(release: Release, engine: Engine) -> None:
    """Without one whose signature holds, nothing is released."""
    release.plan()
    alter(engine, submissions, "event-home", body="{}")
    release.start()
    release.live(2)
    assert release.step("preflight") == ("failed", "submission_signature_invalid")


def test_preflight_wants_a_cms(release: Release) -> None:
    """A site without a CMS is found before anything is sent."""

    def unknown(_site_id: str) -> Any:
        raise Blocked("cms.not_configured", "")

    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()
    visit = run_step(replace(release.born(), cms=unknown), **ids)
    assert (visit.status, visit.code) == ("failed", "cms_not_configured")


def test_a_retryable_fault_is_met_again_later(release: Release, rows: Rows) -> None:
    """Keys that cannot be read just now end nothing."""

    def away(_site_id: str) -> Any:
        raise Unavailable("keys.unavailable")

    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()
    visit = run_step(replace(release.born(), cms=away), **ids)
    assert (visit.status, visit.code) == ("waiting", "keys.unavailable")
    (row,) = rows(run_commands)
    assert (row["status"], row["attempts"], row["last_error_code"]) == ("retry_wait", 0, "keys.unavailable")
    release.live(2)
    assert release.step("preflight") == ("succeeded", "preflight_passed")


def test_evidence_waits_and_stops(release: Release, engine: Engine) -> None:
    """An event whose locales are under way is waited for; one that needs an operator ends the step."""
    event = change_event(event_id="event-late", source_id="late")
    submit(release.born(), release.keys, event)
    release.plan()
    release.until("evidence")
    release.start()
    release.live(3)
    assert release.step("evidence") == ("running", None)
    facts = report_run(engine, release.run_id, release.services.policies.for_site, now=release.now)
    assert run_sentence(facts).startswith(
        "evidence: waiting for approvals; first of all event-late: waiting for: de, fr-CA, quality receipt; "
    )
    assert next_command(facts) == f"locseal runs show {release.run_id} --watch"
    writing(engine, lambda conn: conn.execute(update(evidence).values(status="failed", last_error_code="evidence.no")))
    release.live(2)
    assert release.step("evidence") == ("failed", "evidence_stopped")
    approve(release.born(), release.keys, event)
    release.retry("evidence")
    release.live(2)
    assert release.step("evidence") == ("succeeded", "all_approved")


def test_publish_ends_with_what_failed(release: Release) -> None:
    """A definite refusal ends the step with its code; after a new revision the retry sends that alone."""
    release.until("publish")
    release.cms.sends = ["accept", "refuse"]
    release.start()
    release.live(3)
    assert release.step("publish") == ("failed", "cms_delivery_http_422")
    failed = next(event_id for event_id, status in release.by_event().items() if status == "failed")
    retry_delivery(release.born(), failed)
    release.live(2)
    release.retry("publish")
    release.live(3)
    assert release.step("publish") == ("succeeded", "all_acknowledged")
    assert sorted(release.publications().values()) == [1, 2]
    assert set(release.by_event().values()) == {"succeeded"}


def test_two_runs_never_hold_the_same_permit(release: Release, rows: Rows) -> None:
    """The second publication ends with `permit_held` while the first lives, and the first goes on."""
    release.until("publish")
    first = release.run_id
    release.until("publish")
    second, release.run_id = release.run_id, first
    release.cms.sends = ["not_now", "not_now"]
    release.start()
    release.live()
    release.run_id = second
    release.start()
    release.live()
    assert release.step("publish") == ("failed", "permit_held")
    assert {row["run_id"] for row in rows(delivery_permits)} == {first}
    release.run_id = first
    release.live(16)  # the CMS asked twice for a wait, which holds for every delivery of the site
    assert release.step("publish") == ("succeeded", "all_acknowledged")


def test_verify_holds_the_cms_to_its_word(release: Release, rows: Rows) -> None:
    """A signed absent ends the step; silence is asked again; what it confirmed is kept for auditors."""
    release.until("verify")
    release.cms.lookups = ["silent", "silent"]
    release.start()
    release.live()
    assert release.step("verify") == ("running", None)
    release.cms.lookups = ["truth", "absent"]
    release.live(2)
    assert release.step("verify") == ("failed", "not_confirmed")
    release.now += 1
    release.retry("verify")
    release.live(2)
    assert release.step("verify") == ("succeeded", "all_confirmed")
    kinds = [(row["kind"], row["outcome"]) for row in rows(delivery_answers)]
    assert kinds.count(("lookup", "accepted")) == 3
    assert sorted(release.publications().values()) == [1, 1]


def test_a_cms_without_look_up_is_taken_at_its_acknowledgement(release: Release) -> None:
    """There is nothing else to ask; the code says so."""
    release.cms.has_lookup = False
    release.until("verify")
    release.start()
    release.live()
    assert release.step("verify") == ("succeeded", "confirmed_by_acknowledgement")
    assert release.cms.questions == []


# --- automatic sites --------------------------------------------------------------------------------------------------


def test_an_automatic_site_is_published_without_a_run(release: Release, policies: FixedPolicies, rows: Rows) -> None:
    """No run, no permit: the fleet publishes; a run over it afterwards sends nothing again."""
    policies.policy = SitePolicy(publication="automatic")
    release.live(3)
    assert sorted(release.publications().values()) == [1, 1]
    release.until("verify")
    assert sorted(release.publications().values()) == [1, 1]
    assert rows(delivery_permits) == []


# --- reconciling ------------------------------------------------------------------------------------------------------


def interrupted(release: Release, sends: list[str]) -> None:
    """Take a release to an interrupted publication whose sends ended so."""
    release.until("publish")
    release.cms.sends = sends
    release.start()
    release.live()
    release.resume()


def told(release: Release) -> dict[str, tuple[str, str]]:
    """Return outcome and word of each source, as proposed."""
    return {one.source_id: (one.outcome, one.word) for one in release.propose().told}


def test_all_accepted_is_effect_succeeded(release: Release) -> None:
    """Lost answers are found by look-up; nothing is sent again, and the rows settle themselves."""
    interrupted(release, ["lost", "lost"])
    release.now += 61
    assert release.propose().outcome == "effect_succeeded"
    assert told(release) == {"home": ("accepted", "lookup"), "about": ("accepted", "lookup")}
    release.reconcile()
    assert release.step("publish") == ("succeeded", "reconciled_effect_succeeded")
    release.live(3)
    assert set(release.by_event().values()) == {"succeeded"}
    assert sorted(release.publications().values()) == [1, 1]


def test_any_absent_is_effect_absent_and_the_restart_skips_the_accepted(release: Release) -> None:
    """One was taken, one never came: the same bytes of the second go again, and of it alone."""
    interrupted(release, ["lost", "timeout"])
    release.now += 61
    assert sorted(told(release).values()) == [("absent", "lookup"), ("accepted", "lookup")]
    release.reconcile()
    assert release.step("publish") == ("pending", None)
    release.live(4)
    assert len(release.cms.requests) == 2  # nothing is sent without a permit
    release.start()
    release.live(4)
    assert release.step("publish") == ("succeeded", "all_acknowledged")
    assert sorted(release.publications().values()) == [1, 2]
    assert len({body for _, body in release.cms.requests}) == 2


def test_no_answer_is_unresolved_and_stays_open(release: Release, rows: Rows) -> None:
    """Silence, and an absent that comes too early, leave the step interrupted; the word records the look all the same."""
    interrupted(release, ["lost", "timeout"])
    release.cms.lookups = ["silent", "silent"]
    assert release.propose().outcome == "unresolved"
    assert sorted(told(release).values()) == [("accepted", "lookup"), ("unknown", "none")]  # the other: too early
    release.reconcile("unresolved")
    assert release.step("publish") == ("interrupted", "process_interrupted")
    assert release.view()["recommended_next"]["id"] == "reconcile_step"
    assert len(release.cms.requests) == 2


def test_nothing_sent_is_known_without_asking(release: Release) -> None:
    """Interrupted before anything left: absent by our own rows."""
    release.until("publish")
    release.start()
    release.queue.take()
    release.resume()
    assert told(release) == {"home": ("absent", "never sent"), "about": ("absent", "never sent")}
    assert release.cms.questions == []


def test_reconcile_is_refused_while_a_delivery_is_leased(release: Release) -> None:
    """Proposing and recording alike, by the fleet's commands and by the store's own surface."""
    release.until("publish")
    release.start()
    ((_, ids),) = release.queue.take()
    run_step(release.born(), **ids)
    refusals: list[str] = []
    store = RunStore(
        release.services.engine, workspace_fingerprint=workspace_fingerprint(release.services.engine), now=release.now
    )

    def meanwhile() -> None:
        if refusals:
            return
        with pytest.raises(RunConflict) as alive:
            release.resume()
        release.resume(force=True)
        with pytest.raises(RunConflict) as asking:
            release.propose()
        with pytest.raises(RunConflict) as recording:
            store.reconcile_step(
                release.run_id,
                "publish",
                request_id="request-direct",
                outcome="effect_absent",
                confirmation="RECONCILE",
            )
        refusals.extend([alive.value.code, asking.value.code, recording.value.code])

    release.cms.during_send = meanwhile
    release.drain(release.born())
    assert refusals == ["run.executor_alive", "run.delivery_leased", "run.conflict"]
    assert release.step("publish") == ("interrupted", "process_interrupted")
    assert len(release.cms.requests) == 1  # the second had lost its permit


def test_an_unknown_outcome_fails_the_step(release: Release) -> None:
    """An answer that nobody can verify ends the publication, and is for `locseal deliveries reconcile`."""
    release.until("publish")
    release.cms.sends = ["unverifiable", "accept"]
    release.start()
    release.live(2)
    assert release.step("publish") == ("failed", "cms_outcome_unknown")


def test_an_unknown_outcome_is_settled_by_the_signed_answer(release: Release, rows: Rows) -> None:
    """Reconciling an interrupted publication closes what is absent, so that a new revision can follow it."""
    interrupted(release, ["unverifiable", "accept"])
    release.now += 61
    assert sorted(told(release).values()) == [("absent", "lookup"), ("accepted", "acknowledgement")]
    release.reconcile()
    failed = [event_id for event_id, status in release.by_event().items() if status == "failed"]
    assert [row["last_error_code"] for row in rows(deliveries) if row["status"] == "failed"] == ["cms.delivery.absent"]
    retry_delivery(release.born(), failed[0])
    release.live(2)
    release.start()
    release.live(3)
    assert release.step("publish") == ("succeeded", "all_acknowledged")
    assert set(release.by_event().values()) == {"succeeded"}


def test_the_fleet_reconciles_where_the_policy_lets_it(release: Release, policies: FixedPolicies, rows: Rows) -> None:
    """After the resume it asks by itself until every look-up is signed, and records that; no word is typed."""
    policies.policy = SitePolicy(publication="guided", reconciliation="fleet")
    release.until("publish")
    release.cms.sends = ["lost", "lost"]
    release.start()
    release.live()
    release.cms.lookups = ["silent"]
    release.resume()
    assert release.queue.sent[-1][0] == "run.step"
    release.live()
    assert release.step("publish") == ("interrupted", "process_interrupted")
    release.now += 61
    release.live(3)
    assert release.step("publish") == ("succeeded", "reconciled_effect_succeeded")
    assert [row["status"] for row in rows(run_commands)] == ["succeeded"] * 4
    assert sorted(release.publications().values()) == [1, 1]


def test_only_an_interrupted_publication_is_reconciled(release: Release) -> None:
    """Anything else is a conflict; an unknown step is not found."""
    release.plan()
    for step, kind in (("publish", RunConflict), ("preflight", RunConflict), ("nowhere", RunNotFound)):
        with pytest.raises(kind):
            propose_outcome(release.born(), release.run_id, step)


# --- rarer ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)  # SQLite has no lock of one row
def test_a_busy_record_hands_the_visit_back(release: Release, postgres_engine: Engine) -> None:
    """Whoever holds the run's row too long costs a visit, and no attempt."""
    event.listen(postgres_engine, "connect", wait_shortly)
    postgres_engine.dispose()
    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()
    with postgres_engine.connect() as holder, holder.begin():
        held: list[str] = []

        def hold(name: str) -> None:
            if name == "run.visited":
                held.extend(holder.execute(select(release_runs.c.run_id).with_for_update()).scalars())

        visit = run_step(replace(release.born(), checkpoint=hold), **ids)
    event.remove(postgres_engine, "connect", wait_shortly)
    postgres_engine.dispose()
    assert (visit.status, held) == ("waiting", [release.run_id])
    release.live(3)
    assert release.step("preflight") == ("succeeded", "preflight_passed")


def wait_shortly(connection: Any, _record: object) -> None:
    """Shorten the wait for locks from ten seconds."""
    connection.autocommit = True
    connection.execute("SET lock_timeout = '200ms'")
    connection.autocommit = False


def test_a_visit_that_outlives_its_lease_is_lost(release: Release) -> None:
    """Its end is not written; the next visit ends the step."""
    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()

    def dawdle(name: str) -> None:
        if name == "run.visited":
            release.now += 301

    assert run_step(replace(release.born(), checkpoint=dawdle), **ids).status == "lost"
    assert release.step("preflight") == ("running", None)
    release.live(2)
    assert release.step("preflight") == ("succeeded", "preflight_passed")


def test_preflight_wants_a_key_of_the_cms(release: Release) -> None:
    """Answers that nobody could verify are found before anything is sent."""
    release.plan()
    release.start()
    ((_, ids),) = release.queue.take()
    release.keys.revoke("acknowledgement")
    visit = run_step(release.born(), **ids)
    assert (visit.status, visit.code) == ("failed", "cms_key_missing")


def test_a_failed_delivery_ends_the_preparation(release: Release, engine: Engine) -> None:
    """It is followed on an operator's word only."""
    release.live(2)
    alter(engine, deliveries, "event-home", status="failed", last_error_code="cms.delivery.http_422")
    release.until("prepare")
    release.start()
    release.live(2)
    assert release.step("prepare") == ("failed", "cms_delivery_http_422")


def test_an_operator_may_be_quicker_than_the_fleet(release: Release, policies: FixedPolicies, rows: Rows) -> None:
    """The fleet's own command ends quietly, and records nothing."""
    policies.policy = SitePolicy(publication="guided", reconciliation="fleet")
    release.until("publish")
    release.cms.sends = ["lost", "lost"]
    release.start()
    release.live()
    release.now += 61
    release.resume()
    release.queue.take()
    release.reconcile()
    before = rows(release_runs)
    release.now += 11
    release.live(2)
    assert rows(release_runs) == before
    assert {row["status"] for row in rows(run_commands)} == {"succeeded"}
    assert release.visits[-1].code == "reconciled_otherwise"


def test_a_tampered_event_makes_no_run(release: Release, engine: Engine, rows: Rows) -> None:
    """What is frozen was verified."""
    alter(engine, events, "event-home", document="{}")
    with pytest.raises(Blocked) as refused:
        release.plan()
    assert (refused.value.code, rows(release_runs)) == ("release.event.tampered", [])
