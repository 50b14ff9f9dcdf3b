"""What is quarantined, as people look at it: each row with the leases that ran out and what they were taken for. Read only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, Select, String, exists, literal_column, select, text

from worker.domain.attempt import FAILED
from worker.domain.quarantine import (
    CODES,
    RUN_COMMAND_QUARANTINED,
    STEPS,
    Kind,
    Setback,
    Suspect,
    expiries_of,
)
from worker.store.engine import json_rows, row_source
from worker.store.schema import (
    DELIVERY_POISON,
    EVIDENCE_POISON,
    deliveries,
    events,
    evidence,
    pushed_responses,
    run_commands,
    setbacks,
)

MOST: Final = 1000  # rows of each kind that one look lists


def list_quarantined(conn: Connection, *, site_id: str | None = None, limit: int = MOST) -> tuple[Suspect, ...]:
    """Return what is quarantined and was not released since, the newest first; at most `limit` of each kind."""
    found = [
        *_suspects(conn, "evidence", _evidence(), site_id, limit),
        *_suspects(conn, "delivery", _deliveries(), site_id, limit),
        *_suspects(conn, "run_command", _commands(), site_id, limit),
    ]
    return tuple(sorted(found, key=lambda one: (-one.since, one.row_id)))


def find_quarantined(conn: Connection, row_id: str) -> Suspect | None:
    """Return one quarantined row that was not released since, by the id of its row, or None."""
    kinds: tuple[tuple[Kind, Select[Any]], ...] = (
        ("evidence", _evidence()),
        ("delivery", _deliveries()),
        ("run_command", _commands()),
    )
    for kind, rows in kinds:
        found = _suspects(conn, kind, rows.where(rows.selected_columns.row_id == row_id), None, 1)
        if found:
            return found[0]
    return None


def _evidence() -> Select[Any]:
    later = evidence.alias("later")
    is_followed = exists().where(
        later.c.job_id == evidence.c.job_id,
        later.c.event_id == evidence.c.event_id,
        later.c.result_sha256 == evidence.c.result_sha256,
        later.c.created_at > evidence.c.created_at,
    )
    is_open = exists().where(events.c.event_id == evidence.c.event_id, events.c.state == "open")
    is_handed_in = exists().where(
        pushed_responses.c.request_id == evidence.c.request_id,
        pushed_responses.c.received_at < evidence.c.updated_at,
    )
    return select(
        evidence.c.request_id.label("row_id"),
        evidence.c.site_id,
        evidence.c.event_id,
        evidence.c.job_id,
        literal_column("NULL", String).label("run_id"),
        evidence.c.updated_at,
        evidence.c.created_at,
        evidence.c.provider.label("part"),
        is_handed_in.label("is_handed_in"),
    ).where(text(f"evidence.{EVIDENCE_POISON}"), evidence.c.status == FAILED, is_open, ~is_followed)


def _deliveries() -> Select[Any]:
    return select(
        deliveries.c.delivery_id.label("row_id"),
        deliveries.c.site_id,
        deliveries.c.event_id,
        literal_column("NULL", String).label("job_id"),
        literal_column("NULL", String).label("run_id"),
        deliveries.c.updated_at,
        deliveries.c.created_at,
        literal_column("NULL", String).label("part"),
    ).where(text(f"deliveries.{DELIVERY_POISON}"), deliveries.c.status == FAILED)


def _commands() -> Select[Any]:
    return select(
        run_commands.c.attempt_id.label("row_id"),
        run_commands.c.site_id,
        literal_column("NULL", String).label("event_id"),
        literal_column("NULL", String).label("job_id"),
        run_commands.c.run_id,
        run_commands.c.updated_at,
        run_commands.c.created_at,
        run_commands.c.step_id.label("part"),
    ).where(run_commands.c.status == FAILED, run_commands.c.last_error_code == RUN_COMMAND_QUARANTINED)


def _suspects(conn: Connection, kind: Kind, rows: Select[Any], site_id: str | None, limit: int) -> tuple[Suspect, ...]:
    columns = rows.selected_columns
    if site_id is not None:
        rows = rows.where(columns.site_id == site_id)
    found = conn.execute(rows.order_by(columns.updated_at.desc(), columns.row_id).limit(limit)).mappings().all()
    histories = _histories(conn, kind, [row["row_id"] for row in found])
    return tuple(_suspect(kind, row, histories.get(row["row_id"], [])) for row in found)


def _suspect(kind: Kind, row: RowMapping, history: list[Setback]) -> Suspect:
    own = [one for one in history if one.ended_at > row["created_at"]]  # a delivery may follow one of the same bytes
    expiries = expiries_of(own, _doing(kind, row))
    return Suspect(
        kind=kind,
        row_id=row["row_id"],
        site_id=row["site_id"],
        event_id=row["event_id"],
        job_id=row["job_id"],
        run_id=row["run_id"],
        code=CODES[kind],
        since=row["updated_at"],
        step=STEPS[kind],
        doing=expiries[-1].doing if expiries else "unknown",
        expiries=expiries,
    )


def _doing(kind: Kind, row: RowMapping) -> str | None:
    """Return what every attempt of a row did, or None for a delivery, where its history tells."""
    if kind == "evidence":
        return "the answer that was handed in" if row["is_handed_in"] else f"the review by {row['part']}"
    return f"the step {row['part']}" if kind == "run_command" else None


def _histories(conn: Connection, kind: Kind, row_ids: Iterable[str]) -> dict[str, list[Setback]]:
    named = row_source(conn, "named", {"row_id": String}, "named")
    lines = conn.execute(
        select(setbacks)
        .join(named, (setbacks.c.subject == kind) & (setbacks.c.subject_id == named.c.row_id))
        .order_by(setbacks.c.subject_id, setbacks.c.setback_id),
        {"named": json_rows([{"row_id": row_id} for row_id in row_ids])},
    ).mappings()
    found: dict[str, list[Setback]] = {}
    for line in lines:
        one = Setback(
            attempt=line["attempt"],
            outcome=line["outcome"],
            code=line["code"],
            worker_id=line["lease_owner"],
            ended_at=line["ended_at"],
        )
        found.setdefault(line["subject_id"], []).append(one)
    return found
