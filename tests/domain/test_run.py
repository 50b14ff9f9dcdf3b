"""The pure release run: every limit, refusal, idempotency rule, view field and recommended action with its exact value."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest

from tests.run_builders import (
    AT,
    RUN_ID,
    WORKSPACE,
    localization_input,
    localization_plan,
    software_input,
    software_plan,
    step,
)
from worker.domain import run
from worker.domain.canonical import canonical_bytes
from worker.domain.errors import RunConflict, RunCorrupt, RunNotFound
from worker.domain.run_plan import MAX_BYTES, kind_of, normalised_input, normalised_plan
from worker.domain.run_record import check_record, decode_record, encode_record, record_digest
from worker.domain.run_view import row_of, view_of

LATER = "2026-01-02T03:04:06Z"
Json = dict[str, Any]


def fresh(plan: Json | None = None, given: Json | None = None) -> Json:
    given = normalised_input(given or software_input())
    return run.new_record(RUN_ID, given, normalised_plan(plan or software_plan(), kind=kind_of(given)), at=AT)


def started(record: Json, step_id: str, attempt: str = "attempt-1") -> Json:
    changed = run.start_step(record, step_id, attempt_id=attempt, at=LATER)
    assert changed is not None
    return changed


def finished(record: Json, step_id: str, attempt: str = "attempt-1", *, ok: bool = True, code: str = "done") -> Json:
    changed = run.finish_step(record, step_id, attempt_id=attempt, succeeded=ok, result_code=code, at=LATER)
    assert changed is not None
    return changed


def resumed(record: Json, request: str = "request-1") -> Json:
    changed = run.resume(record, request_id=request, at=LATER)
    assert changed is not None
    return changed


def published_and_interrupted() -> Json:
    return resumed(started(finished(started(fresh(), "check"), "check"), "publish", "attempt-2"))


def state_of(record: Json, index: int) -> Json:
    return record["state"]["steps"][index]  # type: ignore[no-any-return]


class TestInput:
    def test_normalised_input_is_detached_and_sorted(self) -> None:
        """Repositories are sorted, and later edits of the caller's object do not matter."""
        given = software_input()
        kept = normalised_input(given)
        given["repo_versions"]["zzz"] = "9.9.9"
        assert list(kept["repo_versions"].items()) == [("api", "0.1.0-rc.1"), ("site", "1.2.3")]

    @pytest.mark.parametrize("version", ["1.2.3", "0.0.0", "10.20.30-rc.1", "1.2.3+build-5", "01.2.3", "1.2.3-a-b.c"])
    def test_good_versions(self, version: str) -> None:
        """Three digit groups, optionally one `-` or `+` part."""
        assert normalised_input(software_input(repo_versions={"a": version}))["repo_versions"] == {"a": version}

    @pytest.mark.parametrize(
        "version",
        ["v1.2.3", "1.2", "1.2.3.4", "1.2.3-rc.1+5", "1.2.3-", "1.2.3-.a", "1.2.3\n", "1.2.٣", "", 1, None, True],
    )
    def test_bad_versions(self, version: object) -> None:
        """Anything else is a conflict."""
        with pytest.raises(RunConflict):
            normalised_input(software_input(repo_versions={"a": version}))

    @pytest.mark.parametrize(
        "changes",
        [
            {"channel": ""},
            {"channel": "a" * 65},
            {"channel": ".a"},
            {"channel": "a:b"},
            {"channel": "a\n"},
            {"channel": 1},
            {"repo_versions": {}},
            {"repo_versions": []},
            {"repo_versions": {f"r{i}": "1.2.3" for i in range(129)}},
            {"repo_versions": {"a" * 129: "1.2.3"}},
            {"repo_versions": {1: "1.2.3"}},
            {"online": 1},
            {"remote_tags": None},
            {"public_catalog": "yes"},
            {"include_migrations": 0},
            {"workspace_fingerprint": "A" * 64},
            {"workspace_fingerprint": "a" * 64 + "\n"},
            {"extra": 1},
        ],
    )
    def test_refused_software_inputs(self, changes: Json) -> None:
        """Every field is held to its grammar and its limits."""
        with pytest.raises(RunConflict):
            normalised_input(software_input(**changes))

    def test_most_repositories(self) -> None:
        """128 repositories are accepted."""
        versions = {f"r{i}": "1.2.3" for i in range(128)}
        assert len(normalised_input(software_input(repo_versions=versions))["repo_versions"]) == 128

    @pytest.mark.parametrize("value", [None, [], "x", 1, True, {}, {"channel": "a"}])
    def test_no_input_at_all(self, value: object) -> None:
        """Whatever has not exactly one of the two key sets is a conflict."""
        with pytest.raises(RunConflict):
            normalised_input(value)

    def test_localization_channel_is_a_token(self) -> None:
        """A site id may hold what a release channel may not."""
        assert normalised_input(localization_input())["channel"] == "site:one"
        with pytest.raises(RunConflict):
            normalised_input(localization_input(channel="site one"))

    @pytest.mark.parametrize(
        "event",
        [
            None,
            {},
            {"event_id": "e", "source_sequence": 0, "source_sha256": "b" * 64, "plan_id": "p"},
            {"event_id": "e", "source_sequence": True, "source_sha256": "b" * 64, "plan_id": "p"},
            {"event_id": "e", "source_sequence": 1.0, "source_sha256": "b" * 64, "plan_id": "p"},
            {"event_id": "e e", "source_sequence": 1, "source_sha256": "b" * 64, "plan_id": "p"},
            {"event_id": "e", "source_sequence": 1, "source_sha256": "b" * 63, "plan_id": "p"},
            {"event_id": "e", "source_sequence": 1, "source_sha256": "b" * 64, "plan_id": ""},
            {"event_id": "e", "source_sequence": 1, "source_sha256": "b" * 64, "plan_id": "p", "more": 1},
        ],
    )
    def test_refused_events(self, event: object) -> None:
        """An event of a localization input has exactly its four fields."""
        with pytest.raises(RunConflict):
            normalised_input(localization_input(events={"home": event}))

    def test_event_count_limits(self) -> None:
        """1 to 1,000 events."""
        one = localization_input()["events"]["home"]
        assert len(normalised_input(localization_input(events={f"s{i}": one for i in range(1000)}))["events"]) == 1000
        for count in (0, 1001):
            with pytest.raises(RunConflict):
                normalised_input(localization_input(events={f"s{i}": one for i in range(count)}))


