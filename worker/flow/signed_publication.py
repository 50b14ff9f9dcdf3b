"""A publication signed and verified, as the row it will be, with the public key that an auditor needs. Not a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.domain.canonical import sha256_hex
from worker.domain.key import PublicKey
from worker.flow.services import Services
from worker.store.deliveries import Prepared
from worker.store.event_plans import EventPlan

PURPOSE = "publication"


def sign_publication(
    services: Services, plan: EventPlan, publication: Mapping[str, Any], *, max_attempts: int
) -> tuple[Prepared, tuple[PublicKey, ...]]:
    """Return the delivery to store, and its key where this process does not know that the database keeps it.

    Whoever stores the one keeps the other in the same transaction, and then says so to `services.collecting`.
    """
    signed = services.keys.sign(PURPOSE, publication)
    payload = signed.payload().decode()
    prepared = Prepared(
        delivery_id=publication["delivery_id"],
        event_id=plan.event_id,
        site_id=plan.site_id,
        source_id=plan.source_id,
        source_sequence=plan.source_sequence,
        plan_id=plan.plan_id,
        payload=payload,
        payload_sha256=sha256_hex(payload),
        signature=signed.signature,
        kid=signed.kid,
        max_attempts=max_attempts,
    )
    key = services.keys.trust(PURPOSE).keys.get(signed.kid)
    return prepared, tuple(services.collecting.not_kept(() if key is None else (key,)))
