"""What an audit reads beside evidence, approvals, deliveries and their answers; a few statements for each page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, func, literal, or_, select

from worker.domain.attempt import FAILED, RETRY_WAIT
from worker.domain.audit.answer import BesideAnswers
from worker.domain.audit.approval import BesideApprovals, BesideReceipts, derived_approval
from worker.domain.audit.delivery import BesideDeliveries
from worker.domain.audit.event import stored_change
from worker.domain.audit.evidence import BesideEvidence, BesideSetbacks
from worker.domain.audit.run import Known
from worker.domain.canonical import parse_strict
from worker.domain.delivery import LONGEST_DELIVERY_BYTES
from worker.domain.errors import Invalid
from worker.domain.receipt import receipt_sha256
from worker.store.audit_pages import Rows, column_of, named, rows_of
from worker.store.schema import (
    approvals,
    deliveries,
    delivery_answers,
    delivery_history,
    events,
    evidence,
    evidence_history,
    receipts,
    release_runs,
    results,
    setbacks,
    submissions,
)

LONGEST_ROW_BYTES = 1024 * 1024


def beside_evidence(conn: Connection, rows: Rows) -> BesideEvidence:
    """Return what is stored about evidence rows of a page."""
    given = rows_of(conn, approvals, "job_id", column_of(rows, "job_id"), "job_id", "result_sha256")
    return BesideEvidence(
        events=frozenset(
            column_of(rows_of(conn, events, "event_id", column_of(rows, "event_id"), "event_id"), "event_id")
        ),
        approved=frozenset((row["job_id"], row["result_sha256"]) for row in given),
        ended=_ended(conn, "evidence", evidence, rows, "request_id"),
    )


def _ended(conn: Connection, subject: str, table: Table, rows: Rows, id_column: str) -> dict[str, tuple[int, int]]:
    """Return, by row id, how many different attempts ended without success since the row was made, and the latest."""
    wanted, parameters = named(conn, "wanted", column_of(rows, id_column))
    found = conn.execute(
        select(
            setbacks.c.subject_id,
            func.count(setbacks.c.attempt.distinct()).label("ended"),
            func.max(setbacks.c.attempt).label("latest"),
        )
        .join(table, table.c[id_column] == setbacks.c.subject_id)
        .where(
            setbacks.c.subject == literal(subject),
            setbacks.c.subject_id.in_(wanted),
            setbacks.c.outcome.in_((RETRY_WAIT, FAILED)),
            setbacks.c.ended_at >= table.c.created_at,  # an earlier row of the same bytes may be in the history
        )
        .group_by(setbacks.c.subject_id),
        parameters,
    )
    return {row.subject_id: (row.ended, row.latest) for row in found}


def beside_setbacks(conn: Connection, rows: Rows) -> BesideSetbacks:
    """Return which of the rows that setbacks speak of are there, or in a history."""
    ids = column_of(rows, "subject_id")
    asked = [*rows_of(conn, evidence, "request_id", ids, "request_id")]
    asked += rows_of(conn, evidence_history, "request_id", ids, "request_id")
    sent = [*rows_of(conn, deliveries, "delivery_id", ids, "delivery_id")]
    sent += rows_of(conn, delivery_history, "delivery_id", ids, "delivery_id")
    return BesideSetbacks(
        subjects=frozenset(
            [*(("evidence", row["request_id"]) for row in asked), *(("delivery", row["delivery_id"]) for row in sent)]
        )
    )


def beside_approvals(conn: Connection, rows: Rows) -> BesideApprovals:
    """Return what is stored about approvals of a page."""
    ids = column_of(rows, "request_id")
    proofs = rows_of(conn, receipts, "request_id", ids, "request_id", "purpose", "receipt", "receipt_sha256")
    kept = rows_of(conn, results, "job_id", column_of(rows, "job_id"), "job_id", "result_sha256", "target_sha256")
    moved = rows_of(conn, evidence_history, "request_id", ids, "request_id")
    standing = rows_of(conn, evidence, "request_id", ids, "request_id", "status")
    return BesideApprovals(
        receipts={
            (row["request_id"], row["purpose"]): frozenset((row["receipt_sha256"], receipt_sha256(str(row["receipt"]))))
            for row in proofs
        },
        targets={(row["job_id"], row["result_sha256"]): row["target_sha256"] for row in kept},
        evidence={
            **dict.fromkeys(column_of(moved, "request_id"), "history"),
            **{row["request_id"]: row["status"] for row in standing},
        },
        conflicting=_conflicting(conn, rows),
    )


def _conflicting(conn: Connection, rows: Rows) -> frozenset[str]:
    other = approvals.alias("other")
    wanted, parameters = named(conn, "wanted", column_of(rows, "approval_id"))
    found = conn.execute(
        select(approvals.c.approval_id)
        .join(other, other.c.job_id == approvals.c.job_id)
        .where(
            approvals.c.approval_id.in_(wanted),
            other.c.target_sha256 != approvals.c.target_sha256,
            other.c.approved_at <= approvals.c.approved_at,
            other.c.expires_at > approvals.c.approved_at,
            or_(other.c.revoked_at.is_(None), other.c.revoked_at > approvals.c.approved_at),
        ),
        parameters,
    )
    return frozenset(found.scalars())


def beside_receipts(conn: Connection, rows: Rows) -> BesideReceipts:
    """Return the approvals that receipts of a page led to."""
    given = rows_of(conn, approvals, "request_id", column_of(rows, "request_id"), "request_id", "document")
    return BesideReceipts(approvals={row["request_id"]: derived_approval(row["document"]) for row in given})


def beside_deliveries(conn: Connection, rows: Rows) -> BesideDeliveries:
    """Return what is stored about deliveries of a page: their events, approvals, answers and setbacks."""
    known = rows_of(conn, events, "event_id", column_of(rows, "event_id"), "event_id", "event_sha256", "document")
    names = {entry for row in rows for entry in _approval_ids(row["payload"])}
    given = rows_of(conn, approvals, "approval_id", names, "approval_id", "revoked_at", "document")
    answers: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows_of(conn, delivery_answers, "delivery_id", column_of(rows, "delivery_id")):
        answers.setdefault(row["delivery_id"], []).append(row)
    return BesideDeliveries(
        changes={row["event_id"]: stored_change(row)[0] for row in known},
        approvals={row["approval_id"]: (row, derived_approval(row["document"])) for row in given},
        answers=answers,
        ended=_ended(conn, "delivery", deliveries, rows, "delivery_id"),
    )


def _approval_ids(payload: object) -> list[str]:
    try:
        document = parse_strict(payload, max_bytes=LONGEST_DELIVERY_BYTES)  # type: ignore[arg-type]
        return [entry["approval_id"] for entry in document["localizations"]]
    except (Invalid, KeyError, TypeError):
        return []


def beside_answers(conn: Connection, rows: Rows) -> BesideAnswers:
    """Return which deliveries of a page of answers are rows, and the kept rows of those in history alone."""
    ids = column_of(rows, "delivery_id")
    live = frozenset(column_of(rows_of(conn, deliveries, "delivery_id", ids, "delivery_id"), "delivery_id"))
    moved = rows_of(conn, delivery_history, "delivery_id", [one for one in ids if one not in live])
    retired: dict[str, Mapping[str, Any]] = {}
    for row in moved:
        try:
            retired[row["delivery_id"]] = parse_strict(row["row_json"], max_bytes=LONGEST_ROW_BYTES)
        except Invalid:
            continue
    return BesideAnswers(live=live, retired=retired)


def known_runs(conn: Connection, rows: Rows) -> Known:
    """Return which release runs, of those that a page names, there are."""
    found = rows_of(conn, release_runs, "run_id", column_of(rows, "run_id"), "run_id")
    return Known(ids=frozenset(_text(row["run_id"]) for row in found))


def known_plans(conn: Connection, rows: Rows) -> Known:
    """Return which plans, of those that a page names, an event has."""
    return Known(
        ids=frozenset(column_of(rows_of(conn, events, "plan_id", column_of(rows, "plan_id"), "plan_id"), "plan_id"))
    )


def known_responses(conn: Connection, rows: Rows) -> Known:
    """Return which responses of a page have their signed document kept."""
    ids = column_of(rows, "document_sha256")
    return Known(
        ids=frozenset(
            column_of(
                rows_of(conn, submissions, "document_sha256", ids, "document_sha256", kind="evidence"),
                "document_sha256",
            )
        )
    )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
