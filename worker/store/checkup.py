"""What a database looks like to an operator, and what is wrong with it: schema, clock, TLS, rights, what holds work back.

Reads only, in a few short statements. Nothing here waits longer than a connection may take.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Engine, select, text

from worker.domain.hold import Closure
from worker.domain.symptom import Examination, Symptom, found
from worker.store.due import FLEET
from worker.store.engine import is_sqlite, read_clock, reading
from worker.store.pauses import pauses_in_force
from worker.store.schema import breakers, metadata, sweeps
from worker.store.schema_version import Standing, schema_standing

OLDEST_POSTGRES: Final = 14
SKEWED_SECONDS: Final = 2.0  # of the two clocks: nothing breaks yet
WRONG_SECONDS: Final = 60.0  # receipts and approvals from the future, certificates not valid yet
FULL_SHARE: Final = 0.8  # of the server's connections, from which on a warning is due
UNSWEPT_SECONDS: Final = 60.0

# What proves why a text went live. A worker adds to these tables and takes nothing away.
EVIDENCE_OF_RECORD: Final = (
    "submissions", "approvals", "receipts", "public_keys", "setbacks", "delivery_answers", "evidence_history",
    "delivery_history", "withdrawals", "results", "events",
)  # fmt: skip

# What a worker reads and no more: operators and prune write it.
OPERATORS: Final = frozenset({"pauses", "legal_holds", "prunings", "pruned_events"})

_STANDINGS: Final[dict[Standing, tuple[str, str] | None]] = {
    "newest": None,
    "older": ("database.unmigrated", "the database has not the newest schema"),
    "newer": ("database.upgraded", "a later version upgraded the database, and it still serves this one"),
    "too_new": ("database.too_new", "a later version upgraded the database, and it serves this one no more"),
}


def examine_database(engine: Engine, *, place: str, is_local: bool, looks_at_fleet: bool = True) -> Examination:
    """Return facts about a database and what is wrong with it.

    `place` names it for people; `is_local` says that nobody is in between. With `looks_at_fleet` also whether sweeps
    are made. Raises `Unavailable` where it does not answer.
    """
    standing = schema_standing(engine)
    facts: dict[str, Any] = {"kind": "sqlite" if is_sqlite(engine) else "postgresql", "place": place}
    facts["schema"] = standing
    symptoms = [found(*said)] if (said := _STANDINGS[standing]) is not None else []
    with reading(engine) as conn:
        before = time.time()
        at = read_clock(conn, None)
        facts["clock_skew_seconds"] = round(at - (before + time.time()) / 2, 3)
        symptoms += _of_clock(facts["clock_skew_seconds"])
        if not is_sqlite(engine):
            symptoms += _of_server(conn, facts, is_local=is_local)
        if standing in {"newest", "newer"}:
            if not is_sqlite(engine):
                symptoms += _of_rights(conn)
            symptoms += _of_holds(conn, at)
            if looks_at_fleet:
                symptoms += _of_sweeps(conn, at)
    return Examination(facts=facts, symptoms=tuple(symptoms))


def _of_clock(skew_seconds: float) -> Iterator[Symptom]:
    if abs(skew_seconds) < SKEWED_SECONDS:
        return
    code = "database.clock.skewed" if abs(skew_seconds) < WRONG_SECONDS else "database.clock.wrong"
    side = "ahead of" if skew_seconds > 0 else "behind"
    yield found(code, f"the database's clock is {abs(skew_seconds):.1f} s {side} this machine's")


def _of_server(conn: Connection, facts: dict[str, Any], *, is_local: bool) -> Iterator[Symptom]:
    row = conn.execute(
        text(
            "SELECT current_setting('server_version_num')::int / 10000 AS version,"
            " current_setting('server_version') AS name, current_setting('max_connections')::int AS most,"
            " (SELECT sum(numbackends) FROM pg_stat_database)::int AS used,"
            " (SELECT s.ssl FROM pg_stat_ssl s WHERE s.pid = pg_backend_pid()) AS is_encrypted"
        )
    ).one()
    facts["version"] = f"PostgreSQL {row.name}"
    facts["connections"] = {"used": row.used, "most": row.most}
    facts["is_encrypted"] = bool(row.is_encrypted)
    if row.version < OLDEST_POSTGRES:
        yield found("database.version.old", f"it is PostgreSQL {row.name}")
    if row.used > FULL_SHARE * row.most:
        yield found("database.connections.few", f"{row.used} of {row.most} connections are taken")
    if is_local:
        return
    if not row.is_encrypted:
        yield found("database.tls.missing", "the connection is not encrypted")
    elif conn.engine.url.query.get("sslmode") != "verify-full":
        yield found("database.tls.unverified", "the connection is encrypted, but the server's name is not verified")


def _of_rights(conn: Connection) -> Iterator[Symptom]:
    """Judge the rights of our role: enough for the fleet, and none to take evidence away."""
    tables = sorted(metadata.tables)
    rights = conn.execute(
        text(
            "SELECT name, has_table_privilege(name, 'SELECT') AS reads, has_table_privilege(name, 'INSERT') AS adds,"
            " has_table_privilege(name, 'DELETE') OR has_table_privilege(name, 'TRUNCATE') AS removes"
            " FROM unnest(CAST(:tables AS text[])) AS name WHERE to_regclass(name) IS NOT NULL"
        ),
        {"tables": tables},
    ).all()
    lacking = [row.name for row in rights if not row.reads or not (row.adds or row.name in OPERATORS)]
    if lacking:
        yield found("database.rights.missing", f"our role may not read and add to {', '.join(lacking)}")
    removes = [row.name for row in rights if row.removes and row.name in EVIDENCE_OF_RECORD]
    if removes:
        yield found("database.rights.broad", f"our role may remove rows of {', '.join(removes)}")


def _of_holds(conn: Connection, at: float) -> Iterator[Symptom]:
    """Say what keeps due work back: pauses in force and open breakers."""
    for pause in pauses_in_force(conn, now=at):
        name = f"{pause.scope} {pause.name}".strip()
        scope = "" if pause.scope == "all" else f"--{pause.scope} {pause.name}"
        yield found("pause.active", f"{name}: {pause.said(_clock_time)}", scope=scope)
    opened = select(breakers).where(breakers.c.is_open.is_(True)).order_by(breakers.c.kind, breakers.c.name)
    for row in conn.execute(opened):
        closure = Closure(kind=row.kind, name=row.name, until_at=row.open_until_at or 0.0)
        yield found("breaker.open", f"{row.name}: {closure.said(_clock_time, at)} ({row.reason})")


def _of_sweeps(conn: Connection, at: float) -> Iterator[Symptom]:
    swept_at = conn.execute(select(sweeps.c.swept_at).where(sweeps.c.name == FLEET)).scalar_one_or_none()
    if swept_at is None:
        yield found("fleet.unswept", "nobody has swept this database yet: lost wakes are not made good")
    elif at - swept_at > UNSWEPT_SECONDS:
        yield found("fleet.unswept", f"the last sweep was {at - swept_at:.0f} s ago: lost wakes are not made good")


def _clock_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
