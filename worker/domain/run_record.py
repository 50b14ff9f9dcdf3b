"""The stored record of a release run: its shape, its digests and everything that must hold between its parts.

`check_record` runs on every read and before every write; whatever it refuses is `RunCorrupt`. Moving a record from one
valid state to the next is `run`'s business.
"""

from __future__ import annotations

import json
from typing import Any, Final

from worker.domain.canonical import canonical_bytes, hash_of, parse_strict
from worker.domain.errors import Invalid, RunConflict, RunCorrupt
from worker.domain.identifier import is_hash
from worker.domain.run_plan import (
    MAX_BYTES,
    RESULT_CODE,
    RUN_ID,
    is_timestamp,
    kind_of,
    matches,
    normalised_input,
    normalised_plan,
)

SCHEMA: Final = "locseal.release-run"
SCHEMA_VERSION: Final = 2
MAX_EVENTS: Final = 256
MAX_REQUESTS: Final = 2_048
MAX_ATTEMPTS: Final = 2_048

INTERRUPTED: Final = "process_interrupted"
RECONCILED: Final = "reconciled_effect_succeeded"
OUTCOMES: Final = ("effect_absent", "effect_succeeded", "unresolved")

RECORD_KEYS: Final = frozenset(
    {"schema", "schema_version", "run_id", "created_at", "updated_at", "immutable", "state", "record_digest"}
)
IMMUTABLE_KEYS: Final = frozenset({"input", "plan", "digest"})
STATE_KEYS: Final = frozenset(
    {"status", "steps", "events", "next_event_sequence", "processed_requests", "processed_attempts"}
)
STEP_KEYS: Final = frozenset(
    {"id", "state", "attempt_count", "attempt_fingerprint", "started_at", "finished_at", "result_code"}
)
STEP_STATES: Final = frozenset({"pending", "running", "succeeded", "failed", "interrupted"})
REQUEST_KEYS: Final = frozenset({"fingerprint", "operation", "step_id", "parameter"})
ATTEMPT_KEYS: Final = frozenset({"fingerprint", "step_id", "outcome", "result_code"})
ATTEMPT_OUTCOMES: Final = frozenset({"running", "succeeded", "failed", "interrupted"})
EVENTS_OF_RUN: Final = frozenset({"run_created", "run_resumed"})
EVENTS_OF_STEP: Final = frozenset(
    {"step_started", "step_succeeded", "step_failed", "step_interrupted", "step_reconciled", "step_retry_requested"}
)

Json = dict[str, Any]


def immutable_digest(input_snapshot: Json, plan: Json) -> str:
    """Return the SHA-256 over the canonical JSON of input and plan."""
    return hash_of({"input": input_snapshot, "plan": plan})


def record_digest(record: Json) -> str:
    """Return the SHA-256 over the canonical JSON of everything but the digest itself."""
    return hash_of({key: value for key, value in record.items() if key != "record_digest"})


def derived_status(plan: Json, steps: list[Json]) -> str:
    """Return the run's status from its plan and its steps; the first matching rule wins."""
    states = [step["state"] for step in steps]
    if plan["status"] == "blocked":
        return "blocked"
    if all(state == "succeeded" for state in states):
        return "completed"
    if "running" in states:
        return "running"
    if "failed" in states or "interrupted" in states:
        return "attention"
    return "planned" if plan["dry_run_steps"][states.index("pending")]["status"] == "planned" else "blocked"


def encode_record(record: Json) -> bytes:
    """Return a record's canonical bytes; raise `RunConflict` where they would be more than can be stored."""
    encoded = canonical_bytes(record)
    if len(encoded) + 1 > MAX_BYTES:
        raise RunConflict("the record would be larger than 2 MiB")
    return encoded


def decode_record(stored: object, *, run_id: str) -> Json:
    """Parse and fully validate a stored document; raise `RunCorrupt` for whatever is not a valid record."""
    if isinstance(stored, memoryview | bytearray):
        stored = bytes(stored)
    if not isinstance(stored, bytes | str) or len(stored) > MAX_BYTES:
        raise RunCorrupt
    try:
        record = parse_strict(stored, max_bytes=MAX_BYTES)
    except Invalid:
        raise RunCorrupt from None
    check_record(record, run_id=run_id)
    # White space and the order of members are no damage. 2.0 for the integer 2 is, and the digest cannot see it.
    json.loads(stored, parse_float=_fraction)
    return record  # type: ignore[no-any-return]


