"""Deliveries and what was answered about them: whole, approved when they were sent, acknowledged by a signed word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.domain.attempt import is_sound
from worker.domain.audit.answer import answer_findings
from worker.domain.audit.approval import stood_at
from worker.domain.audit.finding import Finding, Row, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.audit.plain import Shape, is_count, lease_findings, setback_findings, shape_findings
from worker.domain.canonical import canonical_text, parse_strict, sha256_hex
from worker.domain.change import ChangeEvent
from worker.domain.delivery import LONGEST_DELIVERY_BYTES, Publication, delivery_id_of
from worker.domain.document import parse_document
from worker.domain.errors import Blocked
from worker.domain.text import text_sha256
from worker.domain.turn import UNKNOWN_CODES

AREA = "delivery"
PURPOSE = "publication"
REPEATED = ("delivery_id", "event_id", "site_id", "source_id", "source_sequence", "plan_id")
SHAPE = Shape(
    tokens=("delivery_id", "event_id", "site_id", "source_id", "plan_id", "kid"),
    hashes=("payload_sha256",),
    times=("next_attempt_at", "created_at", "updated_at"),
    optional_times=("sent_at", "doubt_since_at", "acknowledged_at", "renewal_asked_at", "last_woken_at"),
    counts=("lookups", "source_sequence"),
)
NOT_STANDING = {
    "later": "an approval was given only after the publication was sent",
    "expired": "an approval had expired when the publication was sent",
    "revoked": "an approval had been revoked when the publication was sent",
}


@dataclass(frozen=True, kw_only=True)
class BesideDeliveries:
    """What the database holds about some deliveries."""

    changes: Mapping[str, ChangeEvent | None] = field(repr=False)  # event id -> event; None where that is damaged
    # approval id -> its row, and its document (None where that is damaged)
    approvals: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]] = field(repr=False)
    answers: Mapping[str, Sequence[Mapping[str, Any]]] = field(repr=False)  # delivery id -> rows
    ended: Mapping[str, tuple[int, int]]  # delivery id -> attempts that ended without success, the last one's number


def delivery_findings(row: Mapping[str, Any], beside: BesideDeliveries, kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with a delivery and with the answers about it; damaged bytes hide what follows from them."""
    about = row_of(AREA, row["delivery_id"])
    unsound = list(lease_findings(about, row, SHAPE))
    yield from unsound
    if not unsound:
        yield from _state(about, row, beside)
    if sha256_hex(row["payload"]) != row["payload_sha256"]:
        yield about.breaks("hash_mismatch", "the stored publication is not the one that was hashed")
        return
    document, findings = _document(about, row)
    yield from findings
    yield from kept.signature_findings(about, PURPOSE, row["payload"].encode(), row["signature"], row["kid"])
    for answer in beside.answers.get(row["delivery_id"], ()):
        yield from answer_findings(answer, row, kept)
    if document is not None:
        yield from _event(about, document, beside)
        yield from _approvals(about, row, document, beside)


def _state(about: Row, row: Mapping[str, Any], beside: BesideDeliveries) -> Iterator[Finding]:
    yield from setback_findings(about, row, *beside.ended.get(row["delivery_id"], (0, 0)))
    status, in_doubt = row["status"], row["in_doubt"]
    is_unknown = status == "failed" and row["last_error_code"] in UNKNOWN_CODES
    is_consistent = (
        in_doubt in (0, 1)
        and (status == "succeeded") == (row["acknowledged_at"] is not None)
        and not (in_doubt and status in {"pending", "succeeded"})
        and not (in_doubt and (row["sent_at"] is None or row["doubt_since_at"] is None))
        and not (status == "failed" and bool(in_doubt) != is_unknown)
        and not (status == "succeeded" and row["sent_at"] is None)
    )
    if not is_consistent:
        yield about.breaks("state_mismatch", "status, doubt and times of the delivery contradict each other")
    elif status == "succeeded":
        answers = beside.answers.get(row["delivery_id"], ())
        if not any(answer["outcome"] == "accepted" for answer in answers):
            yield about.breaks("acknowledgement_missing", "the delivery succeeded without a kept word of acceptance")


def _document(about: Row, row: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[Finding]]:
    try:
        document = parse_strict(row["payload"], max_bytes=LONGEST_DELIVERY_BYTES)
        parse_document(Publication, document, area="cms.delivery")
    except Blocked:
        return None, [about.breaks("document_invalid", "the stored publication breaks a rule of publications")]
    entries = document["localizations"]
    locales = [entry["locale"] for entry in entries]
    findings = []
    if canonical_text(document) != row["payload"] or locales != sorted(set(locales)):
        findings.append(about.breaks("document_invalid", "the stored publication is not canonical or not in order"))
    if delivery_id_of(document) != document["delivery_id"]:
        findings.append(about.breaks("id_mismatch", "the delivery's id is not derived from its publication"))
    if any(document[name] != row[name] for name in REPEATED):
        findings.append(about.breaks("row_mismatch", "the row does not repeat its signed publication"))
    if any(text_sha256(entry["target_text"]) != entry["target_sha256"] for entry in entries):
        findings.append(about.breaks("text_mismatch", "a published text does not have the hash beside it"))
    return document, findings


