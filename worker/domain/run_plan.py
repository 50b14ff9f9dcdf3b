"""What a release run freezes: its input and its plan, checked key by key and limit by limit.

Refusals here are `RunConflict`; the record that holds both is judged by `run_record`, the steps move in `run`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from worker.domain.canonical import canonical_bytes, parse_strict
from worker.domain.errors import Invalid, RunConflict
from worker.domain.identifier import is_hash, is_token

MAX_BYTES: Final = 2_097_152
MAX_STEPS: Final = 512
MAX_REPOSITORIES: Final = 128
MAX_EVENTS_IN_INPUT: Final = 1_000
MAX_TITLE: Final = 500
MAX_DETAIL: Final = 2_000
MAX_COMMAND: Final = 8_192
MAX_INTEGER: Final = 2**53 - 1

RUN_ID: Final = re.compile(r"rr-[0-9]{8}T[0-9]{6}Z-[0-9a-f]{12}")
STEP_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,159}")
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{7,127}")  # attempt ids share it
CHANNEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(?:[-+][A-Za-z0-9][A-Za-z0-9.-]*)?")
RESULT_CODE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
TIMESTAMP: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})Z")

SOFTWARE_KEYS: Final = frozenset(
    {
        "channel",
        "repo_versions",
        "online",
        "remote_tags",
        "public_catalog",
        "include_migrations",
        "workspace_fingerprint",
    }
)
LOCALIZATION_KEYS: Final = frozenset({"channel", "website_version", "events", "workspace_fingerprint"})
FLAGS: Final = ("online", "remote_tags", "public_catalog", "include_migrations")
EVENT_KEYS: Final = frozenset({"event_id", "source_sequence", "source_sha256", "plan_id"})
PLAN_KEYS: Final = frozenset(
    {
        "generated_at",
        "target_channel",
        "status",
        "units",
        "compatibility",
        "dry_run_steps",
        "notes",
        "gate_findings",
        "recommended_action",
        "source_preflight_ready",
    }
)
PLAN_STATUSES: Final = frozenset({"ready", "attention", "blocked"})
STEP_KEYS: Final = frozenset({"id", "title", "detail", "command", "cwd", "mutating", "repo", "status"})
STEP_STATUSES: Final = frozenset({"planned", "needs-executor", "needs-version-metadata"})


def matches(pattern: re.Pattern[str], value: object) -> bool:
    """Tell whether a value is a string that a grammar matches as a whole."""
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def is_timestamp(value: object) -> bool:
    """Tell whether a value is `YYYY-MM-DDTHH:MM:SSZ` on a real calendar date."""
    found = TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return False
    try:
        datetime(*(int(part) for part in found.groups()), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError:
        return False
    return True


def kind_of(input_snapshot: dict[str, Any]) -> str:
    """Return `software` or `localization` by the exact key set of an input; raise `RunConflict` for another one."""
    keys = frozenset(input_snapshot)
    if keys == SOFTWARE_KEYS:
        return "software"
    if keys == LOCALIZATION_KEYS:
        return "localization"
    raise RunConflict("the input does not have exactly the fields of a software or a localization release")


def normalised_input(value: object) -> dict[str, Any]:
    """Check an input and return a detached copy with its repositories or sources sorted; raise `RunConflict`."""
    _require(isinstance(value, dict), "the input must be an object")
    given: dict[str, Any] = value  # type: ignore[assignment]
    kind = kind_of(given)
    _require(is_channel(given["channel"], kind), "the input's channel is not valid")
    _require(is_hash(given["workspace_fingerprint"]), "the workspace fingerprint must be 64 lowercase hex digits")
    if kind == "software":
        versions = given["repo_versions"]
        _require(isinstance(versions, dict), "repository versions must be an object")
        _require(1 <= len(versions) <= MAX_REPOSITORIES, f"1 to {MAX_REPOSITORIES} repository versions are allowed")
        for name, version in versions.items():
            _require(matches(REPOSITORY, name), "a repository name is not valid")
            _require(matches(VERSION, version), "a repository version is not valid")
        for flag in FLAGS:
            _require(isinstance(given[flag], bool), f"{flag} must be a boolean")
        return {**given, "repo_versions": dict(sorted(versions.items()))}
    _require(is_token(given["website_version"]), "the website version must be a token")
    events = given["events"]
    _require(isinstance(events, dict), "events must be an object")
    _require(1 <= len(events) <= MAX_EVENTS_IN_INPUT, f"1 to {MAX_EVENTS_IN_INPUT} events are allowed")
    for source_id, event in events.items():
        _require(is_token(source_id), "a source id is not a token")
        _require(isinstance(event, dict) and frozenset(event) == EVENT_KEYS, "an event has not exactly its fields")
        _require(is_token(event["event_id"]) and is_token(event["plan_id"]), "an event or plan id is not a token")
        _require(is_hash(event["source_sha256"]), "a source hash is not a hash")
        _require(
            type(event["source_sequence"]) is int and 1 <= event["source_sequence"] <= MAX_INTEGER,
            "a source sequence must be an integer of at least 1",
        )
    return {**given, "events": {source_id: dict(events[source_id]) for source_id in sorted(events)}}


def is_channel(value: object, kind: str) -> bool:
    """Tell whether a value is a channel: a site id for a localization release, a release channel otherwise."""
    return is_token(value) if kind == "localization" else matches(CHANNEL, value)


def normalised_plan(value: object, *, kind: str) -> dict[str, Any]:
    """Check a plan and return a detached copy as its canonical encoding reads back; raise `RunConflict`."""
    _require(isinstance(value, dict) and frozenset(value) == PLAN_KEYS, "the plan does not have exactly its fields")
    plan: dict[str, Any] = value  # type: ignore[assignment]
    _require(is_timestamp(plan["generated_at"]), "generated_at must be a UTC time to the second")
    _require(_one_of(plan["status"], PLAN_STATUSES), "the plan's status is not known")
    _require(is_channel(plan["target_channel"], kind), "the plan's channel is not valid")
    for name in ("units", "compatibility", "gate_findings", "notes", "dry_run_steps"):
        _require(isinstance(plan[name], list), f"{name} must be a list")
    _require(all(isinstance(note, str) for note in plan["notes"]), "notes must be strings")
    action = plan["recommended_action"]
    _require(action is None or isinstance(action, dict), "the recommended action must be an object or null")
    _require(isinstance(plan["source_preflight_ready"], bool), "source_preflight_ready must be a boolean")
    _check_steps(plan["dry_run_steps"])
    try:
        encoded = canonical_bytes(plan)
        _require(len(encoded) <= MAX_BYTES, "the plan is larger than 2 MiB")
        # Reading it back, as deep as it will lie in the record, detaches it from the caller and refuses what could be
        # written but never read again.
        inside = b'{"immutable":{"plan":%b}}' % encoded
        copy: dict[str, Any] = parse_strict(inside, max_bytes=len(inside))["immutable"]["plan"]
    except Invalid:
        raise RunConflict("the plan cannot be encoded as JSON") from None
    return copy


def _check_steps(steps: list[Any]) -> None:
    _require(1 <= len(steps) <= MAX_STEPS, f"1 to {MAX_STEPS} steps are allowed")
    seen: set[str] = set()
    for step in steps:
        _require(isinstance(step, dict) and frozenset(step) == STEP_KEYS, "a step does not have exactly its fields")
        _require(matches(STEP_ID, step["id"]), "a step id is not valid")
        _require(step["id"] not in seen, "a step id appears twice")
        seen.add(step["id"])
        _require(isinstance(step["mutating"], bool), "mutating must be a boolean")
        _require(_one_of(step["status"], STEP_STATUSES), "a step's planned status is not known")
        _require(_short(step["title"], MAX_TITLE), f"a step's title is a string of at most {MAX_TITLE} characters")
        _require(_short(step["detail"], MAX_DETAIL), f"a step's detail is a string of at most {MAX_DETAIL} characters")
        for name in ("command", "cwd", "repo"):
            _require(
                step[name] is None or _short(step[name], MAX_COMMAND),
                f"a step's {name} is null or a string of at most {MAX_COMMAND} characters",
            )


def _short(value: object, limit: int) -> bool:
    return isinstance(value, str) and len(value) <= limit


def _one_of(value: object, allowed: frozenset[str]) -> bool:
    return isinstance(value, str) and value in allowed


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RunConflict(message)
