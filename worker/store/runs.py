"""Release runs in the database: one row a run, one transaction an operation, every record re-validated on every read.

The rules are `domain.run`'s, the row is `run_rows`'s; here is the surface that audits and other tools drive. A store
object serves one workspace, named by its fingerprint. Wrong arguments and damaged rows end in `RunNotFound`,
`RunConflict` or `RunCorrupt`; only a database that cannot answer at all is `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import uuid4

from sqlalchemy import Connection, Engine, exc, select

from worker.domain import run
from worker.domain.errors import RunConflict, RunCorrupt, RunNotFound
from worker.domain.identifier import is_hash
from worker.domain.run_plan import kind_of, normalised_input, normalised_plan
from worker.domain.run_view import row_of, unavailable_row, view_of
from worker.store.engine import reading
from worker.store.permits import refuse_while_sending
from worker.store.run_commands import withdraw_commands
from worker.store.run_rows import Change, Json, change_run, check_files, insert_run, read_run, second, writing_run
from worker.store.schema import release_runs

PAGE: Final = 20
MOST_ROWS: Final = 100


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
            at = second(conn, self._now)
            run_id = f"rr-{at.replace('-', '').replace(':', '')}-{uuid4().hex[:12]}"
            record = run.new_record(run_id, given, plan, at=at)
            insert_run(conn, record)
            return record

        try:
            return view_of(writing_run(self._engine, work))
        except exc.IntegrityError:
            raise RunConflict("the run id exists already; try again") from None

    def get(self, run_id: object) -> Json:
        """Return the current view of a run."""
        check_files(self._engine)
        with reading(self._engine) as conn:
            return view_of(read_run(conn, run_id, workspace=self._workspace, lock=False))

    def list(self, *, limit: object = PAGE) -> list[Json]:
        """Return at most `limit` rows (clamped into 1..100), newest first; damaged records show as unavailable."""
        try:
            wanted = min(MOST_ROWS, max(1, int(limit)))  # type: ignore[call-overload]
        except (TypeError, ValueError, OverflowError):
            raise RunConflict("the limit must be an integer") from None
        check_files(self._engine)
        rows: list[Json] = []
        with reading(self._engine) as conn:
            # Ids first: one page of documents may be 200 MiB, so each is read, judged and dropped on its own.
            for run_id in conn.execute(select(release_runs.c.run_id).order_by(release_runs.c.run_id.desc())).scalars():
                try:
                    record = read_run(conn, run_id, workspace=None, lock=False)
                except (RunCorrupt, RunNotFound):
                    rows.append(unavailable_row(run_id))
                else:
                    if record["immutable"]["input"]["workspace_fingerprint"] == self._workspace:
                        rows.append(row_of(record))
                if len(rows) == wanted:
                    break
        return rows

    def resume(self, run_id: object, *, request_id: object) -> Json:
        """Interrupt every running step; idempotent by request id.

        What the fleet was to do for the run (its commands, its permits to send) is withdrawn in the same transaction.
        """
        run.check_resume(request_id)
        return self._change(
            run_id,
            lambda record, at: run.resume(record, request_id=request_id, at=at),
            then=lambda conn, changed: withdraw_commands(conn, changed["run_id"]),
        )

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
            then=lambda conn, changed: withdraw_commands(conn, changed["run_id"]),
        )

    def retry_step(self, run_id: object, step_id: object, *, request_id: object) -> Json:
        """Set a failed or read-only interrupted step back to pending; idempotent by request id."""
        run.check_retry(step_id, request_id)
        return self._change(run_id, lambda record, at: run.retry_step(record, step_id, request_id=request_id, at=at))

    def reconcile_step(
        self, run_id: object, step_id: object, *, request_id: object, outcome: object, confirmation: object
    ) -> Json:
        """Say what became of an interrupted mutating step; idempotent by request id and outcome.

        Refused while a delivery of the run is being sent: its outcome is not there to be told.
        """
        run.check_reconcile(step_id, request_id, outcome, confirmation)
        return self._change(
            run_id,
            lambda record, at: run.reconcile_step(
                record, step_id, request_id=request_id, outcome=outcome, confirmation=confirmation, at=at
            ),
            then=lambda conn, changed: refuse_while_sending(conn, changed, now=self._now),
        )

    def _change(
        self, run_id: object, change: Change, *, then: Callable[[Connection, Json], None] = lambda _conn, _record: None
    ) -> Json:
        """Change a run in one transaction; `then` does what belongs to a change, and is left out by a replay."""

        def work(conn: Connection) -> Json:
            record, is_changed = change_run(conn, run_id, change, workspace=self._workspace, now=self._now)
            if is_changed:
                then(conn, record)
            return record

        return view_of(writing_run(self._engine, work))
