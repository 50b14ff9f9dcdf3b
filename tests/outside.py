"""A CMS in this process for steps that need its answers and not its HTTP. Held to the contract of the real client."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.builders import SITE, Keyring, acknowledgement_for, lookup_answer_for
from worker.adapters.sandbox.ledger import Ledger
from worker.domain.delivery import CmsAnswer, Lookup
from worker.domain.signature import SignedDocument


@dataclass
class FakeCms:
    """Satisfies `flow.services.Cms`. Publishes into `ledger`; `script` bends the next publications, one word each.

    lost          published, but the answer is lost
    unreachable   nothing arrived
    not_now       a definite "not now", with a wait of 7 seconds
    refused       a definite refusal
    stale         newer text is live
    wrong_key     published; the answer is signed by nobody we trust
    """

    keys: Keyring
    site_id: str = SITE
    has_lookup: bool = True
    is_idempotent: bool = False
    script: list[str] = field(default_factory=list)
    lookup_script: list[str] = field(default_factory=list)  # lost, unreachable, wrong_key
    ledger: Ledger = field(default_factory=Ledger)
    sent: list[SignedDocument] = field(default_factory=list)
    asked: list[Lookup] = field(default_factory=list)

    async def publish(self, delivery: SignedDocument, *, delivery_id: str, deadline_seconds: float) -> CmsAnswer:
        """Answer one publication as the script says, else publish it."""
        word = self.script.pop(0) if self.script else ""
        if word == "unreachable":
            return CmsAnswer(outcome="unavailable", code="cms.delivery.unreachable", sent=False)
        self.sent.append(delivery)
        ticket = self.ledger.arrive(delivery_id)
        if word == "not_now":
            return CmsAnswer(outcome="unavailable", code="cms.delivery.status_429", sent=False, retry_after_seconds=7.0)
        if word == "refused":
            return CmsAnswer(outcome="refused", code="cms.delivery.status_422")
        verdict = "stale" if word == "stale" else self.ledger.accept(delivery, ticket)
        if verdict == "stale":
            return CmsAnswer(outcome="stale", code="cms.delivery.stale")
        if verdict != "accepted":
            return CmsAnswer(outcome="refused", code="cms.delivery.status_409")
        if word == "lost":
            return CmsAnswer(outcome="unavailable", code="cms.delivery.connection_lost", sent=True)
        if word == "wrong_key":
            return CmsAnswer(outcome="unverifiable", code="cms.delivery.signature_invalid")
        return self._signed("accepted", acknowledgement_for(delivery.document))

    async def look_up(self, lookup: Lookup, *, deadline_seconds: float) -> CmsAnswer:
        """Answer one look-up as the script says, else from the ledger."""
        word = self.lookup_script.pop(0) if self.lookup_script else ""
        if word == "unreachable":
            return CmsAnswer(outcome="unavailable", code="cms.lookup.unreachable", sent=False)
        self.asked.append(lookup)
        status = self.ledger.look_up(lookup.delivery_id, lookup.payload_sha256)
        if word == "lost":
            return CmsAnswer(outcome="unavailable", code="cms.lookup.connection_lost", sent=True)
        if word == "wrong_key":
            return CmsAnswer(outcome="unverifiable", code="cms.lookup.signature_invalid")
        return self._signed(status, lookup_answer_for(lookup, status=status, site_id=self.site_id))

    def _signed(self, outcome: str, document: dict[str, object]) -> CmsAnswer:
        signed = self.keys.sign("acknowledgement", document)
        return CmsAnswer(outcome=outcome, signed=signed, kid=signed.kid)  # type: ignore[arg-type]