class TestPlan:
    @pytest.mark.parametrize(
        "changes",
        [
            {"generated_at": "2026-02-30T00:00:00Z"},
            {"generated_at": "2026-01-01T24:00:00Z"},
            {"generated_at": "2026-01-01T00:00:60Z"},
            {"generated_at": "2026-01-01T00:00:00+00:00"},
            {"generated_at": "2026-01-01T00:00:00Z\n"},
            {"generated_at": "0000-01-01T00:00:00Z"},
            {"status": "done"},
            {"status": ["ready"]},
            {"target_channel": "a b"},
            {"units": {}},
            {"compatibility": None},
            {"gate_findings": ()},
            {"notes": [1]},
            {"notes": "x"},
            {"recommended_action": []},
            {"source_preflight_ready": 1},
            {"dry_run_steps": []},
            {"dry_run_steps": [step(f"s{i}") for i in range(513)]},
            {"dry_run_steps": [step("a"), step("a")]},
            {"dry_run_steps": [step("")]},
            {"dry_run_steps": [step("a" * 161)]},
            {"dry_run_steps": [step("-a")]},
            {"dry_run_steps": [step("a/b")]},
            {"dry_run_steps": [step("a", title="x" * 501)]},
            {"dry_run_steps": [step("a", detail="x" * 2001)]},
            {"dry_run_steps": [step("a", title=None)]},
            {"dry_run_steps": [step("a", command="x" * 8193)]},
            {"dry_run_steps": [step("a", cwd=1)]},
            {"dry_run_steps": [step("a", repo=[])]},
            {"dry_run_steps": [step("a", mutating=0)]},
            {"dry_run_steps": [step("a", status="ready")]},
            {"dry_run_steps": [step("a", more=1)]},
            {"dry_run_steps": ["a"]},
            {"units": [math.nan]},
            {"units": [math.inf]},
            {"units": [2**53]},
            {"units": [-(2**53)]},
            {"units": [float(2**53)]},
            {"units": ["\ud800"]},
            {"units": [{1: 2}]},
            {"units": [object()]},
            {"units": [b"x"]},
            {"extra": 1},
        ],
    )
    def test_refused_plans(self, changes: Json) -> None:
        """Every field is held to its type, its grammar and its limits, and the whole must be JSON."""
        with pytest.raises(RunConflict):
            normalised_plan(software_plan(**changes), kind="software")

    def test_limits_are_inclusive(self) -> None:
        """512 steps, 160, 500, 2,000 and 8,192 characters, and +-(2^53 - 1) are accepted; empty texts too."""
        steps = [step(f"s{i}", title="", detail="") for i in range(511)]
        steps.append(step("a" * 160, title="x" * 500, detail="x" * 2000, command="x" * 8192, cwd="", repo="x" * 8192))
        kept = normalised_plan(software_plan(dry_run_steps=steps, units=[2**53 - 1, -(2**53 - 1)]), kind="software")
        assert len(kept["dry_run_steps"]) == 512
        assert kept["units"] == [9007199254740991, -9007199254740991]

    def test_deep_nesting_is_a_conflict(self) -> None:
        """A plan too deep to be read back from a record is refused when it is created, whatever its depth."""
        for depth in (61, 62, 63, 64, 65, 1000, 100_000):
            value: list[Any] = []
            for _ in range(depth):
                value = [value]
            try:
                record = fresh(software_plan(compatibility=value))
            except RunConflict:
                assert depth > 50
            else:
                assert decode_record(encode_record(record), run_id=RUN_ID) == record

    def test_strings_are_taken_as_they_are(self) -> None:
        """NFD text and NUL are a plan's own business."""
        notes = ["e\u0301", "\x00"]
        assert normalised_plan(software_plan(notes=notes), kind="software")["notes"] == notes

    def test_plan_of_exactly_two_mebibytes_fits_alone_but_not_as_a_record(self) -> None:
        """The plan limit is inclusive, and the record around it is then too large: a conflict either way."""
        room = MAX_BYTES - len(canonical_bytes(software_plan(notes=[""])))
        kept = normalised_plan(software_plan(notes=["x" * room]), kind="software")
        assert len(canonical_bytes(kept)) == MAX_BYTES
        with pytest.raises(RunConflict):
            encode_record(run.new_record(RUN_ID, normalised_input(software_input()), kept, at=AT))
        with pytest.raises(RunConflict):
            normalised_plan(software_plan(notes=["x" * (room + 1)]), kind="software")

    def test_record_of_exactly_two_mebibytes_less_one_fits(self) -> None:
        """Canonical bytes plus one may be 2 MiB and not more."""
        room = MAX_BYTES - 1 - len(encode_record(fresh(software_plan(notes=[""]))))
        record = fresh(software_plan(notes=["x" * room]))
        assert len(encode_record(record)) + 1 == MAX_BYTES
        with pytest.raises(RunConflict):
            encode_record(fresh(software_plan(notes=["x" * (room + 1)])))

    @pytest.mark.parametrize(
        "units",
        [
            [],
            [{"repo": "api", "target_version": "0.1.0-rc.1"}],
            [{"repo": "api", "target_version": "0.1.0-rc.1"}, {"repo": "site", "target_version": "1.2.4"}],
            [{"repo": "api", "target_version": "0.1.0-rc.1"}] * 2 + [{"repo": "site", "target_version": "1.2.3"}],
            [{"repo": "api", "target_version": "0.1.0-rc.1"}, {"repo": "site", "target_version": None}],
            ["api", "site"],
        ],
    )
    def test_units_that_disagree_with_the_input_are_corrupt(self, units: list[Any]) -> None:
        """The cross checks between plan and input are record validation."""
        with pytest.raises(RunCorrupt):
            fresh(software_plan(units=units))

    def test_channel_that_disagrees_with_the_input_is_corrupt(self) -> None:
        """A valid channel of another release is found by record validation."""
        with pytest.raises(RunCorrupt):
            fresh(software_plan(target_channel="beta"))

    def test_localization_units_equal_the_events(self) -> None:
        """Units of a localization plan name the input's events exactly."""
        assert fresh(localization_plan(), localization_input())["state"]["status"] == "planned"
        units = localization_plan()["units"]
        for wrong in (units[:1], [*units, units[0]], [units[0], {**units[1], "plan_id": "plan-3"}]):
            with pytest.raises(RunCorrupt):
                fresh(localization_plan(units=wrong), localization_input())


