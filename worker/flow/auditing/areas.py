"""Every area of an audit: the stream it reads, what it reads beside a page, and the rule for each row. Not a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Table

from worker.domain.audit import answer, approval, delivery, event, evidence, retention, run, submission
from worker.domain.audit.finding import Finding, judged, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.flow.auditing.event_page import judge_events
from worker.flow.auditing.submission_page import judge_submissions
from worker.store import audit_facts, audit_proofs, audit_retention, schema
from worker.store.audit_pages import RawRow, Stream

B = TypeVar("B")
JudgePage = Callable[[Connection, Sequence[RawRow], KeptKeys], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Area:
    """One kind of row: its name in codes and counts, how it is streamed, and how a page of it is judged."""

    name: str
    stream: Stream
    judge: JudgePage


def _by_row(
    name: str,
    table: Table,
    beside: Callable[[Connection, Sequence[RawRow]], B],
    rule: Callable[[Mapping[str, Any], B, KeptKeys], Iterable[Finding]],
    *,
    most_rows: int = 500,
) -> Area:
    """Return an area whose rows are judged one by one, with what was read beside their page."""
    stream = Stream(table=table, most_rows=most_rows)
    key = [column.name for column in table.primary_key.columns]

    def judge(conn: Connection, rows: Sequence[RawRow], kept: KeptKeys) -> Iterator[Finding]:
        facts = beside(conn, rows)
        for row in rows:
            about = row_of(name, *(row[part] for part in key))
            yield from judged(about, lambda row=row: rule(row, facts, kept))  # type: ignore[misc]

    return Area(name=name, stream=stream, judge=judge)


def _nothing(_conn: Connection, _rows: Sequence[RawRow]) -> run.Known:
    return run.Known()


def _no_history(_conn: Connection, _rows: Sequence[RawRow]) -> evidence.BesideHistory:
    return evidence.BesideHistory()


def _no_retired(_conn: Connection, _rows: Sequence[RawRow]) -> delivery.BesideDeliveryHistory:
    return delivery.BesideDeliveryHistory()


def _alone(_conn: Connection, _rows: Sequence[RawRow]) -> retention.BesideRetention:
    return retention.BesideRetention()


def areas() -> tuple[Area, ...]:
    """Return the areas in the order in which they are read; `public_keys` comes before all of them."""
    return (
        Area(name="submission", stream=Stream(table=schema.submissions, most_rows=100), judge=judge_submissions),
        _by_row("withdrawal", schema.withdrawals, audit_facts.beside_withdrawals, submission.withdrawal_findings),
        _by_row("rejection", schema.rejections, _nothing, run.rejection_findings),
        _by_row("source", schema.sources, _nothing, run.source_findings),
        Area(name="event", stream=Stream(table=schema.events, most_rows=100), judge=judge_events),
        _by_row("plan", schema.plan_jobs, audit_proofs.known_plans, run.plan_findings),
        _by_row("job", schema.jobs, audit_facts.beside_jobs, event.job_findings),
        _by_row("result", schema.results, audit_facts.beside_results, event.result_findings),
        _by_row("evidence", schema.evidence, audit_proofs.beside_evidence, evidence.evidence_findings),
        _by_row("evidence_history", schema.evidence_history, _no_history, evidence.history_findings),
        _by_row("response", schema.pushed_responses, audit_proofs.known_responses, run.response_findings),
        _by_row("setback", schema.setbacks, audit_proofs.beside_setbacks, evidence.setback_row_findings),
        _by_row("receipt", schema.receipts, audit_proofs.beside_receipts, approval.receipt_findings),
        _by_row("approval", schema.approvals, audit_proofs.beside_approvals, approval.approval_findings),
        _by_row(
            "delivery", schema.deliveries, audit_proofs.beside_deliveries, delivery.delivery_findings, most_rows=100
        ),
        _by_row("delivery_history", schema.delivery_history, _no_retired, delivery.retired_findings),
        _by_row("answer", schema.delivery_answers, audit_proofs.beside_answers, answer.lone_answer_findings),
        _by_row("permit", schema.delivery_permits, audit_proofs.known_runs, run.permit_findings),
        _by_row("run", schema.release_runs, _nothing, run.run_findings, most_rows=20),
        _by_row("run_command", schema.run_commands, audit_proofs.known_runs, run.command_findings),
        _by_row("operator_request", schema.operator_requests, _nothing, run.request_row_findings),
        _by_row("legal_hold", schema.legal_holds, _alone, retention.hold_findings),
        _by_row("pruning", schema.prunings, _alone, retention.pruning_findings),
        _by_row("pruned", schema.pruned_events, audit_retention.beside_pruned, retention.pruned_findings),
        _order(),
    )


def _order() -> Area:
    """Return the walk along each source, from its newest acknowledged text to its oldest."""
    order = delivery.SourceOrder()

    def judge(_conn: Connection, rows: Sequence[RawRow], _kept: KeptKeys) -> Iterator[Finding]:
        for row in rows:
            about = row_of(delivery.AREA, row["delivery_id"])
            yield from judged(about, lambda row=row: order.findings(row))  # type: ignore[misc]

    key = ("site_id", "source_id", "source_sequence", "delivery_id")
    stream = Stream(
        table=schema.deliveries,
        key=key,
        columns=(*key, "acknowledged_at"),
        condition=schema.deliveries.c.status == "succeeded",
        falling=True,
    )
    return Area(name="publication_order", stream=stream, judge=judge)


NOT_AUDITED: Final = frozenset(
    {
        "breakers",
        "drains",
        "event_traces",
        "installation",
        "limits",
        "measures",
        "pauses",
        "sweep_times",
        "sweeps",
        "unprepared_events",
    }
)
"""Tables that hold no promise: where the sweeper stands and what it found and measured, the random name of the database,
what operators hold back, which workers announced their end, and what they counted."""
