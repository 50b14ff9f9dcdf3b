"""Events on their way to a delivery: submitted through the real intake, approved by rows that are signed for real."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tests.builders import NOW, Keyring, approval_for, change_event, parsed, request_for, results_for, signed_submission
from worker.domain.signature import SignedDocument
from worker.flow.accept_submission import accept_submission
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.services import Services
from worker.store.approvals import StoredApproval, insert_approvals
from worker.store.engine import writing


def submit(services: Services, keys: Keyring, event: Mapping[str, Any]) -> None:
    """Have an event with a result for every locale accepted."""
    acceptance = accept_submission(services, signed_submission(keys, event, results_for(event)))
    assert (acceptance.state, acceptance.code) == ("accepted", None)


def stored_approval(signed: SignedDocument) -> StoredApproval:
    """Return the row of a signed approval."""
    document = signed.document
    names = ("approval_id", "job_id", "site_id", "result_sha256", "target_sha256", "request_id", "policy_sha256")
    return StoredApproval(
        **{name: document[name] for name in names},
        approved_at=document["approved_at"],
        expires_at=document["expires_at"],
        revoked_at=None,
        document=signed.payload().decode(),
        signature=signed.signature,
        kid=signed.kid,
    )


def approve(
    services: Services,
    keys: Keyring,
    event: Mapping[str, Any],
    *,
    locales: Iterable[str] | None = None,
    approved_at: float = NOW,
    **options: Any,
) -> list[str]:
    """Store a signed approval for each locale of an event (or the named ones) and return their ids, by locale."""
    revision = options.pop("revision", "r1")
    wanted = sorted(parsed(event).localization.target_locales) if locales is None else sorted(locales)
    rows = [
        stored_approval(
            approval_for(keys, request_for(event, locale, revision=revision), approved_at=approved_at, **options)
        )
        for locale in wanted
    ]
    writing(services.engine, lambda conn: insert_approvals(conn, rows))
    return [row.approval_id for row in rows]


def approved_event(services: Services, keys: Keyring, **changes: Any) -> dict[str, Any]:
    """Return an event that was submitted and is wholly approved."""
    event = change_event(**changes)
    submit(services, keys, event)
    approve(services, keys, event)
    return event


def prepared_events(services: Services, keys: Keyring, count: int, **changes: Any) -> list[str]:
    """Return the ids of so many events whose deliveries are prepared, each of a source of its own."""
    names = [f"event-{n}" for n in range(count)]
    for name in names:
        approved_event(services, keys, event_id=name, source_id=f"s-{name}", **changes)
        prepare_delivery(services, name)
    return names