class TestTransitions:
    def test_new_run(self) -> None:
        """Every step pending with zero attempts, one event, sequence 1."""
        record = fresh()
        assert [s["state"] for s in record["state"]["steps"]] == ["pending"] * 3
        assert [s["attempt_count"] for s in record["state"]["steps"]] == [0, 0, 0]
        assert record["state"]["events"] == [{"sequence": 1, "at": AT, "type": "run_created"}]
        assert record["state"]["next_event_sequence"] == 2
        assert record["state"]["status"] == "planned"

    def test_start_and_finish(self) -> None:
        """A step is claimed by an attempt and ended with a bounded code; only fingerprints of ids are stored."""
        record = started(fresh(), "check")
        assert state_of(record, 0) == {
            "id": "check",
            "state": "running",
            "attempt_count": 1,
            "attempt_fingerprint": run.fingerprint("attempt-1"),
            "started_at": LATER,
            "finished_at": None,
            "result_code": None,
        }
        assert record["state"]["status"] == "running"
        record = finished(record, "check")
        assert (state_of(record, 0)["state"], state_of(record, 0)["result_code"]) == ("succeeded", "done")
        assert record["state"]["events"][1:] == [
            {"sequence": 2, "at": LATER, "type": "step_started", "step_id": "check"},
            {"sequence": 3, "at": LATER, "type": "step_succeeded", "step_id": "check", "result_code": "done"},
        ]
        assert b"attempt-1" not in encode_record(record)

    def test_start_is_refused_out_of_order(self) -> None:
        """The first incomplete earlier step is named."""
        with pytest.raises(RunConflict, match="step check must be completed first"):
            run.start_step(fresh(), "verify", attempt_id="attempt-1", at=LATER)

    def test_start_replay_claims_nothing(self) -> None:
        """The same attempt id and step return the current state, even long after; another step is a conflict."""
        record = finished(started(fresh(), "check"), "check")
        assert run.start_step(record, "check", attempt_id="attempt-1", at=LATER) is None
        for other in ("publish", "nowhere"):
            with pytest.raises(RunConflict):
                run.start_step(record, other, attempt_id="attempt-1", at=LATER)
        with pytest.raises(RunNotFound):
            run.start_step(record, "nowhere", attempt_id="attempt-9", at=LATER)

    def test_finish_replay_and_conflicts(self) -> None:
        """The same outcome and code change nothing; any difference is a conflict."""
        record = finished(started(fresh(), "check"), "check")
        assert (
            run.finish_step(record, "check", attempt_id="attempt-1", succeeded=True, result_code="done", at=AT) is None
        )
        for ok, code, attempt, step_id in (
            (False, "done", "attempt-1", "check"),
            (True, "other", "attempt-1", "check"),
            (True, "done", "attempt-2", "check"),
            (True, "done", "attempt-1", "publish"),
        ):
            with pytest.raises(RunConflict):
                run.finish_step(record, step_id, attempt_id=attempt, succeeded=ok, result_code=code, at=LATER)

    def test_finish_after_resume_is_a_conflict(self) -> None:
        """Resuming under a live executor makes that executor's report fail."""
        record = resumed(started(fresh(), "check"))
        with pytest.raises(RunConflict):
            run.finish_step(record, "check", attempt_id="attempt-1", succeeded=True, result_code="done", at=LATER)

    def test_reserved_code_is_corrupt(self) -> None:
        """`reconciled_effect_succeeded` cannot be reported; `process_interrupted` can."""
        record = started(fresh(), "check")
        for ok in (True, False):
            with pytest.raises(RunCorrupt):
                finished(record, "check", ok=ok, code="reconciled_effect_succeeded")
            assert state_of(finished(record, "check", ok=ok, code="process_interrupted"), 0)["state"] == (
                "succeeded" if ok else "failed"
            )

    def test_retry_of_a_failed_step(self) -> None:
        """Failed goes back to pending, mutating or not, the count kept, the attempt kept."""
        record = finished(started(fresh(), "check"), "check", ok=False, code="broken")
        assert record["state"]["status"] == "attention"
        again = run.retry_step(record, "check", request_id="request-1", at=LATER)
        assert again is not None
        assert state_of(again, 0)["attempt_count"] == 1
        assert state_of(again, 0)["state"] == "pending"
        assert again["state"]["events"][-1]["result_code"] == "known_failure"
        assert again["state"]["processed_attempts"][0]["outcome"] == "failed"
        assert run.retry_step(again, "check", request_id="request-1", at=LATER) is None
        with pytest.raises(RunConflict):
            run.retry_step(again, "publish", request_id="request-1", at=LATER)
        with pytest.raises(RunConflict):
            run.resume(again, request_id="request-1", at=LATER)

    def test_resume_interrupts_and_is_always_allowed(self) -> None:
        """Interrupted, then resumed, in that order; with nothing running only `run_resumed`."""
        record = resumed(started(fresh(), "check"))
        assert [e["type"] for e in record["state"]["events"][-2:]] == ["step_interrupted", "run_resumed"]
        assert state_of(record, 0)["result_code"] == "process_interrupted"
        again = resumed(record, "request-2")
        assert [e["type"] for e in again["state"]["events"][-2:]] == ["run_resumed", "run_resumed"]
        assert run.resume(again, request_id="request-2", at=LATER) is None

    def test_read_only_interruption_is_retried(self) -> None:
        """A read-only interrupted step needs no reconciling."""
        again = run.retry_step(resumed(started(fresh(), "check")), "check", request_id="request-2", at=LATER)
        assert again is not None
        assert again["state"]["events"][-1]["result_code"] == "read_only_interruption"
        with pytest.raises(RunConflict):
            run.reconcile_step(
                resumed(started(fresh(), "check")),
                "check",
                request_id="request-2",
                outcome="effect_absent",
                confirmation="RECONCILE",
                at=LATER,
            )

    def test_mutating_interruption_is_reconciled(self) -> None:
        """The three outcomes, each with the step it leaves behind; a retry is refused before."""
        record = published_and_interrupted()
        with pytest.raises(RunConflict, match="reconcile it first"):
            run.retry_step(record, "publish", request_id="request-2", at=LATER)
        before = state_of(record, 1)
        for outcome, expected in (
            ("effect_absent", {**state_of(fresh(), 1), "attempt_count": 1}),
            ("effect_succeeded", {**before, "state": "succeeded", "result_code": "reconciled_effect_succeeded"}),
            ("unresolved", before),
        ):
            after = run.reconcile_step(
                record, "publish", request_id="request-2", outcome=outcome, confirmation="RECONCILE", at=LATER
            )
            assert after is not None
            assert state_of(after, 1) == expected
            assert after["state"]["processed_attempts"][1]["outcome"] == "interrupted"
            assert after["state"]["events"][-1] == {
                "sequence": 7,
                "at": LATER,
                "type": "step_reconciled",
                "step_id": "publish",
                "result_code": outcome,
            }

    @pytest.mark.parametrize("word", ["reconcile", "RECONCILE\n", "", None, True, 1])
    def test_confirmation_is_the_exact_word(self, word: object) -> None:
        """Case matters, and nothing else counts."""
        with pytest.raises(RunConflict):
            run.reconcile_step(
                published_and_interrupted(),
                "publish",
                request_id="request-2",
                outcome="unresolved",
                confirmation=word,
                at=LATER,
            )

    @pytest.mark.parametrize(
        "bad", ["short-7", "x" * 129, "-starts-bad", "has space", "newline-12\n", None, 12345678, True]
    )
    def test_request_and_attempt_grammar(self, bad: object) -> None:
        """8 to 128 characters, first a letter or digit."""
        with pytest.raises(RunConflict):
            run.resume(fresh(), request_id=bad, at=LATER)
        with pytest.raises(RunConflict):
            run.start_step(fresh(), "check", attempt_id=bad, at=LATER)

    @pytest.mark.parametrize("code", ["", "Ok", "1a", "a-b", "a" * 65, "a\n", None, 1])
    def test_result_code_grammar(self, code: object) -> None:
        """1 to 64 lowercase letters, digits and underscores, a letter first."""
        with pytest.raises(RunConflict):
            run.finish_step(
                started(fresh(), "check"), "check", attempt_id="attempt-1", succeeded=True, result_code=code, at=LATER
            )

    def test_clock_that_runs_backwards_is_corrupt(self) -> None:
        """The next mutation finds its own time before what was recorded."""
        with pytest.raises(RunCorrupt):
            run.start_step(started_run_in_the_future(), "check", attempt_id="attempt-1", at=AT)

    def test_events_keep_the_newest_256(self) -> None:
        """Older ones are dropped and sequence numbers keep rising."""
        record = fresh()
        for number in range(300):
            record = resumed(record, f"request-{number}")
        events = record["state"]["events"]
        assert (len(events), events[0]["sequence"], events[-1]["sequence"]) == (256, 46, 301)
        assert record["state"]["next_event_sequence"] == 302


