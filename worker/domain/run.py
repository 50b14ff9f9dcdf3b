"""A release run as a pure state machine: ordered steps, attempts, a timeline, and what an operator should do next.

Every operation takes a valid record and the current second, and returns the changed copy, or None where it is a replay
that changes nothing. Refusals are `RunNotFound` and `RunConflict` and leave no trace. Storage is the business of
`store.runs`, what a record must look like of `run_record`, what may be frozen into one of `run_plan`.

    pending --start_step--> running --finish_step--> succeeded | failed
    running --resume--> interrupted
    failed, read-only interrupted --retry_step--> pending
    mutating interrupted --reconcile_step--> pending (effect_absent) | succeeded (effect_succeeded) | interrupted
"""

from __future__ import annotations

import copy
from typing import Any, Final

from worker.domain.canonical import sha256_hex
from worker.domain.errors import Invalid, RunConflict, RunCorrupt, RunNotFound
from worker.domain.run_plan import REQUEST_ID, RESULT_CODE, STEP_ID, matches
from worker.domain.run_record import (
    INTERRUPTED,
    MAX_ATTEMPTS,
    MAX_EVENTS,
    MAX_REQUESTS,
    OUTCOMES,
    RECONCILED,
    SCHEMA,
    SCHEMA_VERSION,
    check_record,
    derived_status,
    immutable_digest,
    record_digest,
)
from worker.domain.run_view import unavailable_reason

CONFIRMATION: Final = "RECONCILE"

Json = dict[str, Any]


def fingerprint(identifier: str) -> str:
    """Return what is stored of a request or attempt id: its SHA-256, never the id."""
    return sha256_hex(identifier.encode())


def new_record(run_id: str, input_snapshot: Json, plan: Json, *, at: str) -> Json:
    """Return the record of a new run, validated: every step pending, one event. Input and plan are normalised."""
    steps = [_pending(step["id"], 0) for step in plan["dry_run_steps"]]
    record = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "created_at": at,
        "updated_at": at,
        "immutable": {"input": input_snapshot, "plan": plan, "digest": immutable_digest(input_snapshot, plan)},
        "state": {
            "status": "planned",
            "steps": steps,
            "events": [],
            "next_event_sequence": 1,
            "processed_requests": [],
            "processed_attempts": [],
        },
    }
    _append_event(record, at, "run_created")
    return _sealed(record, at)


def resume(record: Json, *, request_id: object, at: str) -> Json | None:
    """Interrupt every running step, whoever runs it; allowed in any state."""
    request = _request(request_id, "resume", None, None)
    if _is_replay(record, request):
        return None
    _require_request_capacity(record)
    changed = copy.deepcopy(record)
    for step in changed["state"]["steps"]:
        if step["state"] == "running":
            _end_attempt(changed, step, "interrupted", INTERRUPTED, at)
            _append_event(changed, at, "step_interrupted", step["id"], INTERRUPTED)
    _append_event(changed, at, "run_resumed")
    changed["state"]["processed_requests"].append(request)
    return _sealed(changed, at)


def start_step(record: Json, step_id: object, *, attempt_id: object, at: str) -> Json | None:
    """Claim a step for one attempt. A repeated attempt id claims nothing; the caller must look at the step's state."""
    check_start(step_id, attempt_id)
    mark = fingerprint(str(attempt_id))
    known = _attempt(record, mark)
    if known is not None:
        if known["step_id"] != step_id:
            raise RunConflict("this attempt id was used for another step")
        return None
    step = _step(record, step_id)
    reason = unavailable_reason(record, record["state"]["steps"].index(step))
    if reason:
        raise RunConflict(reason)
    if len(record["state"]["processed_attempts"]) >= MAX_ATTEMPTS:
        raise RunConflict(f"the run remembers {MAX_ATTEMPTS} attempts and takes no more; make a new run")
    changed = copy.deepcopy(record)
    _step(changed, step_id).update(
        state="running",
        attempt_count=step["attempt_count"] + 1,
        attempt_fingerprint=mark,
        started_at=at,
        finished_at=None,
        result_code=None,
    )
    changed["state"]["processed_attempts"].append(
        {"fingerprint": mark, "step_id": step_id, "outcome": "running", "result_code": None}
    )
    _append_event(changed, at, "step_started", str(step_id))
    return _sealed(changed, at)