def _event(about: Row, document: Mapping[str, Any], beside: BesideDeliveries) -> Iterator[Finding]:
    if document["event_id"] not in beside.changes:
        yield about.breaks("event_missing", "the event of the publication is gone")
        return
    change = beside.changes[document["event_id"]]
    if change is None:
        return
    source = change.localization
    if sorted(entry["locale"] for entry in document["localizations"]) != sorted(source.target_locales):
        yield about.breaks("locales_mismatch", "the publication does not hold exactly the locales of its event")
    says = {
        "site_id": change.site_id,
        "website_version": change.website_version,
        "plan_id": change.plan_id,
        "source_id": source.source_id,
        "source_revision": source.source_revision,
        "source_sequence": change.source_sequence,
        "source_sha256": change.source_sha256,
    }
    if any(document[name] != value for name, value in says.items()):
        yield about.breaks("event_mismatch", "the publication says something else of its event than the event does")


def _approvals(
    about: Row, row: Mapping[str, Any], document: Mapping[str, Any], beside: BesideDeliveries
) -> Iterator[Finding]:
    change = beside.changes.get(document["event_id"])
    jobs = {} if change is None else {job.target_locale: job.job_id for job in change.jobs}
    found: dict[str, Finding] = {}  # one of each kind is enough for a publication
    for entry in document["localizations"]:
        if entry["approval_id"] not in beside.approvals:
            found.setdefault(
                "missing", about.breaks("approval_missing", "an approval that the publication names is gone")
            )
            continue
        approval, signed = beside.approvals[entry["approval_id"]]
        if signed is None:
            continue
        bound = (signed["site_id"], signed["target_locale"], signed["target_sha256"], float(signed["expires_at"]))
        says = (document["site_id"], entry["locale"], entry["target_sha256"], float(entry["approval_expires_at"]))
        if bound != says or signed["job_id"] != jobs.get(entry["locale"], signed["job_id"]):
            found.setdefault(
                "mismatch", about.breaks("approval_mismatch", "an approval is for another job, locale, text or term")
            )
        reason = None if row["sent_at"] is None else stood_at(approval, signed, row["sent_at"])
        if reason is not None:
            found.setdefault(reason, about.breaks(f"approval_{reason}", NOT_STANDING[reason]))
    yield from found.values()


@dataclass(frozen=True, kw_only=True)
class BesideDeliveryHistory:
    """Nothing: a retired delivery stands for itself."""


def retired_findings(row: Mapping[str, Any], _beside: BesideDeliveryHistory, _kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with the kept row of a failed delivery that was followed by the same bytes."""
    about = row_of("delivery_history", row["history_id"])
    yield from shape_findings(about, row, Shape(tokens=("delivery_id", "event_id"), times=("moved_at",)))
    was = parse_strict(row["row_json"], max_bytes=LONGEST_DELIVERY_BYTES)
    if (was["delivery_id"], was["event_id"]) != (row["delivery_id"], row["event_id"]):
        yield about.breaks("row_mismatch", "the kept row is not the one that its columns name")
    elif not is_sound(was, tokens=SHAPE.tokens, hashes=SHAPE.hashes) or not is_count(was["lookups"]):
        yield about.breaks("row_invalid", "the kept row is none that its state machine can have written")
    elif was["status"] != "failed" or was["in_doubt"] or was["last_error_code"] in UNKNOWN_CODES:
        yield about.breaks("state_mismatch", "the kept delivery may be live, and must not have been followed")


class SourceOrder:
    """Walks acknowledged deliveries from the newest sequence of a source to the oldest, and holds one row's worth.

    An older text that was acknowledged after a newer one was live has overwritten it.
    """

    def __init__(self) -> None:
        self._source: tuple[object, object] | None = None
        self._earliest: float | None = None  # when the first of the newer texts was acknowledged

    def findings(self, row: Mapping[str, Any]) -> Iterator[Finding]:
        """Yield that this row came after a newer one. Rows must come by source, sequences falling."""
        source = (row["site_id"], row["source_id"])
        if source != self._source:
            self._source, self._earliest = source, None
        at = row["acknowledged_at"]
        if at is None:
            return
        if self._earliest is not None and at > self._earliest:
            yield row_of(AREA, row["delivery_id"]).breaks(
                "published_after_newer", "the text was acknowledged after a newer one of its source"
            )
        self._earliest = at if self._earliest is None else min(at, self._earliest)
