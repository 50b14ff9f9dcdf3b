"""Approvals as rows: found, verified again whenever one is used, and inserted with the receipts behind them.

A stored approval proves nothing by lying in the table: its bytes, hash, signature and binding are verified by
`verify_approval` before anything relies on it. Who may insert one, and when, is decided in `settlements`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Float,
    Insert,
    RowMapping,
    String,
    Table,
    and_,
    insert,
    select,
)
from sqlalchemy.types import TypeEngine

from worker.domain.approval import TAMPERED, Approval, check_approval
from worker.domain.errors import Blocked
from worker.domain.key import TrustSet
from worker.domain.signature import SignedDocument
from worker.store.conditions import opaque
from worker.store.engine import Moment, clock, json_rows, row_source
from worker.store.prepared import prepared
from worker.store.schema import approvals, receipts


@dataclass(frozen=True, kw_only=True)
class StoredApproval:
    """One row of `approvals` as it lies there; field names are the column names. Unverified."""

    approval_id: str
    job_id: str
    site_id: str
    result_sha256: str
    target_sha256: str
    request_id: str
    policy_sha256: str
    approved_at: float
    expires_at: float
    revoked_at: float | None
    document: str = field(repr=False)  # canonical approval
    signature: str = field(repr=False)
    kid: str


@dataclass(frozen=True, kw_only=True)
class StoredReceipt:
    """One row of `receipts`: a proof, and the canonical binding that it was verified for."""

    request_id: str
    purpose: str
    receipt: str = field(repr=False)
    receipt_sha256: str
    kid: str | None
    binding: str = field(repr=False)
    verified_at: float


COLUMNS = tuple(approvals.c[one.name] for one in fields(StoredApproval))
# What the columns repeat of the signed document; a difference is tampering.
REPEATED = ("approval_id", "job_id", "site_id", "result_sha256", "target_sha256", "request_id", "policy_sha256")
TIMES = ("approved_at", "expires_at")
CLOCK_GRAIN_SECONDS = 0.001
GIVEN = "given"  # the bind parameter of rows to insert


def approval_of(row: RowMapping | Mapping[str, Any]) -> StoredApproval:
    """Return the approval in a row that holds the columns of `COLUMNS` under their own names."""
    return StoredApproval(**{one.name: row[one.name] for one in fields(StoredApproval)})


def stands(now: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition that an approval is neither expired nor revoked.

    Whoever asks names the approvals by their job or id, hence `opaque`: never read all by expiry to find those.
    """
    return opaque(and_(approvals.c.revoked_at.is_(None), approvals.c.expires_at > now))


def standing_approvals(
    conn: Connection, job_ids: Iterable[str], *, now: float | None
) -> dict[str, tuple[StoredApproval, ...]]:
    """Return the unexpired, unrevoked approvals of many jobs in one statement, those that last longest first.

    Jobs without one are absent. Verify an approval before use.
    """
    wanted = row_source(conn, "wanted", {"job_id": String}, "wanted")
    found: dict[str, list[StoredApproval]] = {}
    rows = conn.execute(
        select(*COLUMNS)
        .where(approvals.c.job_id.in_(select(wanted.c.job_id)), stands(clock(conn, now)))
        .order_by(approvals.c.job_id, approvals.c.expires_at.desc(), approvals.c.approval_id),
        {"wanted": json_rows([{"job_id": job_id} for job_id in sorted(set(job_ids))])},
    )
    for row in rows.mappings():
        found.setdefault(row["job_id"], []).append(approval_of(row))
    return {job_id: tuple(approvals_of_job) for job_id, approvals_of_job in found.items()}


def choose(
    candidates: Sequence[StoredApproval], *, result_sha256: str, accepted: frozenset[str]
) -> StoredApproval | None:
    """Return the approval that may stand for a result under the accepted policy digests, or None."""
    for one in candidates:
        if one.result_sha256 == result_sha256 and one.policy_sha256 in accepted:
            return one
    return None


def verify_approval(stored: StoredApproval, trust: TrustSet) -> Approval:
    """Return the approval in a row, or raise `Blocked("release.approval.tampered")`.

    Checks bytes, id, signature and every repeated column. Expiry and revocation are the caller's question, since
    history is read without them; `expires_at` is bound here, so a query may compare the column.
    """
    approval = check_approval(
        stored.document, stored.signature, trust, repeated={name: getattr(stored, name) for name in REPEATED}
    )
    if SignedDocument({}, stored.signature).kid != stored.kid:
        raise Blocked(TAMPERED, "the stored approval was changed: its row names another key; audit the job")
    for name in TIMES:  # not to the last bit, which a database may lose on the way in
        if abs(getattr(approval, name) - getattr(stored, name)) > CLOCK_GRAIN_SECONDS:
            raise Blocked(TAMPERED, f"the stored approval was changed: its row disagrees at {name}; audit the job")
    return approval


def insert_approvals(conn: Connection, rows: Sequence[StoredApproval]) -> None:
    """Insert signed approvals in one statement, in the transaction that succeeds their evidence rows."""
    statement, _ = _inserting_approvals(conn, None)
    conn.execute(statement, {GIVEN: json_rows([_plain(row) for row in rows])})


def insert_receipts(conn: Connection, rows: Sequence[StoredReceipt]) -> None:
    """Insert the verified receipts behind approvals in one statement, in the same transaction."""
    statement, _ = _inserting_receipts(conn, None)
    conn.execute(statement, {GIVEN: json_rows([_plain(row) for row in rows])})


@prepared
def _inserting_approvals(bind: Dialect, _now: Moment) -> Insert:
    return _inserting(bind, approvals, [one.name for one in fields(StoredApproval)])


@prepared
def _inserting_receipts(bind: Dialect, _now: Moment) -> Insert:
    return _inserting(bind, receipts, [one.name for one in fields(StoredReceipt)])


def _inserting(bind: Dialect, table: Table, names: list[str]) -> Insert:
    """Return the statement that inserts the rows bound to `GIVEN`."""
    kinds: dict[str, type[TypeEngine[Any]]] = {
        name: Float if isinstance(table.c[name].type, Float) else String for name in names
    }
    source = row_source(bind, "given", kinds, GIVEN)
    return insert(table).from_select(names, select(*(source.c[name] for name in names)))


def _plain(row: StoredApproval | StoredReceipt) -> dict[str, Any]:
    return vars(row)
