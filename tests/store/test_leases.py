"""The machine itself, over many rows at once and over deliveries: each row stands on its own token."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, Float, cast, insert, literal, select, text, update

from tests.store.rows import HASH, setbacks_of
from worker.domain.attempt import (
    STATUSES,
    backoff_seconds,
    due_after,
    is_sound,
)
from worker.domain.errors import Blocked
from worker.store.conditions import due_at, is_row_sound
from worker.store.engine import is_sqlite, reading, writing
from worker.store.leases import DELIVERIES, EVIDENCE
from worker.store.schema import deliveries, evidence
from worker.store.setbacks import Ending

FREE: dict[str, Any] = {"lease_owner": None, "lease_token": None, "lease_expires_at": None}


def put_evidence(engine: Engine, *names: str, **changed: Any) -> None:
    """Insert leased evidence rows, each under its own token."""
    with engine.begin() as conn:
        for name in names:
            whole = {
                "request_id": name,
                "event_id": "event-1",
                "plan_id": "plan-1",
                "job_id": f"job-{name}",
                "result_sha256": HASH,
                "evidence_revision": "r1",
                "status": "leased",
                "attempts": 1,
                "max_attempts": 3,
                "next_attempt_at": 100.0,
                "lease_owner": "w-1",
                "lease_token": f"token-{name}",
                "lease_expires_at": 110.0,
                "created_at": 1.0,
                "updated_at": 100.0,
            }
            conn.execute(insert(evidence).values({**whole, **changed}))


def put_delivery(engine: Engine, **changed: Any) -> None:
    """Insert one leased delivery."""
    whole = {
        "delivery_id": "delivery-1",
        "event_id": "event-1",
        "site_id": "site-a",
        "source_id": "source-1",
        "source_sequence": 1,
        "plan_id": "plan-1",
        "payload": "{}",
        "payload_sha256": HASH,
        "signature": "s",
        "kid": "k",
        "status": "leased",
        "attempts": 1,
        "max_attempts": 3,
        "next_attempt_at": 100.0,
        "lease_owner": "w-1",
        "lease_token": "token-1",
        "lease_expires_at": 110.0,
        "created_at": 1.0,
        "updated_at": 100.0,
        "in_doubt": False,
        "lookups": 0,
    }
    with engine.begin() as conn:
        conn.execute(insert(deliveries).values({**whole, **changed}))


def ending(name: str, **changed: Any) -> Ending:
    return Ending(**{"row_id": name, "owner": "w-1", "token": f"token-{name}", **changed})


def states(engine: Engine) -> dict[str, tuple[Any, ...]]:
    """Return status, attempts, due time, error and update of every evidence row."""
    e = evidence.c
    query = select(e.request_id, e.status, e.attempts, e.next_attempt_at, e.last_error_code, e.updated_at)
    with reading(engine) as conn:
        return {found[0]: tuple(found[1:]) for found in conn.execute(query)}


def delivery(engine: Engine) -> Any:
    with reading(engine) as conn:
        return conn.execute(select(deliveries)).mappings().one()


# --- many rows ------------------------------------------------------------------------------------------------------


def test_many_successes_are_one_statement_and_each_stands_alone(engine: Engine) -> None:
    """Rows whose lease is lost, over, another's or damaged are not among the returned, and stay as they are."""
    put_evidence(engine, "a", "b", "stranger", "namesake", "damaged")
    put_evidence(engine, "over", lease_expires_at=105.0)
    put_evidence(engine, "waiting", status="retry_wait", **FREE)
    with engine.begin() as conn:
        conn.execute(text("UPDATE evidence SET attempts = 9 WHERE request_id = 'damaged'"))
    before = states(engine)
    endings = [ending(name) for name in ("a", "over", "waiting", "damaged", "gone", "b")]
    endings += [ending("stranger", token="other"), ending("namesake", owner="w-2")]
    done = writing(engine, lambda conn: EVIDENCE.succeed(conn, endings, now=105.0))
    assert done == {"a", "b"}
    after = states(engine)
    assert after["a"] == after["b"] == ("succeeded", 1, 105.0, None, 105.0)
    assert {name: after[name] for name in after if name not in done} == {
        name: before[name] for name in before if name not in done
    }
    assert writing(engine, lambda conn: EVIDENCE.succeed(conn, endings, now=105.0)) == frozenset()


