"""What the sandbox's CMS published: the receiving half of the delivery contract, as a CMS team would write it.

Idempotent on the delivery id; newer text of a source is never overwritten by older; what was answered "absent" is not
accepted from an earlier request any more. Keeps hashes and ids, no text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worker.domain.canonical import sha256_hex
from worker.domain.signature import SignedDocument

Verdict = Literal["accepted", "stale", "conflict", "void"]


@dataclass(frozen=True, kw_only=True)
class Published:
    """One publication, in the order in which it went live."""

    delivery_id: str
    event_id: str
    site_id: str
    source_id: str
    source_sequence: int
    payload_sha256: str
    target_sha256: Mapping[str, str]  # by locale

    def to_json(self) -> dict[str, Any]:
        """Return the entry for whoever asks."""
        return {
            "delivery_id": self.delivery_id,
            "event_id": self.event_id,
            "site_id": self.site_id,
            "source_id": self.source_id,
            "source_sequence": self.source_sequence,
            "payload_sha256": self.payload_sha256,
            "target_sha256": dict(self.target_sha256),
        }


class Ledger:
    """The publications of the sandbox's CMS, in memory."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._published: dict[str, Published] = {}
        self._live: dict[tuple[str, str], int] = {}
        self._voided: Counter[str] = Counter()
        self.posts: Counter[str] = Counter()  # every arrival of a delivery, accepted or not
        self.verdicts: Counter[str] = Counter()  # of the arrivals that were not failed before

    def arrive(self, delivery_id: str) -> int:
        """Count an arrival and return its ticket, which `accept` wants back."""
        self.posts[delivery_id] += 1
        return self._voided[delivery_id]

    def accept(self, delivery: SignedDocument, ticket: int) -> Verdict:
        """Publish a delivery once.

        accepted: live now, or already before. stale: newer text of the source is live. conflict: other bytes under a
        known id. void: its absence was promised after this request had arrived.
        """
        verdict = self._judge(delivery, ticket)
        self.verdicts[verdict] += 1
        return verdict

    def _judge(self, delivery: SignedDocument, ticket: int) -> Verdict:
        document = delivery.document
        delivery_id = str(document["delivery_id"])
        payload_sha256 = sha256_hex(delivery.payload())
        known = self._published.get(delivery_id)
        if known is not None:
            return "accepted" if known.payload_sha256 == payload_sha256 else "conflict"
        if self._voided[delivery_id] != ticket:
            return "void"
        source = (str(document["site_id"]), str(document["source_id"]))
        sequence = int(document["source_sequence"])
        if sequence < self._live.get(source, 0):
            return "stale"
        self._live[source] = sequence
        self._published[delivery_id] = Published(
            delivery_id=delivery_id,
            event_id=str(document["event_id"]),
            site_id=source[0],
            source_id=source[1],
            source_sequence=sequence,
            payload_sha256=payload_sha256,
            target_sha256={entry["locale"]: entry["target_sha256"] for entry in document["localizations"]},
        )
        return "accepted"

    def look_up(self, delivery_id: str, payload_sha256: str) -> Literal["accepted", "absent"]:
        """Return whether exactly these bytes are live; absence is a promise from now on."""
        known = self._published.get(delivery_id)
        if known is not None and known.payload_sha256 == payload_sha256:
            return "accepted"
        self._voided[delivery_id] += 1
        return "absent"

    def to_json(self) -> dict[str, Any]:
        """Return the publications in order, how often each delivery arrived, and how arrivals were judged."""
        return {
            "publications": [entry.to_json() for entry in self._published.values()],
            "posts": dict(self.posts),
            "verdicts": dict(self.verdicts),
        }
