"""Commands of operators that must take effect once: the first one's answer is kept under its request id."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection, select, update

from worker.domain.canonical import hash_of
from worker.domain.errors import Blocked
from worker.store.engine import clock
from worker.store.schema import operator_requests
from worker.store.upserts import insert_into

COLLISION = "operator.request_id.collision"


def once(
    conn: Connection,
    request_id: str,
    command: str,
    arguments: Mapping[str, Any],
    work: Callable[[], Mapping[str, Any]],
    *,
    now: float | None,
) -> tuple[dict[str, Any], bool]:
    """Do a command's work and keep its answer, or return the answer that was kept; true where it was done now.

    In the transaction of the work. Two that come at once wait for each other. Raises `operator.request_id.collision`
    where the id was used for something else.
    """
    digest = hash_of({"command": command, **arguments})
    begun = conn.execute(
        insert_into(conn, operator_requests)
        .values(
            request_id=request_id, command=command, arguments_sha256=digest, answer="", requested_at=clock(conn, now)
        )
        .on_conflict_do_nothing()
        .returning(operator_requests.c.request_id)
    )
    of_request = operator_requests.c.request_id == request_id
    if begun.first() is None:
        kept = conn.execute(select(operator_requests).where(of_request)).mappings().one()
        if kept["arguments_sha256"] != digest:
            raise Blocked(COLLISION, "this request id was used for another command; leave it out, or give a new one")
        known: dict[str, Any] = json.loads(kept["answer"])
        return known, False
    answer = dict(work())
    conn.execute(update(operator_requests).where(of_request).values(answer=json.dumps(answer, sort_keys=True)))
    return answer, True