def test_many_failures_each_end_in_their_own_way(engine: Engine) -> None:
    """Code, retryability, wait and exhaustion are each row's own; each leaves its line."""
    put_evidence(engine, "again", "later", "terminal")
    put_evidence(engine, "last", attempts=3)
    endings = [
        ending("again", code="evidence.unavailable"),
        ending("later", code="evidence.busy", not_before=150.5),
        ending("terminal", code="evidence.response.invalid", is_retryable=False),
        ending("last", code="evidence.unavailable"),
        ending("gone", code="evidence.unavailable"),
    ]
    moved = writing(engine, lambda conn: EVIDENCE.fail(conn, endings, now=105.0))
    assert moved == {"again": "retry_wait", "later": "retry_wait", "terminal": "failed", "last": "failed"}
    assert states(engine) == {
        "again": ("retry_wait", 1, 110.0, "evidence.unavailable", 105.0),
        "later": ("retry_wait", 1, 150.5, "evidence.busy", 105.0),
        "terminal": ("failed", 1, 105.0, "evidence.response.invalid", 105.0),
        "last": ("failed", 3, 105.0, "evidence.unavailable", 105.0),
    }
    assert setbacks_of(engine, "last") == [(3, "w-1", "failed", "evidence.unavailable", 105.0)]
    assert setbacks_of(engine, "later") == [(1, "w-1", "retry_wait", "evidence.busy", 105.0)]
    assert setbacks_of(engine, "gone") == []


def test_many_releases_give_their_attempts_back(engine: Engine) -> None:
    """Each row waits until its own time, with one attempt less than it had under the lease."""
    put_evidence(engine, "a", attempts=3)
    put_evidence(engine, "b", attempts=1)
    put_evidence(engine, "zero", attempts=0)
    endings = [
        ending(name, code="worker.drain", not_before=at) for name, at in (("a", 1.5), ("b", 9000.0), ("zero", 2.0))
    ]
    done = writing(engine, lambda conn: EVIDENCE.release(conn, endings, now=105.0))
    assert done == {"a", "b", "zero"}
    assert states(engine) == {
        "a": ("retry_wait", 2, 1.5, "worker.drain", 105.0),
        "b": ("retry_wait", 0, 9000.0, "worker.drain", 105.0),
        "zero": ("retry_wait", 0, 2.0, "worker.drain", 105.0),
    }
    assert setbacks_of(engine, "a") == [(3, "w-1", "released", "worker.drain", 105.0)]


def test_nothing_to_settle_asks_nothing(engine: Engine) -> None:
    """An empty batch moves no row."""
    put_evidence(engine, "a")
    before = states(engine)
    assert writing(engine, lambda conn: EVIDENCE.succeed(conn, [], now=105.0)) == frozenset()
    assert writing(engine, lambda conn: EVIDENCE.fail(conn, [], now=105.0)) == {}
    assert writing(engine, lambda conn: EVIDENCE.release(conn, [], now=105.0)) == frozenset()
    assert states(engine) == before


# --- expiry ---------------------------------------------------------------------------------------------------------


def test_leases_that_ran_out_are_taken_away(engine: Engine) -> None:
    """From the very expiry on; live leases and damaged rows stay; the exhausted fail."""
    put_evidence(engine, "over", lease_expires_at=105.0)
    put_evidence(engine, "last", lease_expires_at=104.0, attempts=3)
    put_evidence(engine, "live", lease_expires_at=105.5)
    put_evidence(engine, "damaged", lease_expires_at=104.0, attempts=9)
    moved = writing(engine, lambda conn: EVIDENCE.expire(conn, now=105.0))
    assert moved == {"over": "retry_wait", "last": "failed"}
    found = states(engine)
    assert found["over"] == ("retry_wait", 1, 105.0, "lease_expired", 105.0)
    assert found["last"] == ("failed", 3, 105.0, "lease_expired", 105.0)
    assert (found["live"][0], found["damaged"][0]) == ("leased", "leased")
    assert setbacks_of(engine, "over") == [(1, "w-1", "retry_wait", "lease_expired", 105.0)]
    assert writing(engine, lambda conn: EVIDENCE.expire(conn, now=105.0)) == {}


def test_an_expiry_that_was_read_earlier_changes_no_newer_state(engine: Engine) -> None:
    """The sweeper reads, the worker completes or takes over anew, the sweeper writes: 0 rows changed."""
    put_evidence(engine, "done", "renewed", lease_expires_at=105.0)
    with reading(engine) as conn:
        stale = conn.execute(select(evidence).order_by(evidence.c.request_id)).mappings().all()
    writing(engine, lambda conn: EVIDENCE.succeed(conn, [ending("done")], now=104.0))
    with engine.begin() as conn:
        conn.execute(update(evidence).where(evidence.c.request_id == "renewed").values(lease_token="newer"))
    before = states(engine)
    assert writing(engine, lambda conn: EVIDENCE.expire_rows(conn, stale, now=105.0)) == {}
    put_evidence(engine, "live")
    with reading(engine) as conn:
        live = conn.execute(select(evidence).where(evidence.c.request_id == "live")).mappings().all()
    assert writing(engine, lambda conn: EVIDENCE.expire_rows(conn, live, now=109.0)) == {}
    with engine.begin() as conn:
        conn.execute(text("DELETE FROM evidence WHERE request_id = 'live'"))
    assert states(engine) == before
    assert setbacks_of(engine, "done") == []


