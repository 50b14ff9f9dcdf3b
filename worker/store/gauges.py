"""How much there is of what people watch, now: counted up to a bound, along partial indexes, however many rows there are.

A count stops at `most`: then it says "at least so many" and is marked as capped. So a look costs the same with a
thousand rows and with a million. What ended is never counted here; workers count it as it ends (`measures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, text

from worker.store.schema import DELIVERY_POISON, DUE, EVIDENCE_POISON, LEASED, UNSETTLED, WAKE_ORDER

MOST_ROWS: Final = 10_000  # that one count reads
MOST_GROUPS: Final = 2_000  # sites times review routes with something due, that one look walks over
MOST_APPROVALS: Final = 2_000  # each is asked for its event
DAY_SECONDS: Final = 86_400.0
RUN_STATUSES: Final = ("planned", "running", "attention", "blocked", "completed")


@dataclass(frozen=True, kw_only=True)
class Due:
    """Rows of one site that are due and not leased, held back or not, and when the oldest fell due, in seconds."""

    queue: str  # evidence | delivery | runs
    site_id: str
    rows: int
    oldest_at: float


@dataclass(frozen=True, kw_only=True)
class Leased:
    """Rows of one kind that are leased: of a live lease, and of one that ran out and waits for a sweep."""

    queue: str
    route: str | None  # of evidence
    live: int
    expired: int


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Numbers by name, and whether some count stopped at its bound."""

    counts: Mapping[str, int]
    is_capped: bool = False


# --- due and leased --------------------------------------------------------------------------------------------------

_DUE_EVIDENCE: Final = f"""
WITH RECURSIVE site (site_id) AS (
  SELECT (SELECT min(site_id) FROM evidence WHERE {DUE})
  UNION ALL
  SELECT (SELECT min(e.site_id) FROM evidence e WHERE {DUE} AND e.site_id > site.site_id)
  FROM site WHERE site.site_id IS NOT NULL
), first_sites AS (
  SELECT site_id FROM site WHERE site_id IS NOT NULL LIMIT :groups
), route (site_id, provider) AS (
  SELECT f.site_id, (SELECT min(e.provider) FROM evidence e WHERE {DUE} AND e.site_id = f.site_id) FROM first_sites f
  UNION ALL
  SELECT r.site_id, (SELECT min(e.provider) FROM evidence e
                     WHERE {DUE} AND e.site_id = r.site_id AND e.provider > r.provider)
  FROM route r WHERE r.provider IS NOT NULL
), waiting AS (
  SELECT g.site_id, g.provider, (SELECT min(e.next_attempt_at) FROM evidence e
                                 WHERE {DUE} AND e.site_id = g.site_id AND e.provider = g.provider) AS oldest_at
  FROM (SELECT site_id, provider FROM route WHERE provider IS NOT NULL LIMIT :groups) g
), share (places) AS (
  SELECT 1 + :most / nullif(count(*), 0) FROM waiting WHERE oldest_at <= :now
)
SELECT d.site_id, d.oldest_at, (SELECT places FROM share) AS places, (
  SELECT count(*) FROM (
    SELECT 1 FROM evidence e
    WHERE {DUE} AND e.site_id = d.site_id AND e.provider = d.provider AND e.next_attempt_at <= :now
    ORDER BY e.next_attempt_at LIMIT (SELECT places FROM share)
  ) counted
) AS rows
FROM waiting d WHERE d.oldest_at <= :now
"""  # noqa: S608 - conditions of our own indexes

_DUE_DELIVERIES: Final = f"""
SELECT site_id, count(*) AS rows, min(next_attempt_at) AS oldest_at FROM (
  SELECT site_id, next_attempt_at FROM deliveries WHERE {DUE} AND {WAKE_ORDER} <= :now
  ORDER BY {WAKE_ORDER}, delivery_id LIMIT :most
) first_due GROUP BY site_id
"""  # noqa: S608

_DUE_RUNS: Final = f"""
SELECT site_id, count(*) AS rows, min(next_attempt_at) AS oldest_at FROM (
  SELECT site_id, next_attempt_at FROM run_commands WHERE {DUE} AND next_attempt_at <= :now
  ORDER BY next_attempt_at, created_at, attempt_id LIMIT :most
) first_due GROUP BY site_id
"""  # noqa: S608


