"""A CMS that does what a test says, signs for real and keeps a ledger of what it accepted. No network.

Sends and look-ups take the next word of `sends` and `lookups`; with none left they behave: accept, and tell the truth.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.builders import Keyring, acknowledgement_for, lookup_answer_for
from worker.domain.delivery import CmsAnswer, Lookup
from worker.domain.signature import SignedDocument


@dataclass
class FakeCms:
    """Satisfies `flow.services.Cms`. Safe to use from several threads.

    Sends: accept · lost (accepted, but the answer is torn off) · timeout (not accepted, unknown to us) · not_now ·
    down · unreachable · refuse · stale · unverifiable. Look-ups: truth · down · silent · unverifiable · absent.
    """

    keys: Keyring
    site_id: str = "site-1"
    has_lookup: bool = True
    is_idempotent: bool = False
    sends: list[str] = field(default_factory=list)
    lookups: list[str] = field(default_factory=list)
    during_send: Callable[[], None] | None = None  # runs while the request is open
    requests: list[tuple[str, bytes]] = field(default_factory=list)  # (delivery id, the exact bytes)
    questions: list[Lookup] = field(default_factory=list)
    ledger: dict[str, dict[str, Any]] = field(default_factory=dict)  # accepted publications by delivery id
    live: dict[str, int] = field(default_factory=dict)  # source id -> the sequence whose text is live
    lock: Any = field(default_factory=threading.Lock)

    async def publish(self, delivery: SignedDocument, *, delivery_id: str, deadline_seconds: float) -> CmsAnswer:
        """Take one delivery as the next word says."""
        assert deadline_seconds > 0
        if self.during_send is not None:
            self.during_send()
        with self.lock:
            word = self.sends.pop(0) if self.sends else "accept"
            if word not in {"unreachable", "down"}:
                self.requests.append((delivery_id, delivery.to_text().encode()))
            if word in {"accept", "lost"}:
                publication = dict(delivery.document)
                self.ledger.setdefault(delivery_id, publication)
                self.live[publication["source_id"]] = publication["source_sequence"]
        if word == "accept":
            signed = self.keys.sign("acknowledgement", acknowledgement_for(delivery.document))
            return CmsAnswer(outcome="accepted", signed=signed, kid=signed.kid)
        return {
            "lost": CmsAnswer(outcome="unavailable", code="cms.delivery.timeout"),
            "timeout": CmsAnswer(outcome="unavailable", code="cms.delivery.timeout"),
            "not_now": CmsAnswer(
                outcome="unavailable", code="cms.delivery.http_429", sent=False, retry_after_seconds=120.0
            ),
            "down": CmsAnswer(outcome="unavailable", code="cms.delivery.unreachable", sent=False),
            "unreachable": CmsAnswer(outcome="unavailable", code="cms.delivery.connect_failed", sent=False),
            "refuse": CmsAnswer(outcome="refused", code="cms.delivery.http_422"),
            "stale": CmsAnswer(outcome="stale", code="cms.delivery.stale"),
            "unverifiable": CmsAnswer(outcome="unverifiable", code="cms.delivery.signature_invalid"),
        }[word]

    async def look_up(self, lookup: Lookup, *, deadline_seconds: float) -> CmsAnswer:
        """Answer one look-up as the next word says."""
        assert deadline_seconds > 0
        with self.lock:
            word = self.lookups.pop(0) if self.lookups else "truth"
            self.questions.append(lookup)
            is_known = lookup.delivery_id in self.ledger and word != "absent"
        if word == "down":
            return CmsAnswer(outcome="unavailable", code="cms.lookup.unreachable")
        if word == "silent":
            return CmsAnswer(outcome="unavailable", code="cms.lookup.http_404")
        if word == "unverifiable":
            return CmsAnswer(outcome="unverifiable", code="cms.lookup.signature_invalid")
        status = "accepted" if is_known else "absent"
        signed = self.keys.sign("acknowledgement", lookup_answer_for(lookup, status=status, site_id=self.site_id))
        return CmsAnswer(outcome=status, signed=signed, kid=signed.kid)  # type: ignore[arg-type]