def started_run_in_the_future() -> Json:
    record = resumed(fresh())
    record["updated_at"] = "2036-01-01T00:00:00Z"
    record["state"]["events"][-1]["at"] = "2036-01-01T00:00:00Z"
    record["record_digest"] = record_digest(record)
    check_record(record, run_id=RUN_ID)
    return record


def filled(record: Json, name: str, entries: list[Json]) -> Json:
    record = copy.deepcopy(record)
    record["state"][name] = entries
    record["record_digest"] = record_digest(record)
    return record


class TestCapacity:
    def test_requests(self) -> None:
        """Entry 2048 is accepted, the next refused, and replays still work when full."""
        entries = [
            {"fingerprint": run.fingerprint(f"request-{n}"), "operation": "resume", "step_id": None, "parameter": None}
            for n in range(2047)
        ]
        full = resumed(filled(fresh(), "processed_requests", entries), "request-last")
        assert len(full["state"]["processed_requests"]) == 2048
        with pytest.raises(RunConflict, match="2048"):
            resumed(full, "request-more")
        assert run.resume(full, request_id="request-0", at=LATER) is None
        started(full, "check")  # attempts have their own capacity

    def test_attempts(self) -> None:
        """2048 attempts over all steps; finishing the last one consumes none."""
        record = fresh()
        attempts = [
            {
                "fingerprint": run.fingerprint(f"attempt-x{n}"),
                "step_id": "check",
                "outcome": "failed",
                "result_code": "a",
            }
            for n in range(2047)
        ]
        record["state"]["steps"][0]["attempt_count"] = 2047
        full = finished(started(filled(record, "processed_attempts", attempts), "check"), "check", ok=False, code="a")
        again = run.retry_step(full, "check", request_id="request-1", at=LATER)
        assert again is not None
        with pytest.raises(RunConflict, match="2048"):
            started(again, "check", "attempt-new")
        assert run.start_step(again, "check", attempt_id="attempt-1", at=LATER) is None