def finish_step(
    record: Json, step_id: object, *, attempt_id: object, succeeded: object, result_code: object, at: str
) -> Json | None:
    """Report the end of an attempt with a bounded code."""
    check_finish(step_id, attempt_id, succeeded, result_code)
    mark = fingerprint(str(attempt_id))
    step = _step(record, step_id)
    outcome = "succeeded" if succeeded else "failed"
    known = _attempt(record, mark)
    if known is None or known["step_id"] != step_id:
        raise RunConflict("this attempt did not claim this step")
    if known["outcome"] != "running":
        if (known["outcome"], known["result_code"]) == (outcome, result_code):
            return None
        raise RunConflict("this attempt has already ended differently")
    if step["state"] != "running" or step["attempt_fingerprint"] != mark:
        raise RunConflict("the step is not running under this attempt")
    changed = copy.deepcopy(record)
    _end_attempt(changed, _step(changed, step_id), outcome, str(result_code), at)
    _append_event(changed, at, f"step_{outcome}", str(step_id), str(result_code))
    return _sealed(changed, at)


def retry_step(record: Json, step_id: object, *, request_id: object, at: str) -> Json | None:
    """Set a failed step, or an interrupted read-only one, back to pending."""
    check_retry(step_id, request_id)
    request = _request(request_id, "retry", str(step_id), None)
    if _is_replay(record, request):
        return None
    step = _step(record, step_id)
    if step["state"] not in {"failed", "interrupted"}:
        raise RunConflict(f"the step is {step['state']}; only a failed or interrupted step can be retried")
    if step["state"] == "interrupted" and is_mutating(record, step_id):
        raise RunConflict("the step may have taken effect; reconcile it first")
    _require_request_capacity(record)
    changed = copy.deepcopy(record)
    cause = "known_failure" if step["state"] == "failed" else "read_only_interruption"
    _step(changed, step_id).update(_pending(str(step_id), step["attempt_count"]))
    _append_event(changed, at, "step_retry_requested", str(step_id), cause)
    changed["state"]["processed_requests"].append(request)
    return _sealed(changed, at)


def reconcile_step(
    record: Json, step_id: object, *, request_id: object, outcome: object, confirmation: object, at: str
) -> Json | None:
    """Say what became of an interrupted mutating step, with the exact confirmation word."""
    check_reconcile(step_id, request_id, outcome, confirmation)
    request = _request(request_id, "reconcile", str(step_id), str(outcome))
    if _is_replay(record, request):
        return None
    step = _step(record, step_id)
    if step["state"] != "interrupted" or not is_mutating(record, step_id):
        raise RunConflict("only an interrupted mutating step can be reconciled")
    _require_request_capacity(record)
    changed = copy.deepcopy(record)
    if outcome == "effect_absent":
        _step(changed, step_id).update(_pending(str(step_id), step["attempt_count"]))
    elif outcome == "effect_succeeded":
        _step(changed, step_id).update(state="succeeded", finished_at=at, result_code=RECONCILED)
    _append_event(changed, at, "step_reconciled", str(step_id), str(outcome))
    changed["state"]["processed_requests"].append(request)
    return _sealed(changed, at)


def check_start(step_id: object, attempt_id: object) -> None:
    """Refuse malformed arguments of start_step before any lock is taken."""
    _require(matches(STEP_ID, step_id), "the step id is not valid")
    _require(matches(REQUEST_ID, attempt_id), "the attempt id is not valid")


def check_finish(step_id: object, attempt_id: object, succeeded: object, result_code: object) -> None:
    """Refuse malformed arguments of finish_step before any lock is taken."""
    check_start(step_id, attempt_id)
    _require(isinstance(succeeded, bool), "succeeded must be a boolean")
    _require(matches(RESULT_CODE, result_code), "the result code is not valid")


