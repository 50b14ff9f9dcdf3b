"""How a page of accepted documents is judged: each by itself, and then whether what it said is still there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection

from worker.domain.audit.finding import Finding, judged, row_of
from worker.domain.audit.kept_key import KeptKeys
from worker.domain.audit.submission import AREA, Said, lost_findings, submission_findings
from worker.store.audit_facts import beside_submissions
from worker.store.audit_pages import RawRow


def judge_submissions(conn: Connection, rows: Sequence[RawRow], kept: KeptKeys) -> Iterator[Finding]:
    """Yield what is wrong with the documents of a page, and what of them was lost."""
    said: list[Said] = []
    for row in rows:
        about = row_of(AREA, row["document_sha256"])
        yield from judged(about, lambda row=row: submission_findings(row, kept, said.append))  # type: ignore[misc]
    beside = beside_submissions(conn, said)
    for one in said:
        yield from lost_findings(one, beside)
