"""A stored publication with all that it stands on: its row, and the approvals that it names, verified before use.

Nothing is judged by the time when one is read; whether approvals are still current is a question of its own, which the
claim of a delivery asks again under its lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, String, select

from worker.domain.approval import TAMPERED
from worker.domain.canonical import hash_of
from worker.domain.errors import Blocked
from worker.domain.key import TrustSet
from worker.store.approvals import COLUMNS, StoredApproval, approval_of, verify_approval
from worker.store.coverage import NAMED, named_rows
from worker.store.deliveries import Delivery, find_delivery, verify_delivery
from worker.store.engine import row_source
from worker.store.schema import approvals


@dataclass(frozen=True, kw_only=True)
class StoredPublication:
    """A delivery whose bytes were verified, and why the approvals it names do not cover it (a code), or None."""

    delivery: Delivery
    document: Mapping[str, Any] = field(repr=False)
    approval_ids: tuple[str, ...]
    approvals_code: str | None


def load_publication(
    conn: Connection, event_id: str, *, publication_trust: TrustSet, approval_trust: TrustSet
) -> StoredPublication | None:
    """Return the publication that speaks for an event, or None where none was prepared.

    Raises `cms.delivery.tampered` where the stored bytes are not what was signed.
    """
    delivery = find_delivery(conn, event_id)
    if delivery is None:
        return None
    document = verify_delivery(delivery, publication_trust)
    ids = tuple(entry["approval_id"] for entry in document["localizations"])
    named = row_source(conn, NAMED, {"approval_id": String}, NAMED)
    rows = conn.execute(
        select(*COLUMNS).where(approvals.c.approval_id.in_(select(named.c.approval_id))), {NAMED: named_rows(ids)}
    )
    stored = {row["approval_id"]: approval_of(row) for row in rows.mappings()}
    return StoredPublication(
        delivery=delivery,
        document=document,
        approval_ids=ids,
        approvals_code=approvals_trouble(document, stored, approval_trust),
    )


def approvals_trouble(
    publication: Mapping[str, Any], stored: Mapping[str, StoredApproval], trust: TrustSet
) -> str | None:
    """Return why a publication is not covered by the approvals it names, as a code, or None. Expiry is not judged."""
    for entry in publication["localizations"]:
        approval = stored.get(entry["approval_id"])
        if approval is None:
            return TAMPERED
        try:
            signed = verify_approval(approval, trust)
        except Blocked as refused:
            return refused.code
        bound = (signed.target_locale, signed.target_sha256, float(signed.expires_at))
        if bound != (entry["locale"], entry["target_sha256"], float(entry["approval_expires_at"])):
            return TAMPERED
    job_ids = sorted(stored[entry["approval_id"]].job_id for entry in publication["localizations"])
    return None if publication["plan_id"] == f"plan-{hash_of(job_ids)}" else TAMPERED
