"""What tests of intake share: submitting, looking, and putting rows beside an event that others would make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Engine, Table, insert, update

from tests.builders import (
    NOW,
    Keyring,
    approval_for,
    change_event,
    parsed,
    results_for,
    signed_submission,
)
from worker.domain.acceptance import Acceptance
from worker.domain.canonical import canonical_text
from worker.domain.evidence import EvidenceRequest
from worker.flow.accept_submission import accept_submission
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.schema import (
    approvals,
    deliveries,
    events,
    evidence,
)

Rows = Callable[[Table], list[dict[str, Any]]]
Everything = Callable[[], dict[str, list[tuple[Any, ...]]]]
LOCALES = [
    "ar",
    "bg",
    "cs",
    "da",
    "de",
    "el",
    "es",
    "et",
    "fi",
    "fr",
    "ga",
    "hr",
    "hu",
    "it",
    "ja",
    "ko",
    "lt",
    "lv",
    "nl",
    "pl",
    "pt",
    "ro",
    "sk",
    "sl",
]
COLLECT = "evidence.collect"
PREPARE = "delivery.prepare"


def submit(
    services: Services, keys: Keyring, event: dict[str, Any], given: list[dict[str, Any]] | None = None
) -> Acceptance:
    """Submit an event with all its results, or with those given."""
    return accept_submission(services, signed_submission(keys, event, results_for(event) if given is None else given))


def later(**changes: Any) -> dict[str, Any]:
    """Return a newer event of the same source, with the same text unless changed."""
    return change_event(**{"event_id": "event-2", "source_sequence": 2, **changes})


def states(rows: Rows) -> dict[str, str]:
    """Return the state of each event."""
    return {row["event_id"]: row["state"] for row in rows(events)}


def asked(rows: Rows) -> set[tuple[str, str, str, str | None]]:
    """Return (event, revision, status, error) of the evidence rows."""
    return {
        (row["event_id"], row["evidence_revision"], row["status"], row["last_error_code"]) for row in rows(evidence)
    }


def approve(engine: Engine, keys: Keyring, request: EvidenceRequest, **changes: Any) -> str:
    """Store a signed approval of a request's result, as a settle would; columns may be changed."""
    options = {name: changes.pop(name) for name in ("approved_at", "ttl_seconds", "policy") if name in changes}
    signed = approval_for(keys, request, **options)
    document = dict(signed.document)
    row = {
        **{name: document[name] for name in ("approval_id", "job_id", "result_sha256", "target_sha256", "request_id")},
        "site_id": "site-1",
        "policy_sha256": document["policy_sha256"],
        "approved_at": document["approved_at"],
        "expires_at": document["expires_at"],
        "document": canonical_text(document),
        "signature": signed.signature,
        "kid": signed.kid,
    }
    writing(engine, lambda conn: conn.execute(insert(approvals).values(**{**row, **changes})))
    return str(document["approval_id"])


def deliver(engine: Engine, event: dict[str, Any], **changes: Any) -> None:
    """Store a prepared delivery of an event; only the columns that intake looks at matter."""
    change = parsed(event)
    row: dict[str, Any] = {
        "delivery_id": f"delivery-{change.event_id}",
        "event_id": change.event_id,
        "site_id": change.site_id,
        "source_id": change.localization.source_id,
        "source_sequence": change.source_sequence,
        "plan_id": change.plan_id,
        "payload": "{}",
        "payload_sha256": "0" * 64,
        "signature": "a..b",
        "kid": "publication-1",
        "status": "pending",
        "attempts": 0,
        "max_attempts": 5,
        "next_attempt_at": NOW,
        "created_at": NOW,
        "updated_at": NOW,
        "in_doubt": False,
        "lookups": 0,
    }
    writing(engine, lambda conn: conn.execute(insert(deliveries).values(**row | changes)))


def change_row(engine: Engine, row: dict[str, Any], **values: Any) -> None:
    """Change one evidence row by hand."""
    statement = update(evidence).where(evidence.c.request_id == row["request_id"]).values(**values)
    writing(engine, lambda conn: conn.execute(statement))
