"""The one compare-and-set: every way in which a leased table's row may move, for evidence and deliveries alike.

Each transition is one guarded UPDATE that names the state, owner and token it leaves; the rows it returns are the
answer, and a row that is not returned was not touched. There is one door into `leased` (`take`, `take_many`). Nothing
here commits: the caller's transaction (see `engine.writing`) also holds whatever else must be true together.

An attempt that ends without success leaves a line in `setbacks`, in the same transaction.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    CTE,
    Column,
    ColumnElement,
    Connection,
    Float,
    FromClause,
    Integer,
    RowMapping,
    String,
    Table,
    and_,
    bindparam,
    case,
    func,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql.dml import ReturningUpdate

from worker.domain.attempt import (
    FAILED,
    LEASE_EXPIRED,
    LEASED,
    RETRY_WAIT,
    SUCCEEDED,
    is_sound,
)
from worker.domain.errors import Blocked
from worker.domain.policy import EvidenceLeases
from worker.domain.quarantine import CODES, Quarantine
from worker.store.conditions import due_at, is_current_result, is_leased, is_row_sound, is_used_up, is_waiting
from worker.store.engine import Bind, Moment, clock, is_sqlite, json_rows, row_source
from worker.store.quarantine import poisoned
from worker.store.schema import deliveries, evidence
from worker.store.setbacks import RELEASED, Ending, append_setbacks, ended_parameters, ended_source

Values = Mapping[str, Any]
QUARANTINED: Final = "quarantined"  # what `expire` calls a row that failed since its leases ran out too often
DEFAULT_QUARANTINE: Final = Quarantine()
LEASE_CLEARED: Values = {"lease_owner": null(), "lease_token": null(), "lease_expires_at": null()}


def new_token() -> str:
    """Return the proof of one lease: 32 random bytes, as hex."""
    return secrets.token_hex(32)


@dataclass(frozen=True, kw_only=True, eq=False)
class Leases:
    """The bounded-attempt machine over one table. Safe to share; it holds no state."""

    table: Table
    id_column: str
    subject: str  # what setbacks call these rows
    invalid_code: str  # of a row that the machine cannot have written
    tokens: tuple[str, ...]  # columns that must hold tokens
    hashes: tuple[str, ...]
    settle_guards: tuple[ColumnElement[bool], ...] = ()  # what else must hold when an attempt ends

    # --- rows -------------------------------------------------------------------------------------------------------

    def lock(self, conn: Connection, row_id: str) -> RowMapping | None:
        """Return one row, locked until the transaction ends, or None. Raises when the row is not sound."""
        query = select(self.table).where(self._id == row_id).with_for_update()
        row = conn.execute(query).mappings().one_or_none()
        return None if row is None else self.check(row)

    def check(self, row: RowMapping) -> RowMapping:
        """Return a sound row as it is; raise the table's `...invalid` code for any other, which is then left alone."""
        if not self._is_sound(row):
            raise Blocked(self.invalid_code, "a stored row is damaged; it is left as it is, restore it from a backup")
        return row

    # --- the door into `leased` -------------------------------------------------------------------------------------

    def take(
        self,
        conn: Connection,
        row_id: str,
        *,
        worker_id: str,
        lease_seconds: float,
        now: float | None,
        is_counted: bool = True,
        where: Sequence[ColumnElement[bool]] = (),
        values: Values | None = None,
    ) -> RowMapping | None:
        """Lease one due row to a worker under a fresh token; return it, or None when it may not be taken.

        `is_counted=False` takes a lease that is no attempt (a look-up). `where` adds conditions, `values` columns that
        must change in the same UPDATE.
        """
        changed = {**self._leased(conn, now, lease_seconds, is_counted=is_counted), **(values or {})}
        statement = (
            update(self.table)
            .where(self._id == row_id, self.is_due(conn, now), *where)
            .values(lease_owner=worker_id, lease_token=new_token(), **changed)
        )
        if is_counted:
            statement = statement.where(self.table.c.attempts < self.table.c.max_attempts)
        return conn.execute(statement.returning(self.table)).mappings().one_or_none()

    def taking_many(self, bind: Bind, picked: CTE, *, now: Moment) -> ReturningUpdate[Any]:
        """Return the statement that leases picked rows at once, for `take_many`; it may be kept and executed again.

        `picked` has the columns `row_id` and `n` (1, 2, ...), and on PostgreSQL holds the rows' locks.
        """
        given = row_source(bind, "given", {"n": Integer, "token": String}, "tokens")
        own = row_source(bind, "own", {"site_id": String, "seconds": Float}, "site_leases")
        of_site = select(own.c.seconds).where(own.c.site_id == self.table.c.site_id).scalar_subquery()
        changed = self._leased(bind, now, func.coalesce(of_site, bindparam("lease_seconds", type_=Float)))
        return (
            update(self.table)
            .where(
                self._id == picked.c.row_id,
                given.c.n == picked.c.n,
                self.is_due(bind, now),
                self.table.c.attempts < self.table.c.max_attempts,
            )
            .values(lease_owner=bindparam("worker_id", type_=String), lease_token=given.c.token, **changed)
            .returning(self.table)
        )

    def take_many(
        self,
        conn: Connection,
        statement: ReturningUpdate[Any],
        *,
        most: int,
        worker_id: str,
        leases: EvidenceLeases,
        parameters: Values,
    ) -> list[RowMapping]:
        """Lease at most `most` rows by a statement of `taking_many`, each under its own token; return them in order.

        A lease lasts what `leases` names for the row's site.
        """
        tokens = [new_token() for _ in range(most)]
        rows = json_rows([{"n": n, "token": token} for n, token in enumerate(tokens, start=1)])
        own = json_rows([{"site_id": name, "seconds": seconds} for name, seconds in sorted(leases.by_site.items())])
        lease = {"lease_seconds": leases.default_seconds, "site_leases": own}
        whole = {"tokens": rows, "worker_id": worker_id, **lease, **parameters}
        taken = conn.execute(statement, whole).mappings().all()
        turn = {token: n for n, token in enumerate(tokens)}
        return sorted(taken, key=lambda row: turn[row["lease_token"]])

    def is_due(self, bind: Bind, now: Moment) -> ColumnElement[bool]:
        """Return the condition that a row waits and its time has come."""
        return and_(is_waiting(self.table), self.table.c.next_attempt_at <= clock(bind, now))

    def _leased(
        self, bind: Bind, now: Moment, lease_seconds: float | ColumnElement[float], *, is_counted: bool = True
    ) -> dict[str, Any]:
        return {
            "status": LEASED,
            "attempts": self.table.c.attempts + (1 if is_counted else 0),
            "lease_expires_at": clock(bind, now) + lease_seconds,
            "last_error_code": null(),
            "updated_at": clock(bind, now),
        }

    # --- the ways out of `leased`, by the holder of the token -------------------------------------------------------

    def succeed(
        self,
        conn: Connection,
        endings: Sequence[Ending],
        *,
        now: float | None,
        where: Sequence[ColumnElement[bool]] = (),
        values: Values | None = None,
    ) -> frozenset[str]:
        """Let attempts succeed; return the ids that did. A lease that was lost or ran out changes nothing.

        `where` adds conditions, such as a join with rows that must be locked first.
        """
        if not endings:
            return frozenset()
        ended = ended_source(conn, is_alone=len(endings) == 1)
        statement = self.succeeding(conn, ended, now=now, where=where, values=values)
        return frozenset(self._left(conn, statement, endings))

    def succeeding(
        self,
        bind: Bind,
        ended: FromClause,
        *,
        now: Moment,
        where: Sequence[ColumnElement[bool]] = (),
        values: Values | None = None,
    ) -> ReturningUpdate[Any]:
        """Return the statement of `succeed` for an `ended_source`; it may be kept and executed again."""
        changed = {
            "status": SUCCEEDED,
            "next_attempt_at": clock(bind, now),
            "last_error_code": null(),
            **(values or {}),
        }
        is_live = self.table.c.lease_expires_at > clock(bind, now)
        return self._leaving(bind, ended, changed, [is_live, *self.settle_guards, *where], now)

    def fail(
        self, conn: Connection, endings: Sequence[Ending], *, now: float | None, values: Values | None = None
    ) -> dict[str, str]:
        """Let attempts fail; return the id and the state (retry_wait or failed) of each row that was moved.

        A row fails for good when the failure is not retryable or its attempts are used up; a row in doubt is never
        used up. `not_before` lengthens the wait, up to 3600 seconds.
        """
        if not endings:
            return {}
        ended = ended_source(conn, is_alone=len(endings) == 1)
        is_over = or_(~ended.c.is_retryable, is_used_up(self.table, (values or {}).get("in_doubt")))
        changed = {
            "status": case((is_over, FAILED), else_=RETRY_WAIT),
            "next_attempt_at": case(
                (is_over, clock(conn, now)), else_=due_at(self.table, conn, now, ended.c.not_before)
            ),
            "last_error_code": ended.c.code,
            **(values or {}),
        }
        moved = self._settle(conn, endings, ended, changed, now)
        append_setbacks(conn, self.subject, endings, _outcomes(moved), now=now)
        return {row_id: row["status"] for row_id, row in moved.items()}

    def release(
        self, conn: Connection, endings: Sequence[Ending], *, now: float | None, values: Values | None = None
    ) -> frozenset[str]:
        """Hand leases back, due at their `not_before`, without counting the attempt; return the ids that were."""
        if not endings:
            return frozenset()
        ended = ended_source(conn, is_alone=len(endings) == 1)
        attempts = self.table.c.attempts
        changed = {
            "status": RETRY_WAIT,
            "attempts": case((attempts > 0, attempts - 1), else_=0),
            "next_attempt_at": ended.c.not_before,
            "last_error_code": ended.c.code,
            **(values or {}),
        }
        moved = self._settle(conn, endings, ended, changed, now)
        released = {row_id: (RELEASED, row["attempts"] + 1) for row_id, row in moved.items()}  # the attempt that was
        append_setbacks(conn, self.subject, endings, released, now=now)
        return frozenset(moved)

    # --- the way out of `leased`, by anybody, once the lease ran out --------------------------------------------------

    def expire(
        self, conn: Connection, *, now: float | None, most: int = 200, bound: Quarantine = DEFAULT_QUARANTINE
    ) -> dict[str, str]:
        """Take leases that ran out away from their holders; return the id and the new state of each row moved.

        Rows that another transaction holds, and rows that are not sound, are left for later. The state is
        `quarantined` of a row that failed since too many of its leases ran out; a row in doubt fails by nothing else.
        """
        t = self.table.c
        expired = (
            select(self.table)
            .where(is_leased(self.table), t.lease_expires_at <= clock(conn, now))
            .order_by(t.lease_expires_at, self._id)
            .limit(most)
            .with_for_update(skip_locked=True)
        )
        found = conn.execute(expired).mappings().all()
        return self.expire_rows(conn, [row for row in found if self._is_sound(row)], now=now, bound=bound)

    def expire_rows(
        self, conn: Connection, rows: Sequence[RowMapping], *, now: float | None, bound: Quarantine = DEFAULT_QUARANTINE
    ) -> dict[str, str]:
        """Do what `expire` does to rows that were just read and locked; each must still hold the lease it had."""
        poison = poisoned(conn, self.table, self.id_column, self.subject, rows, bound, now=now)
        expired = [
            Ending(row_id=row[self.id_column], owner=row["lease_owner"], token=row["lease_token"], code=LEASE_EXPIRED)
            for row in rows
        ]
        endings = [replace(one, code=CODES[self.subject]) if one.row_id in poison else one for one in expired]
        ended = ended_source(conn, is_alone=len(endings) == 1)
        is_over = or_(is_used_up(self.table), ended.c.code != LEASE_EXPIRED)
        changed = {
            "status": case((is_over, FAILED), else_=RETRY_WAIT),
            "next_attempt_at": clock(conn, now),
            "last_error_code": ended.c.code,
        }
        has_ended = self.table.c.lease_expires_at <= clock(conn, now)
        moved = self._leave(conn, endings, ended, changed, [has_ended], now)
        append_setbacks(conn, self.subject, expired, _outcomes(moved), now=now)
        return {row_id: QUARANTINED if row_id in poison else row["status"] for row_id, row in moved.items()}

    # --- parts ------------------------------------------------------------------------------------------------------

    def _settle(
        self,
        conn: Connection,
        endings: Sequence[Ending],
        ended: FromClause,
        changed: Values,
        now: float | None,
        where: Sequence[ColumnElement[bool]] = (),
    ) -> dict[str, RowMapping]:
        is_live = self.table.c.lease_expires_at > clock(conn, now)
        return self._leave(conn, endings, ended, changed, [is_live, *self.settle_guards, *where], now)

    def _leave(
        self,
        conn: Connection,
        endings: Sequence[Ending],
        ended: FromClause,
        changed: Values,
        where: Sequence[ColumnElement[bool]],
        now: float | None,
    ) -> dict[str, RowMapping]:
        return self._left(conn, self._leaving(conn, ended, changed, where, now), endings) if endings else {}

    def _leaving(
        self,
        bind: Bind,
        ended: FromClause,
        changed: Values,
        where: Sequence[ColumnElement[bool]],
        now: Moment,
    ) -> ReturningUpdate[Any]:
        """Return the statement that moves rows out of `leased` whose lease is still this owner's and this token's."""
        t = self.table.c
        is_held = (t.status == LEASED, t.lease_owner == ended.c.owner, t.lease_token == ended.c.token)
        return (
            update(self.table)
            .where(self._id == ended.c.row_id, *is_held, _is_sound_there(self, is_sqlite(bind)), *where)
            .values(updated_at=clock(bind, now), **LEASE_CLEARED, **changed)
            .returning(self._id, t.status, t.attempts)
        )

    def _left(
        self, conn: Connection, statement: ReturningUpdate[Any], endings: Sequence[Ending]
    ) -> dict[str, RowMapping]:
        """Execute such a statement; return the rows that moved by id."""
        return {row[self.id_column]: row for row in conn.execute(statement, ended_parameters(endings)).mappings()}

    def _is_sound(self, row: RowMapping) -> bool:
        return is_sound(row, tokens=self.tokens, hashes=self.hashes)

    @property
    def _id(self) -> Column[str]:
        return self.table.c[self.id_column]


@functools.cache  # two tables on two databases; built once, since that takes longer than a settle
def _is_sound_there(leases: Leases, of_sqlite: bool) -> ColumnElement[bool]:
    return is_row_sound(leases.table, tokens=leases.tokens, hashes=leases.hashes, of_sqlite=of_sqlite)


def _outcomes(moved: Mapping[str, RowMapping]) -> dict[str, tuple[str, int]]:
    return {row_id: (row["status"], row["attempts"]) for row_id, row in moved.items()}


EVIDENCE = Leases(
    table=evidence,
    id_column="request_id",
    subject="evidence",
    invalid_code="evidence.state.invalid",
    tokens=("request_id", "event_id", "plan_id", "job_id", "evidence_revision"),
    hashes=("result_sha256",),
    settle_guards=(is_current_result(),),
)

DELIVERIES = Leases(
    table=deliveries,
    id_column="delivery_id",
    subject="delivery",
    invalid_code="cms.delivery.invalid",
    tokens=("delivery_id", "event_id", "site_id", "source_id", "plan_id"),
    hashes=("payload_sha256",),
)