class TestStatusAndAdvice:
    def advice(self, record: Json) -> tuple[str, str | None, bool]:
        """Return the id, step and availability of the recommended action."""
        advice = view_of(record)["recommended_next"]
        assert set(advice) == {"id", "step_id", "title", "detail", "remediation", "available"}
        return advice["id"], advice["step_id"], advice["available"]

    def test_walk_through_a_run(self) -> None:
        """Status and advice along a whole release."""
        record = fresh()
        assert self.advice(record) == ("execute_step", "check", True)
        record = started(record, "check")
        assert self.advice(record) == ("wait_for_step", "check", False)
        failed = finished(record, "check", ok=False)
        assert self.advice(failed) == ("retry_step", "check", True)
        record = finished(record, "check")
        assert record["state"]["status"] == "planned"
        record = resumed(started(record, "publish", "attempt-2"))
        assert self.advice(record) == ("reconcile_step", "publish", True)
        assert record["state"]["status"] == "attention"
        reconciled = run.reconcile_step(
            record, "publish", request_id="request-2", outcome="effect_succeeded", confirmation="RECONCILE", at=LATER
        )
        assert reconciled is not None
        record = finished(started(reconciled, "verify", "attempt-3"), "verify", "attempt-3")
        assert record["state"]["status"] == "completed"
        assert self.advice(record) == ("run_complete", None, False)

    def test_read_only_interruption_has_its_own_advice(self) -> None:
        """Retry, but worded otherwise than after a failure."""
        interrupted = view_of(resumed(started(fresh(), "check")))["recommended_next"]
        failed = view_of(finished(started(fresh(), "check"), "check", ok=False))["recommended_next"]
        assert (interrupted["id"], failed["id"]) == ("retry_step", "retry_step")
        assert interrupted["remediation"] != failed["remediation"]

    def test_unexecutable_third_step_blocks_only_when_it_is_next(self) -> None:
        """Rule 5 looks at the next pending step alone."""
        plan = software_plan(dry_run_steps=[step("one"), step("two", status="needs-executor"), step("three")])
        record = fresh(plan)
        assert record["state"]["status"] == "planned"
        record = finished(started(record, "one"), "one")
        assert record["state"]["status"] == "blocked"
        assert self.advice(record) == ("unavailable_step", "two", False)
        view = view_of(record)
        assert view["recommended_next"]["remediation"] == view["state"]["steps"][1]["disabled_reason"] != ""
        with pytest.raises(RunConflict):
            run.start_step(record, "two", attempt_id="attempt-2", at=LATER)

    def test_blocked_plan(self) -> None:
        """Nothing starts, and the plan's own action is recommended, each value falling back when missing or empty."""
        record = fresh(software_plan(status="blocked"))
        assert record["state"]["status"] == "blocked"
        assert self.advice(record) == ("resolve_plan_blocker", None, False)
        with pytest.raises(RunConflict, match="blocked"):
            run.start_step(record, "check", attempt_id="attempt-1", at=LATER)
        action = {"id": "sign", "title": "", "detail": 7}
        advice = view_of(fresh(software_plan(status="blocked", recommended_action=action)))["recommended_next"]
        fallback = view_of(record)["recommended_next"]
        assert (advice["id"], advice["detail"]) == ("sign", 7)
        assert (advice["title"], advice["remediation"]) == (fallback["title"], fallback["remediation"])

    def test_attention_plan_behaves_like_ready(self) -> None:
        """Only `blocked` has an effect."""
        assert fresh(software_plan(status="attention"))["state"]["status"] == "planned"

    def test_empty_title_and_detail(self) -> None:
        """An empty title becomes the step id, an empty detail a generic phrase."""
        advice = view_of(fresh(software_plan(dry_run_steps=[step("one", title="", detail="")])))["recommended_next"]
        assert advice["title"] == "one"
        assert advice["detail"] != ""