def due_work(conn: Connection, *, now: float, most: int = MOST_ROWS) -> tuple[list[Due], bool]:
    """Return what is due at a time in seconds by queue and site, and whether a count or the walk stopped at its bound.

    Evidence is walked from site to site by index, so that no site's backlog hides another's; of each as many rows are
    counted as its share of `most`. Deliveries and steps of runs are counted in the order in which they are woken.
    """
    groups = _rows(conn, _DUE_EVIDENCE, now=now, most=most, groups=MOST_GROUPS)
    is_capped = len(groups) >= MOST_GROUPS or any(row["rows"] >= row["places"] for row in groups)
    found = [_due("evidence", row) for row in groups]
    for queue, statement in (("delivery", _DUE_DELIVERIES), ("runs", _DUE_RUNS)):
        of_queue = [_due(queue, row) for row in _rows(conn, statement, now=now, most=most)]
        is_capped |= sum(one.rows for one in of_queue) >= most
        found += of_queue
    return found, is_capped


def leases(conn: Connection, *, now: float, most: int = MOST_ROWS) -> tuple[list[Leased], bool]:
    """Return the leases by queue (those on evidence by route too), and whether a count stopped at its bound."""
    found: list[Leased] = []
    is_capped = False
    for queue, table, route in (
        ("evidence", "evidence", "provider"),
        ("delivery", "deliveries", "NULL"),
        ("runs", "run_commands", "NULL"),
    ):
        statement = f"""
        SELECT route, sum(CASE WHEN lease_expires_at > :now THEN 1 ELSE 0 END) AS live, count(*) AS held FROM (
          SELECT {route} AS route, lease_expires_at FROM {table} WHERE {LEASED} ORDER BY lease_expires_at LIMIT :most
        ) held GROUP BY route
        """  # noqa: S608
        rows = _rows(conn, statement, now=now, most=most)
        is_capped |= sum(row["held"] for row in rows) >= most
        found += [
            Leased(queue=queue, route=row["route"], live=int(row["live"]), expired=int(row["held"] - row["live"]))
            for row in rows
        ]
    return found, is_capped


# --- events, deliveries, runs, approvals ------------------------------------------------------------------------------


def open_events(conn: Connection, *, most: int = MOST_ROWS) -> Counted:
    """Return how many change events are open."""
    statement = """
    SELECT count(*) AS rows FROM (SELECT 1 FROM events WHERE state = 'open' ORDER BY event_id LIMIT :most) opened
    """
    [row] = _rows(conn, statement, most=most)
    return Counted(counts={"open": row["rows"]}, is_capped=row["rows"] >= most)


def open_deliveries(conn: Connection, *, most: int = MOST_ROWS) -> Counted:
    """Return how many deliveries are `prepared` (never sent, or surely not accepted), `in_doubt`, `sending` and `outcome_unknown`."""
    waiting = f"""
    SELECT in_doubt, count(*) AS rows FROM (
      SELECT in_doubt FROM deliveries WHERE {DUE} ORDER BY {WAKE_ORDER}, delivery_id LIMIT :most
    ) waiting GROUP BY in_doubt
    """  # noqa: S608
    unsettled = f"""
    SELECT status, count(*) AS rows FROM (
      SELECT status FROM deliveries WHERE {UNSETTLED} ORDER BY site_id, source_id, source_sequence LIMIT :most
    ) unsettled GROUP BY status
    """  # noqa: S608
    doubts = {bool(row["in_doubt"]): row["rows"] for row in _rows(conn, waiting, most=most)}
    others = {row["status"]: row["rows"] for row in _rows(conn, unsettled, most=most)}
    counts = {
        "prepared": doubts.get(False, 0),
        "in_doubt": doubts.get(True, 0),
        "sending": others.get("leased", 0),
        "outcome_unknown": others.get("failed", 0),
    }
    return Counted(counts=counts, is_capped=max(sum(doubts.values()), sum(others.values())) >= most)


def runs_by_status(conn: Connection, *, most: int = MOST_ROWS) -> Counted:
    """Return how many release runs have each status."""
    statement = "SELECT count(*) AS rows FROM (SELECT 1 FROM release_runs WHERE status = :status LIMIT :most) known"
    counts = {status: _rows(conn, statement, status=status, most=most)[0]["rows"] for status in RUN_STATUSES}
    return Counted(counts=counts, is_capped=max(counts.values()) >= most)


