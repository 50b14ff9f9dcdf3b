"""The guided release of one website version: its five steps, what is frozen of it, and how a visit to a step ends.

Decisions only. What a run's record may hold is `run_plan` and `run_record`; who visits is `flow.run_step`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from worker.domain.attempt import FAILED, LEASED, SUCCEEDED
from worker.domain.run_plan import kind_of
from worker.domain.turn import OUTCOME_UNKNOWN

PREFLIGHT: Final = "preflight"
EVIDENCE: Final = "evidence"
PREPARE: Final = "prepare"
PUBLISH: Final = "publish"
VERIFY: Final = "verify"

# id -> (title, detail, mutating)
STEPS: Final[Mapping[str, tuple[str, str, bool]]] = {
    PREFLIGHT: (
        "Check what is about to be released",
        "Signatures and plans hold, nothing is superseded, our keys and the CMS are usable. Changes nothing.",
        False,
    ),
    EVIDENCE: (
        "Wait for every locale to be approved",
        "Every locale of every event has a verified, signed, unexpired approval. Changes nothing.",
        False,
    ),
    PREPARE: (
        "Have every delivery signed and stored",
        "One signed delivery per event lies in the outbox. Nothing is sent.",
        False,
    ),
    PUBLISH: (
        "Publish to the CMS",
        "Every delivery is sent and acknowledged; those that were accepted before are skipped.",
        True,
    ),
    VERIFY: (
        "Ask the CMS for every delivery",
        "The CMS confirms every delivery id by a signed look-up answer. Changes nothing.",
        False,
    ),
}

PLAN_STALE: Final = "plan_stale"
SHORTEST_WAIT_SECONDS: Final = 2.0
LONGEST_WAIT_SECONDS: Final = 30.0

_NOT_IN_A_CODE = re.compile(r"[^a-z0-9_]")


@dataclass(frozen=True, kw_only=True)
class FrozenEvent:
    """One event of a run's input."""

    source_id: str
    event_id: str
    source_sequence: int
    source_sha256: str
    plan_id: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A visit ended its step with a result code."""

    code: str
    succeeded: bool


@dataclass(frozen=True, kw_only=True)
class Again:
    """A visit hands the step back: what it waits for, as a code of the command."""

    code: str


Ending = Ended | Again


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What one `run.step` message did. `idle` where nothing was due or another held the lease."""

    run_id: str
    step_id: str
    status: Literal["idle", "waiting", "succeeded", "failed", "lost"]
    code: str | None = None


def snapshots_of_release(
    site_id: str, website_version: str, events: Sequence[FrozenEvent], *, workspace_fingerprint: str, generated_at: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the input and the plan of a run that releases these events."""
    given = {
        "channel": site_id,
        "website_version": website_version,
        "events": {
            event.source_id: {
                "event_id": event.event_id,
                "source_sequence": event.source_sequence,
                "source_sha256": event.source_sha256,
                "plan_id": event.plan_id,
            }
            for event in events
        },
        "workspace_fingerprint": workspace_fingerprint,
    }
    steps = [
        {
            "id": step_id,
            "title": title,
            "detail": detail,
            "command": None,
            "cwd": None,
            "mutating": mutating,
            "repo": None,
            "status": "planned",
        }
        for step_id, (title, detail, mutating) in STEPS.items()
    ]
    plan = {
        "generated_at": generated_at,
        "target_channel": site_id,
        "status": "ready",
        "units": [
            {"source_id": event.source_id, "event_id": event.event_id, "plan_id": event.plan_id} for event in events
        ],
        "compatibility": [],
        "dry_run_steps": steps,
        "notes": [],
        "gate_findings": [],
        "recommended_action": None,
        "source_preflight_ready": True,
    }
    return given, plan


def frozen_events(record: Mapping[str, Any]) -> tuple[FrozenEvent, ...]:
    """Return the events of a localization run, by source; none of another kind of run."""
    given = record["immutable"]["input"]
    if kind_of(given) != "localization":
        return ()
    return tuple(
        FrozenEvent(source_id=source_id, **given["events"][source_id]) for source_id in sorted(given["events"])
    )


def is_executable(record: Mapping[str, Any], step_id: str) -> bool:
    """Tell whether the fleet executes a step: one of the five, of a localization run, meant as it is meant here."""
    planned = [step for step in record["immutable"]["plan"]["dry_run_steps"] if step["id"] == step_id]
    return (
        kind_of(record["immutable"]["input"]) == "localization"
        and step_id in STEPS
        and bool(planned)
        and planned[0]["mutating"] is STEPS[step_id][2]
    )


def result_code(code: str) -> str:
    """Return an error code in the grammar of result codes: `release.event.tampered` is `release_event_tampered`."""
    return _NOT_IN_A_CODE.sub("_", code)[:64]


def wait_seconds(age_seconds: float) -> float:
    """Return how long a command waits for its next visit: a tenth of its age, from 2 to 30 seconds."""
    return min(LONGEST_WAIT_SECONDS, max(SHORTEST_WAIT_SECONDS, age_seconds / 10.0))


@dataclass(frozen=True, kw_only=True)
class DeliveryStanding:
    """How the delivery that speaks for a frozen event stands; `delivery_id` is None where none was prepared."""

    source_id: str
    event_id: str
    delivery_id: str | None
    status: str | None = None
    code: str | None = None
    in_doubt: bool = False
    leased_until: float | None = None  # when its live lease ends
    is_due: bool = False

    @property
    def is_leased(self) -> bool:
        """Tell whether a worker is sending it or asking about it right now."""
        return self.leased_until is not None

    @property
    def is_accepted(self) -> bool:
        """Tell whether the CMS's signed word says that it has the delivery."""
        return self.status == SUCCEEDED

    @property
    def is_unknown(self) -> bool:
        """Tell whether only the CMS can say what became of it."""
        return self.in_doubt or self.status == LEASED or self.code == OUTCOME_UNKNOWN


def after_publishing(standings: Sequence[DeliveryStanding]) -> Ended | None:
    """Return how the publish step ends, or None while deliveries are still on their way."""
    if all(one.is_accepted for one in standings):
        return Ended(code="all_acknowledged", succeeded=True)
    for one in standings:
        if one.delivery_id is None:
            return Ended(code="delivery_missing", succeeded=False)
        if one.status == FAILED:
            return Ended(code=result_code(one.code or "delivery_failed"), succeeded=False)
    return None


@dataclass(frozen=True, kw_only=True)
class Told:
    """What is known of one delivery of an interrupted publication: the outcome, and whose word that is.

    `word` is acknowledgement or lookup (signed by the CMS), operator, never sent or refused (our own rows say so), or
    none; `note` says in a few words why there is no outcome.
    """

    source_id: str
    event_id: str
    delivery_id: str | None
    outcome: Literal["accepted", "absent", "unknown"]
    word: str
    kid: str | None = None
    note: str = ""


def proposed_outcome(told: Sequence[Told]) -> str:
    """Return what the answers say of the whole step."""
    if all(one.outcome == "accepted" for one in told):
        return "effect_succeeded"
    return "unresolved" if any(one.outcome == "unknown" for one in told) else "effect_absent"