class TestView:
    def test_fields(self) -> None:
        """The record without remembered ids, the steps enriched, and nothing shared with the record."""
        record = published_and_interrupted()
        view = view_of(record)
        assert set(view) == {*record, "recommended_next"}
        assert set(view["state"]) == {"status", "steps", "events", "next_event_sequence"}
        publish = view["state"]["steps"][1]
        assert set(publish) == {
            *step("publish"),
            "state",
            "attempt_count",
            "started_at",
            "finished_at",
            "result_code",
            "order",
            "available",
            "disabled_reason",
            "retry_available",
            "reconciliation_required",
        }
        assert (publish["status"], publish["order"]) == ("planned", 2)
        assert (publish["retry_available"], publish["reconciliation_required"]) == (False, True)
        assert "reconcile" in publish["disabled_reason"]
        assert view["state"]["steps"][2]["disabled_reason"] == "step publish must be completed first"
        view["immutable"]["plan"]["notes"].append("edited")
        view["state"]["events"].clear()
        check_record(record, run_id=RUN_ID)

    def test_rows(self) -> None:
        """A list row names the versions of a software run, the version and event count of a localization run."""
        row = row_of(fresh())
        assert set(row) == {
            "run_id",
            "created_at",
            "updated_at",
            "status",
            "channel",
            "repo_versions",
            "recommended_next",
        }
        localized = row_of(fresh(localization_plan(), localization_input()))
        assert (localized["website_version"], localized["event_count"]) == ("2026.11", 2)
        assert "repo_versions" not in localized
        assert localized["channel"] == "site:one"
        assert WORKSPACE not in str(row)