def expiring(conn: Connection, *, now: float, within: float = DAY_SECONDS, most: int = MOST_APPROVALS) -> Counted:
    """Return how many approvals that were not revoked end within so many seconds: of `open` events, and of `ended` ones."""
    statement = """
    SELECT is_open, count(*) AS rows FROM (
      SELECT CASE WHEN EXISTS (
        SELECT 1 FROM plan_jobs p JOIN events e ON e.plan_id = p.plan_id WHERE p.job_id = a.job_id AND e.state = 'open'
      ) THEN 1 ELSE 0 END AS is_open
      FROM (SELECT job_id, revoked_at FROM approvals WHERE expires_at > :now AND expires_at <= :until
            ORDER BY expires_at, approval_id LIMIT :most) a
      WHERE a.revoked_at IS NULL
    ) ending GROUP BY is_open
    """
    rows = {row["is_open"]: row["rows"] for row in _rows(conn, statement, now=now, until=now + within, most=most)}
    return Counted(counts={"open": rows.get(1, 0), "ended": rows.get(0, 0)}, is_capped=sum(rows.values()) >= most)


# --- what holds the fleet back ---------------------------------------------------------------------------------------


def pauses_by_scope(conn: Connection, *, now: float) -> dict[str, int]:
    """Return how many pauses of each scope are in force."""
    statement = "SELECT scope, count(*) AS rows FROM pauses WHERE until_at IS NULL OR until_at > :now GROUP BY scope"
    return {row["scope"]: row["rows"] for row in _rows(conn, statement, now=now)}


def breaker_states(conn: Connection) -> dict[tuple[str, str, str], int]:
    """Return how many breakers are in each state, by kind, name (of a route; empty for a CMS, which is a site's) and state.

    `open`; `troubled`: closed with failures counted; `closed`. The table has one row for each side that ever failed.
    """
    statement = """
    SELECT kind, name, state, count(*) AS rows FROM (
      SELECT kind, CASE WHEN kind = 'provider' THEN name ELSE '' END AS name,
             CASE WHEN is_open THEN 'open' WHEN failures > 0 THEN 'troubled' ELSE 'closed' END AS state
      FROM breakers LIMIT :most
    ) states GROUP BY kind, name, state
    """
    found = _rows(conn, statement, most=MOST_ROWS)
    return {(row["kind"], row["name"], row["state"]): row["rows"] for row in found}


def rate_waits(conn: Connection, *, now: float) -> dict[str, float]:
    """Return for each route with a rate how many seconds from now its next call may begin; 0 where it may now."""
    rows = _rows(conn, "SELECT name, next_call_at FROM limits WHERE kind = 'provider' LIMIT :most", most=MOST_GROUPS)
    return {row["name"]: max(0.0, row["next_call_at"] - now) for row in rows}


def quarantined(conn: Connection, *, most: int = MOST_ROWS) -> Counted:
    """Return how many rows failed because their leases ran out too often, by what they are."""
    counts = {}
    for name, table, poison in (("evidence", "evidence", EVIDENCE_POISON), ("delivery", "deliveries", DELIVERY_POISON)):
        statement = f"""
        SELECT count(*) AS rows FROM (
          SELECT 1 FROM {table} WHERE status = 'failed' AND {poison} ORDER BY updated_at LIMIT :most
        ) kept
        """  # noqa: S608
        counts[name] = _rows(conn, statement, most=most)[0]["rows"]
    return Counted(counts=counts, is_capped=max(counts.values()) >= most)


def recent_rejections(conn: Connection, *, now: float, within: float, most: int = MOST_ROWS) -> Counted:
    """Return how many documents intake refused within the last so many seconds; one sent again counts once."""
    statement = """
    SELECT count(*) AS rows FROM (
      SELECT 1 FROM rejections WHERE last_at > :since ORDER BY last_at DESC LIMIT :most
    ) lately
    """
    [row] = _rows(conn, statement, since=now - within, most=most)
    return Counted(counts={"rejections": row["rows"]}, is_capped=row["rows"] >= most)


def _rows(conn: Connection, statement: str, **parameters: Any) -> Sequence[RowMapping]:
    return conn.execute(text(statement), parameters).mappings().all()


def _due(queue: str, row: RowMapping) -> Due:
    return Due(queue=queue, site_id=row["site_id"], rows=row["rows"], oldest_at=row["oldest_at"])
