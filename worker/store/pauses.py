"""Pauses as rows: an operator's word that new work stops. Every claim reads them, so they reach workers that are offline.

What is leased already goes on. A look-up of a delivery in doubt goes on too: it starts nothing new.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, delete, exists, func, not_, or_, select

from worker.domain.errors import Invalid
from worker.domain.hold import Pause, Scope, check_pause
from worker.store.conditions import is_waiting
from worker.store.deliveries import is_spoken_for
from worker.store.engine import clock, read_clock
from worker.store.schema import deliveries, events, evidence, pauses
from worker.store.upserts import insert_into


@dataclass(frozen=True, kw_only=True)
class Held:
    """How much is due and kept back by one pause and by nothing else an operator said."""

    evidence: int
    deliveries: int


def pause(conn: Connection, wanted: Pause, *, now: float | None) -> None:
    """Store a pause, in place of one of the same scope and name. Raises `Invalid`; nothing is written then."""
    at = read_clock(conn, now)
    check_pause(wanted)
    if wanted.until_at is not None and wanted.until_at <= at:
        raise Invalid("pause.until.invalid", "the end of the pause has passed already", path="until")
    said = {"owner": wanted.owner, "reason": wanted.reason, "paused_at": at, "until_at": wanted.until_at}
    row = insert_into(conn, pauses).values(scope=wanted.scope, name=wanted.name, **said)
    conn.execute(row.on_conflict_do_update(index_elements=["scope", "name"], set_=said))


def resume(conn: Connection, scope: Scope, name: str, *, now: float | None) -> bool:
    """Take a pause away; false when none was in force, which is no fault."""
    is_it = (pauses.c.scope == scope, pauses.c.name == name)
    gone = conn.execute(delete(pauses).where(*is_it).returning(pauses.c.until_at)).one_or_none()
    return gone is not None and (gone.until_at is None or gone.until_at > read_clock(conn, now))


def pauses_in_force(conn: Connection, *, now: float | None) -> tuple[Pause, ...]:
    """Return the pauses in force, by scope and name."""
    rows = conn.execute(
        select(*(pauses.c[name] for name in ("scope", "name", "owner", "reason", "until_at")))
        .where(_is_in_force(clock(conn, now)))
        .order_by(pauses.c.scope, pauses.c.name)
    )
    return tuple(Pause(**row) for row in rows.mappings())


def held_by(conn: Connection, scope: Scope, name: str, *, now: float | None) -> Held:
    """Return how much would run at once if this pause alone were taken away."""
    at = clock(conn, now)
    others = not_(and_(pauses.c.scope == scope, pauses.c.name == name))
    is_open = select(events.c.state).where(events.c.event_id == evidence.c.event_id).scalar_subquery() == "open"
    spoken_for = exists().where(deliveries.c.event_id == evidence.c.event_id, is_spoken_for())
    waiting = [
        is_waiting(evidence),
        evidence.c.next_attempt_at <= at,
        is_open,
        ~spoken_for,
        ~is_paused(evidence.c.site_id, evidence.c.provider, at, others),
    ]
    sends = [
        is_waiting(deliveries),
        deliveries.c.next_attempt_at <= at,
        deliveries.c.in_doubt.is_(False),
        ~is_paused(deliveries.c.site_id, None, at, others),
    ]
    if scope == "site":
        waiting.append(evidence.c.site_id == name)
        sends.append(deliveries.c.site_id == name)
    if scope == "provider":
        waiting.append(evidence.c.provider == name)
    counted = {
        "evidence": select(func.count()).select_from(evidence).where(*waiting),
        "deliveries": select(func.count()).select_from(deliveries).where(*sends),
    }
    row = conn.execute(select(*(each.scalar_subquery().label(what) for what, each in counted.items()))).one()
    return Held(evidence=row.evidence, deliveries=0 if scope == "provider" else row.deliveries)


# --- conditions for claims and sweeps ---------------------------------------------------------------------------------


def is_all_paused(at: ColumnElement[float]) -> ColumnElement[bool]:
    """Return the condition that everything is paused."""
    return exists().where(pauses.c.scope == "all", _is_in_force(at))


def paused_names(scope: Scope, at: ColumnElement[float]) -> Select[tuple[str]]:
    """Return the names of the sites or of the routes that are paused."""
    return select(pauses.c.name).where(pauses.c.scope == scope, _is_in_force(at))


def is_paused(
    site_id: ColumnElement[Any],
    provider: ColumnElement[Any] | None,
    at: ColumnElement[float],
    *where: ColumnElement[bool],
) -> ColumnElement[bool]:
    """Return the condition that a pause keeps a row of this site (and route) back; `where` narrows the pauses."""
    covers = [pauses.c.scope == "all", and_(pauses.c.scope == "site", pauses.c.name == site_id)]
    if provider is not None:
        covers.append(and_(pauses.c.scope == "provider", pauses.c.name == provider))
    return exists().where(or_(*covers), _is_in_force(at), *where).correlate_except(pauses)


def covering(found: Iterable[Pause], site_id: str, providers: Iterable[str]) -> tuple[Pause, ...]:
    """Return those pauses that keep back work of a site or of one of these routes."""
    routes = frozenset(providers)
    named = {"site": {site_id}, "provider": routes}
    return tuple(one for one in found if one.scope == "all" or one.name in named[one.scope])


def _is_in_force(at: ColumnElement[float]) -> ColumnElement[bool]:
    return or_(pauses.c.until_at.is_(None), pauses.c.until_at > at)