def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a JSON value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [prefix] if prefix else []
    for key, child in children:
        found += paths(child, (*prefix, key))
    return found


def at_parent(record: Json, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        record = record[key]
    return record


class TestDamage:
    def test_any_single_changed_dropped_or_added_field_is_corrupt(self) -> None:
        """Over all paths of a record with every kind of entry: flip, drop and add."""
        record = published_and_interrupted()
        checked = 0
        for path in paths(record):
            for damage in ("flip", "null", "drop", "add"):
                broken = copy.deepcopy(record)
                parent = at_parent(broken, path)
                value = parent[path[-1]]
                if damage == "flip":
                    parent[path[-1]] = flipped(value)
                elif damage == "null" and value is not None:
                    parent[path[-1]] = None
                elif damage == "drop":
                    del parent[path[-1]]
                elif damage == "add" and isinstance(value, dict):
                    value["added"] = 1
                elif damage == "add" and isinstance(value, list):
                    value.append("added")
                else:
                    continue
                with pytest.raises(RunCorrupt):
                    decode_record(canonical_bytes(broken), run_id=RUN_ID)
                checked += 1
        assert checked > 400

    @pytest.mark.parametrize(
        "stored",
        [
            b"",
            b"{",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"a":' * 5_000,
            b"9" * 10_000,
            b'{"schema":1e400}',
            b"null",
            b"[]",
            b'"x"',
            b"x" * (MAX_BYTES + 1),
            None,
            7,
            1.5,
        ],
    )
    def test_rubbish_is_corrupt(self, stored: object) -> None:
        """Whatever lies in the column ends in RunCorrupt and in nothing else."""
        with pytest.raises(RunCorrupt):
            decode_record(stored, run_id=RUN_ID)

    def test_spelling_of_the_same_values_is_no_damage(self) -> None:
        """White space, the order of members and a final line end change nothing that was recorded."""
        record = published_and_interrupted()
        reordered = dict(reversed(record.items()))
        assert decode_record(json.dumps(reordered, indent=1).encode() + b"\n", run_id=RUN_ID) == record

    def test_record_of_another_key_is_corrupt(self) -> None:
        """A valid record under another run's key is damage."""
        with pytest.raises(RunCorrupt):
            decode_record(encode_record(fresh()), run_id="rr-20260102T030405Z-ffffffffffff")

    def test_digest_does_not_excuse_a_broken_rule(self) -> None:
        """With the digest made to fit, the rules still hold: order, counts, events, remembered ids."""
        record = published_and_interrupted()
        edits: list[tuple[tuple[Any, ...], Any]] = [
            (("state", "steps", 0, "state"), "failed"),
            (("state", "steps", 0, "attempt_count"), 2),
            (("state", "steps", 0, "finished_at"), "2026-01-02T03:04:04Z"),
            (("state", "steps", 1, "result_code"), "other"),
            (("state", "steps", 1, "attempt_fingerprint"), "0" * 64),
            (("state", "steps", 2, "attempt_count"), 1),
            (("state", "status"), "planned"),
            (("state", "next_event_sequence"), 6),
            (("state", "next_event_sequence"), True),
            (("state", "events", 1, "sequence"), 1),
            (("state", "events", 1, "step_id"), "nowhere"),
            (("state", "events", 0, "step_id"), "check"),
            (("state", "processed_requests", 0, "operation"), "retry"),
            (("state", "processed_attempts", 0, "outcome"), "running"),
            (("schema_version",), 3),
            (("updated_at",), "2026-01-02T03:04:04Z"),
        ]
        for path, value in edits:
            broken = copy.deepcopy(record)
            at_parent(broken, path)[path[-1]] = value
            broken["record_digest"] = record_digest(broken)
            with pytest.raises(RunCorrupt):
                check_record(broken, run_id=RUN_ID)


def flipped(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + ("b" if value.endswith("a") else "a") if value else "a"
    if value is None:
        return "a"
    return [value] if isinstance(value, dict) else {"list": value}