def test_an_expiry_takes_no_more_than_asked(engine: Engine) -> None:
    """The oldest first, so that a sweep stays short."""
    for number in range(5):
        put_evidence(engine, f"e-{number}", lease_expires_at=101.0 + number)
    assert set(writing(engine, lambda conn: EVIDENCE.expire(conn, now=200.0, most=2))) == {"e-0", "e-1"}
    assert len(writing(engine, lambda conn: EVIDENCE.expire(conn, now=200.0))) == 3


# --- deliveries -----------------------------------------------------------------------------------------------------


def test_a_delivery_moves_by_the_same_machine(engine: Engine) -> None:
    """Claim, failure, back-off, exhaustion: the states and times of evidence, under its own name."""
    put_delivery(engine, status="pending", attempts=0, **FREE)
    for attempt, now in ((1, 100.0), (2, 110.0), (3, 120.0)):
        taken = writing(
            engine,
            lambda conn, now=now: DELIVERIES.take(conn, "delivery-1", worker_id="w-1", lease_seconds=5, now=now),
        )
        assert taken is not None
        assert (taken["attempts"], taken["lease_expires_at"]) == (attempt, now + 5)
        mine = Ending(row_id="delivery-1", owner="w-1", token=taken["lease_token"], code="cms.unavailable")
        moved = writing(engine, lambda conn, mine=mine, now=now: DELIVERIES.fail(conn, [mine], now=now))
        assert moved == {"delivery-1": "failed" if attempt == 3 else "retry_wait"}
    assert (delivery(engine)["status"], delivery(engine)["last_error_code"]) == ("failed", "cms.unavailable")
    assert [line[2] for line in setbacks_of(engine, "delivery-1")] == ["retry_wait", "retry_wait", "failed"]


def test_a_claim_changes_other_columns_in_the_same_update(engine: Engine) -> None:
    """In doubt before anything is sent; a condition of the caller's that does not hold takes nothing."""
    put_delivery(engine, status="pending", attempts=0, **FREE)
    arguments: dict[str, Any] = {"worker_id": "w-1", "lease_seconds": 5, "now": 100.0}
    is_doubted = deliveries.c.in_doubt.is_(True)
    refused = writing(engine, lambda conn: DELIVERIES.take(conn, "delivery-1", where=[is_doubted], **arguments))
    assert (refused, delivery(engine)["status"]) == (None, "pending")
    changed = {"in_doubt": True, "sent_at": 100.0}
    taken = writing(engine, lambda conn: DELIVERIES.take(conn, "delivery-1", values=changed, **arguments))
    assert taken is not None
    assert (taken["in_doubt"], taken["sent_at"], taken["attempts"]) == (True, 100.0, 1)


def test_a_look_up_is_no_attempt(engine: Engine) -> None:
    """A claim that is not counted is possible with every attempt used, and leaves their number alone."""
    put_delivery(engine, status="retry_wait", attempts=3, in_doubt=True, **FREE)
    arguments: dict[str, Any] = {"worker_id": "w-1", "lease_seconds": 5, "now": 100.0}
    assert writing(engine, lambda conn: DELIVERIES.take(conn, "delivery-1", **arguments)) is None
    taken = writing(engine, lambda conn: DELIVERIES.take(conn, "delivery-1", is_counted=False, **arguments))
    assert taken is not None
    assert taken["attempts"] == 3


def test_a_delivery_in_doubt_is_never_used_up(engine: Engine) -> None:
    """Neither a failure nor an expiry fails it while nobody knows what became of it; a definite end does."""
    put_delivery(engine, attempts=3, in_doubt=True)
    mine = Ending(row_id="delivery-1", owner="w-1", token="token-1", code="cms.unavailable")
    assert writing(engine, lambda conn: DELIVERIES.fail(conn, [mine], now=105.0)) == {"delivery-1": "retry_wait"}
    assert delivery(engine)["next_attempt_at"] == 125.0
    with engine.begin() as conn:
        conn.execute(text("DELETE FROM deliveries"))
    put_delivery(engine, attempts=3, in_doubt=True)
    assert writing(engine, lambda conn: DELIVERIES.expire(conn, now=110.0)) == {"delivery-1": "retry_wait"}
    assert delivery(engine)["in_doubt"] is True
    with engine.begin() as conn:
        conn.execute(text("DELETE FROM deliveries"))
    put_delivery(engine, attempts=3, in_doubt=True)
    certain = {"in_doubt": False}
    moved = writing(engine, lambda conn: DELIVERIES.fail(conn, [mine], now=105.0, values=certain))
    assert moved == {"delivery-1": "failed"}
    assert delivery(engine)["in_doubt"] is False


