"""Evidence rows for the tests of the store: keys, damaged rows, and proof that a refusal wrote nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, select, text

from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceKey
from worker.store.engine import reading
from worker.store.schema import evidence, evidence_history, jobs, setbacks

HASH = "a" * 64
OTHER_HASH = "b" * 64


def key(name: str = "1", **changed: Any) -> EvidenceKey:
    """Return a key whose binding is its own, unless changed."""
    whole = {
        "request_id": f"evidence-{name}",
        "event_id": "event-1",
        "plan_id": "plan-1",
        "job_id": f"job-{name}",
        "result_sha256": HASH,
        "evidence_revision": "r1",
    }
    return EvidenceKey(**{**whole, **changed})


def row(engine: Engine, request_id: str = "evidence-1") -> dict[str, Any]:
    """Return an evidence row as it is stored."""
    with reading(engine) as conn:
        query = select(evidence).where(evidence.c.request_id == request_id)
        return dict(conn.execute(query).mappings().one())


def setbacks_of(engine: Engine, subject_id: str = "evidence-1") -> list[tuple[Any, ...]]:
    """Return (attempt, owner, outcome, code, ended at) of each setback of a row, oldest first."""
    s = setbacks.c
    query = (
        select(s.attempt, s.lease_owner, s.outcome, s.code, s.ended_at)
        .where(s.subject_id == subject_id)
        .order_by(s.setback_id)
    )
    with reading(engine) as conn:
        return [tuple(found) for found in conn.execute(query)]


def damage(engine: Engine, assignment: str, request_id: str = "evidence-1") -> None:
    """Change a stored row behind the machine's back."""
    with engine.begin() as conn:
        changed = conn.execute(text(f"UPDATE evidence SET {assignment} WHERE request_id = '{request_id}'"))
        assert changed.rowcount == 1


def contents(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Return everything that the machine may write, as text, so that NaN compares."""
    with reading(engine) as conn:
        return {
            table.name: sorted([tuple(map(repr, found)) for found in conn.execute(select(table))])
            for table in (evidence, evidence_history, setbacks, jobs)
        }


@contextmanager
def refused(engine: Engine, code: str, *, retryable: bool = False) -> Iterator[None]:
    """Hold that the body is refused with exactly this code, and that nothing at all was written."""
    before = contents(engine)
    with pytest.raises(Blocked) as caught:
        yield
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert contents(engine) == before