def _fraction(literal: str) -> float:
    number = float(literal)
    _require(not number.is_integer())
    return number


def check_record(record: object, *, run_id: str) -> None:
    """Hold a record against every rule of its format; raise `RunCorrupt` at the first that fails."""
    try:
        _check_record(record, run_id)
    except Invalid:  # a value that has no canonical encoding
        raise RunCorrupt from None


def _check_record(value: object, run_id: str) -> None:
    record = _object(value, RECORD_KEYS)
    _require(record["schema"] == SCHEMA and type(record["schema"]) is str)
    _require(type(record["schema_version"]) is int and record["schema_version"] == SCHEMA_VERSION)
    _require(matches(RUN_ID, record["run_id"]) and record["run_id"] == run_id)
    _require(is_timestamp(record["created_at"]) and is_timestamp(record["updated_at"]))
    _require(record["created_at"] <= record["updated_at"])  # fixed-width UTC text sorts by time
    plan = _check_immutable(record["immutable"])
    state = _object(record["state"], STATE_KEYS)
    within = (record["created_at"], record["updated_at"])
    steps = _list(state["steps"])
    _check_steps(steps, plan["dry_run_steps"], within)
    step_ids = {step["id"] for step in steps}
    _check_events(state, step_ids, within)
    _check_requests(_list(state["processed_requests"]), step_ids)
    _check_attempts(_list(state["processed_attempts"]), steps)
    _require(type(state["status"]) is str and state["status"] == derived_status(plan, steps))
    _require(is_hash(record["record_digest"]) and record["record_digest"] == record_digest(record))


def _check_immutable(value: object) -> Json:
    immutable = _object(value, IMMUTABLE_KEYS)
    _require(isinstance(immutable["input"], dict))
    try:
        kind = kind_of(immutable["input"])
        _require(_same(normalised_input(immutable["input"]), immutable["input"]))
        _require(_same(normalised_plan(immutable["plan"], kind=kind), immutable["plan"]))
    except RunConflict:
        raise RunCorrupt from None
    given: Json = immutable["input"]
    plan: Json = immutable["plan"]
    _require(immutable["digest"] == immutable_digest(given, plan))
    _require(plan["target_channel"] == given["channel"])
    _check_units(plan["units"], given, kind)
    return plan


def _check_units(units: list[Any], given: Json, kind: str) -> None:
    name, fields = ("repo", ("target_version",)) if kind == "software" else ("source_id", ("event_id", "plan_id"))
    found: dict[str, tuple[str, ...]] = {}
    for unit in units:
        _require(isinstance(unit, dict) and all(isinstance(unit.get(field), str) for field in (name, *fields)))
        _require(unit[name] not in found)
        found[unit[name]] = tuple(unit[field] for field in fields)
    if kind == "software":
        _require(found == {repo: (version,) for repo, version in given["repo_versions"].items()})
    else:
        _require(found == {source: (one["event_id"], one["plan_id"]) for source, one in given["events"].items()})


def _check_steps(steps: list[Any], planned: list[Json], within: tuple[str, str]) -> None:
    _require(len(steps) == len(planned))
    open_seen = False
    for value, plan_step in zip(steps, planned, strict=True):
        step = _object(value, STEP_KEYS)
        _require(type(step["id"]) is str and step["id"] == plan_step["id"])
        state, count = step["state"], step["attempt_count"]
        _require(isinstance(state, str) and state in STEP_STATES)
        _require(type(count) is int and count >= 0)
        _require(step["attempt_fingerprint"] is None or is_hash(step["attempt_fingerprint"]))
        _require(step["result_code"] is None or matches(RESULT_CODE, step["result_code"]))
        started, finished, result = step["started_at"], step["finished_at"], step["result_code"]
        if state == "pending":
            _require(step["attempt_fingerprint"] is None and started is None and finished is None and result is None)
        else:
            _require(count >= 1 and step["attempt_fingerprint"] is not None)
            _require(is_timestamp(started) and within[0] <= started <= within[1])
            if state == "running":
                _require(finished is None and result is None)
            else:
                _require(is_timestamp(finished) and started <= finished <= within[1])
                _require(result is not None and (state != "interrupted" or result == INTERRUPTED))
        # Zero or more succeeded, then at most one step in any other state, then only pending.
        _require(not open_seen or state == "pending")
        open_seen = open_seen or state != "succeeded"