def test_a_damaged_delivery_has_its_own_code(engine: Engine) -> None:
    """It stops the operation and is left as it is."""
    put_delivery(engine, attempts=4)
    before = delivery(engine)
    with pytest.raises(Blocked) as caught:
        writing(engine, lambda conn: DELIVERIES.lock(conn, "delivery-1"))
    assert caught.value.code == "cms.delivery.invalid"
    mine = Ending(row_id="delivery-1", owner="w-1", token="token-1", code="cms.unavailable")
    assert writing(engine, lambda conn: DELIVERIES.succeed(conn, [mine], now=105.0)) == frozenset()
    assert delivery(engine) == before


# --- the same rules in SQL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("not_before", [None, 0.0, 104.0, 110.0, 130.25, 3705.0, 3705.5, 1e12])
def test_the_wait_in_sql_is_the_wait_of_the_domain(engine: Engine, not_before: float | None) -> None:
    """For every number of attempts, to the last bit."""
    put_evidence(engine, *(f"e-{n:02}" for n in range(21)), max_attempts=20)
    with engine.begin() as conn:
        for number in range(21):
            conn.execute(update(evidence).where(evidence.c.request_id == f"e-{number:02}").values(attempts=number))
    with reading(engine) as conn:
        given_time = cast(literal(not_before, Float), Float)
        rows = conn.execute(
            select(evidence.c.attempts, due_at(evidence, conn, 105.0, given_time)).order_by(evidence.c.attempts)
        ).all()
    assert [tuple(found) for found in rows] == [(n, due_after(n, 105.0, not_before)) for n in range(21)]
    assert backoff_seconds(1) == 5.0


TOKENS = st.sampled_from(["a", "A-z_0.9:", "x" * 256, "x" * 257, "", "a b", "ü", "a\n"])
TIMES = st.sampled_from([0.0, 100.0, 110.0, 1e308, -1.0, float("inf"), float("nan")])
MAYBE = st.one_of(st.none(), TOKENS)
ROWS = st.fixed_dictionaries(
    {
        "event_id": TOKENS,
        "evidence_revision": TOKENS,
        "result_sha256": st.sampled_from(["a" * 64, "0123456789abcdef" * 4, "A" * 64, "a" * 63, "a" * 65]),
        "status": st.sampled_from([*STATUSES, "other"]),
        "attempts": st.sampled_from([-1, 0, 1, 3, 20, 21]),
        "max_attempts": st.sampled_from([0, 1, 3, 20, 21]),
        "next_attempt_at": TIMES,
        "created_at": TIMES,
        "updated_at": TIMES,
        "lease_owner": MAYBE,
        "lease_token": MAYBE,
        "lease_expires_at": st.one_of(st.none(), TIMES),
        "last_error_code": st.sampled_from(
            [None, "a", "evidence.unavailable", "a" * 128, "a" * 129, "A", "1a", "a\n", ""]
        ),
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changed=ROWS, kept_right=st.sets(st.integers(0, 12), min_size=9))
def test_soundness_in_sql_is_soundness_of_the_domain(
    engine: Engine, changed: dict[str, Any], kept_right: set[int]
) -> None:
    """The two give the same verdict on every waiting or leased row."""
    right = {
        "event_id": "event-1",
        "evidence_revision": "r1",
        "result_sha256": HASH,
        "status": "leased",
        "attempts": 1,
        "max_attempts": 3,
        "next_attempt_at": 100.0,
        "created_at": 1.0,
        "updated_at": 1.0,
        "lease_owner": "w",
        "lease_token": "t",
        "lease_expires_at": 110.0,
        "last_error_code": None,
    }
    for place, name in enumerate(right):
        if place in kept_right:
            changed = {**changed, name: right[name]}
    if changed["status"] in ("succeeded", "failed", "other"):
        changed = {**changed, "status": "pending"}
    if is_sqlite(engine):  # it stores NaN as NULL, which the columns refuse
        changed = {name: 0.0 if repr(value) == "nan" else value for name, value in changed.items()}
    with engine.begin() as conn:
        conn.execute(text("DELETE FROM evidence"))
    put_evidence(engine, "e-1", **changed)
    with reading(engine) as conn:
        verdict = is_row_sound(evidence, tokens=EVIDENCE.tokens, hashes=EVIDENCE.hashes, of_sqlite=is_sqlite(engine))
        found, stored = conn.execute(select(verdict)).scalar_one(), conn.execute(select(evidence)).mappings().one()
    assert bool(found) == is_sound(stored, tokens=EVIDENCE.tokens, hashes=EVIDENCE.hashes)
