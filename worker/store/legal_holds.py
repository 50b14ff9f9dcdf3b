"""Legal holds as rows: what may not be removed, on whose word and why. A released hold stays as a row.

Placing one waits for the batch that a pruning is removing; once it is committed, nothing of it is removed any more.
"""

from __future__ import annotations

import secrets
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, insert, or_, select, update

from worker.domain.errors import Blocked, Invalid
from worker.domain.retention import HoldScope, LegalHold, check_hold_words
from worker.store.engine import clock
from worker.store.operator_requests import once
from worker.store.prunings import wait_for_batches
from worker.store.schema import events, legal_holds

COLUMNS = tuple(legal_holds.c[one.name] for one in fields(LegalHold))


def place_hold(
    conn: Connection, *, scope: HoldScope, name: str, reason: str, owner: str, request_id: str, now: float | None
) -> tuple[LegalHold, bool]:
    """Place a hold on a site or an event that is known; return it, and false where this request had placed it before.

    Raises `hold.name.unknown`, `Invalid`, and `operator.request_id.collision`; nothing is written then.
    """
    said = check_hold_words(reason, owner)
    is_it = events.c.site_id == name if scope == "site" else events.c.event_id == name
    if conn.execute(select(events.c.event_id).where(is_it).limit(1)).first() is None:
        raise Invalid("hold.name.unknown", f"no event of such a {scope} was accepted yet", path="name")
    wait_for_batches(conn)

    def work() -> dict[str, str]:
        hold_id = f"hold-{secrets.token_hex(8)}"
        row = {"hold_id": hold_id, "scope": scope, "name": name, "reason": said, "owner": owner}
        conn.execute(insert(legal_holds).values(**row, placed_at=clock(conn, now)))
        return {"hold_id": hold_id}

    arguments = {"scope": scope, "name": name, "reason": said, "owner": owner}
    answer, is_new = once(conn, request_id, "hold.place", arguments, work, now=now)
    return find_hold(conn, answer["hold_id"]), is_new


def release_hold(
    conn: Connection, hold_id: str, *, reason: str, owner: str, request_id: str, now: float | None
) -> tuple[LegalHold, bool]:
    """Release a hold; return it, and false where it had been released before: the first word is kept.

    Raises `hold.unknown`, `Invalid`, and `operator.request_id.collision`; nothing is written then.
    """
    said = check_hold_words(reason, owner)
    find_hold(conn, hold_id)

    def work() -> dict[str, bool]:
        released = {"released_at": clock(conn, now), "released_by": owner, "release_reason": said}
        is_it = and_(legal_holds.c.hold_id == hold_id, legal_holds.c.released_at.is_(None))
        return {"released": conn.execute(update(legal_holds).where(is_it).values(**released)).rowcount == 1}

    arguments = {"hold_id": hold_id, "reason": said, "owner": owner}
    answer, is_new = once(conn, request_id, "hold.release", arguments, work, now=now)
    return find_hold(conn, hold_id), is_new and bool(answer["released"])


def find_hold(conn: Connection, hold_id: str) -> LegalHold:
    """Return a hold; raise `hold.unknown` where there is none."""
    row = conn.execute(select(*COLUMNS).where(legal_holds.c.hold_id == hold_id)).mappings().one_or_none()
    if row is None:
        raise Blocked("hold.unknown", "there is no such hold; see locseal hold list --all")
    return LegalHold(**row)


def list_holds(conn: Connection, *, with_released: bool = False) -> tuple[LegalHold, ...]:
    """Return the holds in force, oldest first; with the released ones on request."""
    query = select(*COLUMNS).order_by(legal_holds.c.placed_at, legal_holds.c.hold_id)
    if not with_released:
        query = query.where(legal_holds.c.released_at.is_(None))
    return tuple(LegalHold(**row) for row in conn.execute(query).mappings())


# --- conditions for what is removed -----------------------------------------------------------------------------------


def any_hold() -> ColumnElement[bool]:
    """Return the condition that any hold is in force."""
    return exists().where(legal_holds.c.released_at.is_(None))


def is_event_held(event_id: ColumnElement[Any], site_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that a hold in force keeps an event, by itself or with its site."""
    by_site = and_(legal_holds.c.scope == "site", legal_holds.c.name == site_id)
    by_event = and_(legal_holds.c.scope == "event", legal_holds.c.name == event_id)
    return exists().where(legal_holds.c.released_at.is_(None), or_(by_site, by_event)).correlate_except(legal_holds)


def is_site_touched(site_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that a hold in force keeps a site, or any event of it."""
    held = select(events.c.site_id).where(events.c.event_id == legal_holds.c.name).scalar_subquery()
    by_site = and_(legal_holds.c.scope == "site", legal_holds.c.name == site_id)
    by_event = and_(legal_holds.c.scope == "event", held == site_id)
    return exists().where(legal_holds.c.released_at.is_(None), or_(by_site, by_event)).correlate_except(legal_holds)
