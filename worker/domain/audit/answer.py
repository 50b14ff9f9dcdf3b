"""What CMSs and operators said about deliveries: signed with a kept key, and about exactly the bytes that were sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.domain.audit.finding import Finding, Row, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.audit.plain import Shape, shape_findings
from worker.domain.canonical import canonical_text, parse_strict
from worker.domain.delivery import Lookup, check_acknowledgement, check_lookup_answer
from worker.domain.errors import Blocked, Invalid

AREA = "answer"
PURPOSE = "acknowledgement"
LONGEST_ANSWER_BYTES = 1024 * 1024
SHAPE = Shape(tokens=("delivery_id",), times=("answered_at",))
OUTCOMES = {
    "acknowledgement": {"accepted"},
    "lookup": {"accepted", "absent"},
    "operator": {"accepted", "closed"},
}


def answer_findings(answer: Mapping[str, Any], delivery: Mapping[str, Any], kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with one answer about a delivery, whose id, site and payload hash are sound."""
    about = row_of(AREA, answer["answer_id"])
    yield from shape_findings(about, answer, SHAPE)
    if answer["outcome"] not in OUTCOMES.get(answer["kind"], ()):
        yield about.breaks("kind_invalid", "no such answer is ever kept")
        return
    try:
        document = parse_strict(answer["document"], max_bytes=LONGEST_ANSWER_BYTES)
    except Blocked:
        document = None
    if document is None or canonical_text(document) != answer["document"]:
        yield about.breaks("document_invalid", "the kept answer is no canonical document")
        return
    if answer["kind"] == "operator":
        yield from _operators(about, answer, document, delivery)
        return
    yield from _about(about, answer, document, delivery)
    yield from kept.signature_findings(about, PURPOSE, answer["document"].encode(), answer["signature"], answer["kid"])
    yield from kept.site_findings(about, PURPOSE, answer["signature"], delivery["site_id"])


def _about(about: Row, answer: Mapping[str, Any], document: Any, delivery: Mapping[str, Any]) -> Iterator[Finding]:
    expected = {"delivery_id": delivery["delivery_id"], "payload_sha256": delivery["payload_sha256"]}
    outcome: str = "accepted"
    try:
        if answer["kind"] == "acknowledgement":
            check_acknowledgement(document, site_id=delivery["site_id"], **expected)
        else:
            lookup = Lookup(nonce=answer["nonce"], **expected)
            outcome = check_lookup_answer(document, lookup, site_id=delivery["site_id"])
    except Invalid as refused:
        what = "binding_mismatch" if refused.code.endswith("binding_mismatch") else "document_invalid"
        yield about.breaks(what, "the kept answer is none about this delivery")
        return
    if outcome != answer["outcome"]:
        yield about.breaks("outcome_mismatch", "the row claims another outcome than the signed answer")


def _operators(about: Row, answer: Mapping[str, Any], document: Any, delivery: Mapping[str, Any]) -> Iterator[Finding]:
    says = (document["delivery_id"], document["payload_sha256"], document["outcome"])
    if says != (delivery["delivery_id"], delivery["payload_sha256"], answer["outcome"]):
        yield about.breaks("binding_mismatch", "the operator's word is about something else")
    if answer["signature"] is not None or not document["operator"] or not document["reason"]:
        yield about.breaks("document_invalid", "an operator's word names who says so and why, and is not signed")


@dataclass(frozen=True, kw_only=True)
class BesideAnswers:
    """The deliveries that some answers are about."""

    live: frozenset[str]  # ids of deliveries that are rows; their answers are judged beside them
    retired: Mapping[str, Mapping[str, Any]]  # delivery id -> the row that history keeps


def lone_answer_findings(row: Mapping[str, Any], beside: BesideAnswers, kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with an answer whose delivery is no row (any more)."""
    if row["delivery_id"] in beside.live:
        return
    retired = beside.retired.get(row["delivery_id"])
    if retired is None:
        yield row_of(AREA, row["answer_id"]).breaks("delivery_missing", "the delivery of the answer is gone")
        return
    yield from answer_findings(row, retired, kept)
