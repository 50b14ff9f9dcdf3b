"""Release runs in the database: one row a run, one transaction an operation, every record re-validated on every read.

The rules are `domain.run`'s; this module locks, reads, writes and lists. A store object serves one workspace, named by
its fingerprint. Wrong arguments and damaged rows end in `RunNotFound`, `RunConflict` or `RunCorrupt`; only a database
that cannot answer at all is `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, Engine, Row, exc, insert, select, type_coerce, update
from sqlalchemy.types import NullType

from worker.domain import run
from worker.domain.errors import RunBusy, RunConflict, RunCorrupt, RunNotFound, RunWorkspaceMismatch, Unavailable
from worker.domain.identifier import is_hash
from worker.domain.run_plan import RUN_ID, kind_of, matches, normalised_input, normalised_plan
from worker.domain.run_record import decode_record, encode_record
from worker.domain.run_view import row_of, unavailable_row, view_of
from worker.store.engine import read_clock, reading, writing
from worker.store.schema import release_runs

Json = dict[str, Any]
Change = Callable[[Json, str], Json | None]

PAGE: Final = 20
MOST_ROWS: Final = 100
# Read raw: the column's own type would stumble over a damaged value before the record's checks can refuse it.
STORED: Final = type_coerce(release_runs.c.document, NullType()).label("document")


class RunStore:
    """The release runs of one workspace. Safe to share between threads; two stores may race on one run."""

    def __init__(self, engine: Engine, *, workspace_fingerprint: str, now: float | None = None) -> None:
        """Serve one workspace. `now` fixes the time (seconds since the epoch) for tests and tools."""
        if not is_hash(workspace_fingerprint):
            raise RunConflict("the workspace fingerprint must be 64 lowercase hex digits")
        self._engine = engine
        self._workspace = workspace_fingerprint
        self._now = now

    def create(self, *, input_snapshot: object, plan_snapshot: object) -> Json:
        """Freeze an input and a plan into a new run and return its view. Not idempotent: each call makes a new run."""
        given = normalised_input(input_snapshot)
        if given["workspace_fingerprint"] != self._workspace:
            raise RunConflict("the input belongs to another workspace")
        plan = normalised_plan(plan_snapshot, kind=kind_of(given))

        def work(conn: Connection) -> Json:
            at = self._second(conn)
            run_id = f"rr-{at.replace('-', '').replace(':', '')}-{uuid4().hex[:12]}"
            record = run.new_record(run_id, given, plan, at=at)
            document = encode_record(record)
            conn.execute(insert(release_runs).values(run_id=run_id, document=document, **self._columns(record)))
            return record

        try:
            return view_of(self._write(work))
        except exc.IntegrityError:
            raise RunConflict("the run id exists already; try again") from None

    def get(self, run_id: object) -> Json:
        """Return the current view of a run."""
        if not matches(RUN_ID, run_id):
            raise RunNotFound
        with reading(self._engine) as conn:
            return view_of(self._own(_read(conn, str(run_id), lock=False)))

    def list(self, *, limit: object = PAGE) -> list[Json]:
        """Return at most `limit` rows (clamped into 1..100), newest first; damaged records show as unavailable."""
        try:
            wanted = min(MOST_ROWS, max(1, int(limit)))  # type: ignore[call-overload]
        except (TypeError, ValueError, OverflowError):
            raise RunConflict("the limit must be an integer") from None
        rows: list[Json] = []
        with reading(self._engine) as conn:
            # Ids first: one page of documents may be 200 MiB, so each is read, judged and dropped on its own.
            for run_id in conn.execute(select(release_runs.c.run_id).order_by(release_runs.c.run_id.desc())).scalars():
                try:
                    record = _read(conn, run_id, lock=False)
                except (RunCorrupt, RunNotFound):
                    rows.append(unavailable_row(run_id))
                else:
                    if record["immutable"]["input"]["workspace_fingerprint"] == self._workspace:
                        rows.append(row_of(record))
                if len(rows) == wanted:
                    break
        return rows

    def resume(self, run_id: object, *, request_id: object) -> Json:
        """Interrupt every running step; idempotent by request id."""
        run.check_resume(request_id)
        return self._change(run_id, lambda record, at: run.resume(record, request_id=request_id, at=at))

    def start_step(self, run_id: object, step_id: object, *, attempt_id: object) -> Json:
        """Claim a step for one attempt; a replayed attempt id returns the current view and claims nothing."""
        run.check_start(step_id, attempt_id)
        return self._change(run_id, lambda record, at: run.start_step(record, step_id, attempt_id=attempt_id, at=at))

    def finish_step(
        self, run_id: object, step_id: object, *, attempt_id: object, succeeded: object, result_code: object
    ) -> Json:
        """Report how an attempt ended, with a bounded code; idempotent."""
        run.check_finish(step_id, attempt_id, succeeded, result_code)
        return self._change(
            run_id,
            lambda record, at: run.finish_step(
                record, step_id, attempt_id=attempt_id, succeeded=succeeded, result_code=result_code, at=at
            ),
        )

    def retry_step(self, run_id: object, step_id: object, *, request_id: object) -> Json:
        """Set a failed or read-only interrupted step back to pending; idempotent by request id."""
        run.check_retry(step_id, request_id)
        return self._change(run_id, lambda record, at: run.retry_step(record, step_id, request_id=request_id, at=at))

    def reconcile_step(
        self, run_id: object, step_id: object, *, request_id: object, outcome: object, confirmation: object
    ) -> Json:
        """Say what became of an interrupted mutating step; idempotent by request id and outcome."""
        run.check_reconcile(step_id, request_id, outcome, confirmation)
        return self._change(
            run_id,
            lambda record, at: run.reconcile_step(
                record, step_id, request_id=request_id, outcome=outcome, confirmation=confirmation, at=at
            ),
        )

    def _change(self, run_id: object, change: Change) -> Json:
        """Lock, read, re-validate, change a copy, re-validate, write; a replay writes nothing."""
        if not matches(RUN_ID, run_id):
            raise RunNotFound

        def work(conn: Connection) -> Json:
            record = self._own(_read(conn, str(run_id), lock=True))
            changed = change(record, self._second(conn))
            if changed is None:
                return record
            conn.execute(
                update(release_runs)
                .where(release_runs.c.run_id == run_id)
                .values(document=encode_record(changed), **self._columns(changed))
            )
            return changed

        return view_of(self._write(work))

    def _write(self, work: Callable[[Connection], Json]) -> Json:
        try:
            return writing(self._engine, work, most_tries=1)
        except Unavailable as fault:
            if fault.code == "database.busy":
                raise RunBusy from None
            raise

    def _own(self, record: Json) -> Json:
        if record["immutable"]["input"]["workspace_fingerprint"] != self._workspace:
            raise RunWorkspaceMismatch
        return record

    def _second(self, conn: Connection) -> str:
        moment = datetime.fromtimestamp(int(read_clock(conn, self._now)), tz=UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    @staticmethod
    def _columns(record: Json) -> Json:
        return {"record_digest": record["record_digest"], "status": record["state"]["status"]}


def _read(conn: Connection, run_id: str, *, lock: bool) -> Json:
    """Read and fully validate one run, whichever workspace it belongs to."""
    query = select(STORED, release_runs.c.record_digest).where(release_runs.c.run_id == run_id)
    row: Row[Any] | None = conn.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise RunNotFound
    record = decode_record(row.document, run_id=run_id)
    if row.record_digest != record["record_digest"]:
        raise RunCorrupt
    return record