def _check_events(state: Json, step_ids: set[str], within: tuple[str, str]) -> None:
    events = _list(state["events"])
    _require(len(events) <= MAX_EVENTS)
    last_sequence, last_at = 0, within[0]
    for event in events:
        _require(isinstance(event, dict))
        _require({"sequence", "at", "type"} <= set(event) <= {"sequence", "at", "type", "step_id", "result_code"})
        _require(type(event["sequence"]) is int and event["sequence"] > last_sequence)
        _require(is_timestamp(event["at"]) and last_at <= event["at"] <= within[1])
        last_sequence, last_at = event["sequence"], event["at"]
        kind = event["type"]
        _require(isinstance(kind, str) and (kind in EVENTS_OF_RUN or kind in EVENTS_OF_STEP))
        has_code = kind not in EVENTS_OF_RUN and kind != "step_started"
        _require(("step_id" in event) == (kind in EVENTS_OF_STEP))
        _require(("result_code" in event) == has_code)
        _require("step_id" not in event or (isinstance(event["step_id"], str) and event["step_id"] in step_ids))
        if has_code:
            code = event["result_code"]
            _require(matches(RESULT_CODE, code))
            _require(kind != "step_interrupted" or code == INTERRUPTED)
            _require(kind != "step_reconciled" or code in OUTCOMES)
    following = state["next_event_sequence"]
    _require(type(following) is int and following > last_sequence)


def _check_requests(requests: list[Any], step_ids: set[str]) -> None:
    _require(len(requests) <= MAX_REQUESTS)
    for value in requests:
        request = _object(value, REQUEST_KEYS)
        operation, step_id, parameter = request["operation"], request["step_id"], request["parameter"]
        _require(is_hash(request["fingerprint"]))
        _require(isinstance(operation, str) and operation in {"resume", "retry", "reconcile"})
        if operation == "resume":
            _require(step_id is None)
        else:
            _require(isinstance(step_id, str) and step_id in step_ids)
        if operation == "reconcile":
            _require(isinstance(parameter, str) and parameter in OUTCOMES)
        else:
            _require(parameter is None)
    _require(len({request["fingerprint"] for request in requests}) == len(requests))


def _check_attempts(attempts: list[Any], steps: list[Json]) -> None:
    _require(len(attempts) <= MAX_ATTEMPTS)
    counts = dict.fromkeys((step["id"] for step in steps), 0)
    by_fingerprint: dict[str, Json] = {}
    for value in attempts:
        attempt = _object(value, ATTEMPT_KEYS)
        outcome, code = attempt["outcome"], attempt["result_code"]
        _require(is_hash(attempt["fingerprint"]) and attempt["fingerprint"] not in by_fingerprint)
        _require(isinstance(attempt["step_id"], str) and attempt["step_id"] in counts)
        _require(isinstance(outcome, str) and outcome in ATTEMPT_OUTCOMES)
        _require((code is None) if outcome == "running" else matches(RESULT_CODE, code))
        _require(outcome != "interrupted" or code == INTERRUPTED)
        by_fingerprint[attempt["fingerprint"]] = attempt
        counts[attempt["step_id"]] += 1
    for step in steps:
        _require(step["attempt_count"] == counts[step["id"]])
        if step["attempt_fingerprint"] is None:
            continue
        own = by_fingerprint.get(step["attempt_fingerprint"])
        _require(own is not None and own["step_id"] == step["id"])
        assert own is not None
        if step["result_code"] == RECONCILED:
            _require(step["state"] == "succeeded" and own["outcome"] == "interrupted")
        else:
            _require(own["outcome"] == step["state"])


def _same(left: Any, right: Any) -> bool:
    """Compare as JSON values, where `true` is not `1`."""
    return canonical_bytes(left) == canonical_bytes(right)


def _object(value: object, keys: frozenset[str]) -> Json:
    _require(isinstance(value, dict) and frozenset(value) == keys)
    return value  # type: ignore[return-value]


def _list(value: object) -> list[Any]:
    _require(isinstance(value, list))
    return value  # type: ignore[return-value]


def _require(condition: bool) -> None:
    if not condition:
        raise RunCorrupt