def check_retry(step_id: object, request_id: object) -> None:
    """Refuse malformed arguments of retry_step before any lock is taken."""
    _require(matches(STEP_ID, step_id), "the step id is not valid")
    check_resume(request_id)


def check_resume(request_id: object) -> None:
    """Refuse a malformed request id before any lock is taken."""
    _require(matches(REQUEST_ID, request_id), "the request id is not valid")


def check_reconcile(step_id: object, request_id: object, outcome: object, confirmation: object) -> None:
    """Refuse malformed arguments of reconcile_step before any lock is taken."""
    _require(matches(STEP_ID, step_id), "the step id is not valid")
    _require(isinstance(outcome, str) and outcome in OUTCOMES, f"the outcome is one of {', '.join(OUTCOMES)}")
    _require(isinstance(confirmation, str) and confirmation == CONFIRMATION, f"type {CONFIRMATION} to confirm")
    check_resume(request_id)


def step_of_attempt(record: Json, attempt_id: str) -> str | None:
    """Return the step that an attempt id claimed, or None where it was never used."""
    known = _attempt(record, fingerprint(attempt_id))
    return None if known is None else str(known["step_id"])


def is_mutating(record: Json, step_id: object) -> bool:
    """Tell whether the plan says that a step changes something outside."""
    return any(step["id"] == step_id and step["mutating"] for step in record["immutable"]["plan"]["dry_run_steps"])


def _sealed(record: Json, at: str) -> Json:
    record["updated_at"] = at
    record["state"]["status"] = derived_status(record["immutable"]["plan"], record["state"]["steps"])
    try:
        record["record_digest"] = record_digest(record)
    except Invalid:  # a sequence number beyond what JSON can say
        raise RunCorrupt from None
    check_record(record, run_id=record["run_id"])
    return record


def _pending(step_id: str, count: int) -> Json:
    return {
        "id": step_id,
        "state": "pending",
        "attempt_count": count,
        "attempt_fingerprint": None,
        "started_at": None,
        "finished_at": None,
        "result_code": None,
    }


def _end_attempt(record: Json, step: Json, outcome: str, code: str, at: str) -> None:
    step.update(state=outcome, finished_at=at, result_code=code)
    attempt = _attempt(record, step["attempt_fingerprint"])
    assert attempt is not None  # a valid record has it
    attempt.update(outcome=outcome, result_code=code)


def _append_event(record: Json, at: str, kind: str, step_id: str | None = None, code: str | None = None) -> None:
    state = record["state"]
    event: Json = {"sequence": state["next_event_sequence"], "at": at, "type": kind}
    if step_id is not None:
        event["step_id"] = step_id
    if code is not None:
        event["result_code"] = code
    state["events"] = [*state["events"], event][-MAX_EVENTS:]
    state["next_event_sequence"] += 1


def _step(record: Json, step_id: object) -> Json:
    for step in record["state"]["steps"]:
        if step["id"] == step_id:
            return step  # type: ignore[no-any-return]
    raise RunNotFound


def _attempt(record: Json, mark: str) -> Json | None:
    return next((a for a in record["state"]["processed_attempts"] if a["fingerprint"] == mark), None)


def _request(request_id: object, operation: str, step_id: str | None, parameter: str | None) -> Json:
    check_resume(request_id)
    mark = fingerprint(str(request_id))
    return {"fingerprint": mark, "operation": operation, "step_id": step_id, "parameter": parameter}


def _is_replay(record: Json, request: Json) -> bool:
    for known in record["state"]["processed_requests"]:
        if known["fingerprint"] == request["fingerprint"]:
            if known != request:
                raise RunConflict("this request id was used for something else")
            return True
    return False


def _require_request_capacity(record: Json) -> None:
    if len(record["state"]["processed_requests"]) >= MAX_REQUESTS:
        raise RunConflict(f"the run remembers {MAX_REQUESTS} requests and takes no more; make a new run")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RunConflict(message)
