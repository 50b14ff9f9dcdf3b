"""What the fleet is to do for release runs: one leased row per attempt at a step, worked at in short visits.

A command is written in the transaction that starts its attempt. A visit takes its lease, and ends it by finishing the
step, or by handing the command back until it is due again. The machine is SPEC section 4's, in `leases`. A read-only
step's command may lose many visits to dying workers; a mutating step's only one, so that it fails with the first and
nothing new is sent until the run is resumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection, delete, null, select

from worker.domain.attempt import LEASED, MOST_ATTEMPTS, PENDING
from worker.domain.quarantine import Quarantine
from worker.store.engine import clock, read_clock
from worker.store.leases import DEFAULT_QUARANTINE, Leases
from worker.store.permits import withdraw_permits
from worker.store.schema import run_commands
from worker.store.setbacks import Ending

RUN_COMMANDS: Final = Leases(
    table=run_commands,
    id_column="attempt_id",
    subject="run_command",
    invalid_code="run.command.invalid",
    tokens=("attempt_id", "run_id", "step_id", "site_id"),
    hashes=(),
)
VISITS_OF_MUTATING: Final = 1


@dataclass(frozen=True, kw_only=True)
class CommandLease:
    """The right of one worker to visit a command, and since when the command has been there."""

    attempt_id: str
    run_id: str
    step_id: str
    owner: str
    token: str = field(repr=False)
    created_at: float
    taken_at: float


@dataclass(frozen=True, kw_only=True)
class CommandFacts:
    """A command as people look at it."""

    attempt_id: str
    step_id: str
    status: str
    attempts: int
    max_attempts: int
    next_attempt_at: float
    lease_owner: str | None
    lease_expires_at: float | None
    code: str | None
    created_at: float
    is_visited: bool  # a worker holds a live lease on it
    now: float


def insert_command(
    conn: Connection,
    *,
    run_id: str,
    step_id: str,
    attempt_id: str,
    site_id: str,
    is_mutating: bool,
    now: float | None,
) -> None:
    """Ask the fleet to work at an attempt, due now. Whoever calls wakes it after the commit, so it counts as woken."""
    at = clock(conn, now)
    conn.execute(
        run_commands.insert().values(
            attempt_id=attempt_id,
            run_id=run_id,
            step_id=step_id,
            site_id=site_id,
            status=PENDING,
            attempts=0,
            max_attempts=VISITS_OF_MUTATING if is_mutating else MOST_ATTEMPTS,
            next_attempt_at=at,
            created_at=at,
            updated_at=at,
            last_woken_at=at,
        )
    )


def take_command(
    conn: Connection,
    *,
    run_id: str,
    step_id: str,
    attempt_id: str,
    worker_id: str,
    lease_seconds: float,
    now: float | None,
    bound: Quarantine = DEFAULT_QUARANTINE,
) -> CommandLease | None:
    """Lease a due command, or return None where nothing may be done: unknown, ended, leased by another, not due.

    A lease that ran out is taken away first, which is where a mutating step's command fails, and any other that lost
    too many visits. Raises
    `run.command.invalid` for a damaged row.
    """
    row = RUN_COMMANDS.lock(conn, attempt_id)
    if row is None or (row["run_id"], row["step_id"]) != (run_id, step_id):
        return None
    if row["status"] == LEASED and row["lease_expires_at"] <= read_clock(conn, now):
        RUN_COMMANDS.expire_rows(conn, [row], now=now, bound=bound)
    taken = RUN_COMMANDS.take(conn, attempt_id, worker_id=worker_id, lease_seconds=lease_seconds, now=now)
    if taken is None:
        return None
    return CommandLease(
        attempt_id=attempt_id,
        run_id=run_id,
        step_id=step_id,
        owner=taken["lease_owner"],
        token=taken["lease_token"],
        created_at=taken["created_at"],
        taken_at=taken["updated_at"],
    )


def is_held(conn: Connection, lease: CommandLease, *, now: float | None) -> bool:
    """Tell whether a lease still stands, and lock its command until the transaction ends."""
    held = (
        select(run_commands.c.attempt_id)
        .where(
            run_commands.c.attempt_id == lease.attempt_id,
            run_commands.c.status == LEASED,
            run_commands.c.lease_owner == lease.owner,
            run_commands.c.lease_token == lease.token,
            run_commands.c.lease_expires_at > clock(conn, now),
        )
        .with_for_update()
    )
    return conn.execute(held).one_or_none() is not None


def finish_command(conn: Connection, lease: CommandLease, *, now: float | None) -> bool:
    """End a command whose step ended, and take back the permits of its run; false where the lease was lost."""
    if not close_command(conn, lease, now=now):
        return False
    withdraw_permits(conn, lease.run_id)
    return True


def close_command(conn: Connection, lease: CommandLease, *, now: float | None) -> bool:
    """End a command that executed no step; false where the lease was lost."""
    ending = Ending(row_id=lease.attempt_id, owner=lease.owner, token=lease.token)
    return lease.attempt_id in RUN_COMMANDS.succeed(conn, [ending], now=now)


def release_command(
    conn: Connection, lease: CommandLease, *, code: str, wait_seconds: float, now: float | None
) -> bool:
    """Hand a command back, due after a wait; false where the lease was lost."""
    ending = Ending(
        row_id=lease.attempt_id,
        owner=lease.owner,
        token=lease.token,
        code=code,
        not_before=read_clock(conn, now) + wait_seconds,
    )
    # Nobody is woken now, so that the next sweep after it is due finds it.
    return lease.attempt_id in RUN_COMMANDS.release(conn, [ending], now=now, values={"last_woken_at": null()})


def withdraw_commands(conn: Connection, run_id: str) -> None:
    """Take back what the fleet was to do for a run, and every permit; whoever holds a lease settles nothing."""
    conn.execute(delete(run_commands).where(run_commands.c.run_id == run_id, run_commands.c.status != "succeeded"))
    withdraw_permits(conn, run_id)


def commands_of(conn: Connection, run_id: str, *, now: float | None = None) -> tuple[CommandFacts, ...]:
    """Return the commands of a run that have not succeeded, the oldest first."""
    at = read_clock(conn, now)
    names = (
        "attempt_id",
        "step_id",
        "status",
        "attempts",
        "max_attempts",
        "next_attempt_at",
        "lease_owner",
        "lease_expires_at",
        "created_at",
    )
    rows = conn.execute(
        select(*(run_commands.c[name] for name in names), run_commands.c.last_error_code.label("code"))
        .where(run_commands.c.run_id == run_id, run_commands.c.status != "succeeded")
        .order_by(run_commands.c.created_at, run_commands.c.attempt_id)
    ).mappings()
    return tuple(_facts(dict(row), at) for row in rows)


def _facts(row: dict[str, Any], now: float) -> CommandFacts:
    is_visited = row["status"] == LEASED and row["lease_expires_at"] > now
    return CommandFacts(**row, is_visited=is_visited, now=now)
