"""The outbox's rows and their leases: one open delivery, one claim, settles that only the holder can make."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, Table, insert, select, update
from sqlalchemy.event import listen

from tests.builders import NOW
from worker.domain.delivery import CmsAnswer
from worker.domain.turn import ACCEPTED, UNKNOWN, Ask, Close, Over, Promise, Send, Settlement, Wait
from worker.store.deliveries import (
    Prepared,
    close_superseded,
    close_unsent,
    find_delivery,
    insert_delivery,
    lock_event,
    retire_failed,
)
from worker.store.delivery_answers import Answer, Word, word_of
from worker.store.due import stamp_due_deliveries, stamp_due_evidence
from worker.store.engine import reading, writing
from worker.store.schema import (
    approvals,
    deliveries,
    delivery_answers,
    delivery_history,
    events,
    jobs,
    setbacks,
    sources,
)
from worker.store.sends import SendLease, send_again, settle, take_turn
from worker.store.standings import Terms
from worker.store.unprepared import stamp_ready_events

HASH = "a" * 64
Rows = Callable[[Table], list[dict[str, Any]]]
LOOKS = Promise(has_lookup=True, is_idempotent=False)


@pytest.fixture
def rows(engine: Engine) -> Rows:
    """A reader of whole tables, in the order of their primary keys."""

    def read(table: Table) -> list[dict[str, Any]]:
        with reading(engine) as conn:
            found = conn.execute(select(table).order_by(*table.primary_key.columns)).mappings()
            return [dict(row) for row in found]

    return read


def event_row(event_id: str = "e-1", **changes: Any) -> dict[str, Any]:
    """Return an open event."""
    row = {
        "event_id": event_id,
        "site_id": "site-1",
        "website_version": "v1",
        "source_id": "s-1",
        "source_sequence": 1,
        "plan_id": "plan-1",
        "event_sha256": HASH,
        "document": "{}",
        "state": "open",
        "created_at": NOW,
        "updated_at": NOW,
    }
    return row | changes


@pytest.fixture
def event(engine: Engine) -> None:
    """An open event whose one job has a current approval `a-1` until `NOW + 1000`."""
    job = {
        "job_id": "j-1",
        "site_id": "site-1",
        "target_locale": "de",
        "current_result_sha256": HASH,
        "created_at": NOW,
        "updated_at": NOW,
    }
    approval = {
        "approval_id": "a-1",
        "job_id": "j-1",
        "site_id": "site-1",
        "result_sha256": HASH,
        "target_sha256": HASH,
        "request_id": "q-1",
        "policy_sha256": HASH,
        "approved_at": NOW,
        "expires_at": NOW + 1000,
        "document": "{}",
        "signature": "x",
        "kid": "k",
    }

    def work(conn: Any) -> None:
        conn.execute(insert(sources).values(site_id="site-1", source_id="s-1", created_at=NOW))
        conn.execute(insert(events).values(event_row()))
        conn.execute(insert(jobs).values(job))
        conn.execute(insert(approvals).values(approval))

    writing(engine, work)


def prepared(delivery_id: str = "d-1", event_id: str = "e-1", **changes: Any) -> Prepared:
    """Return a publication that is ready to be stored."""
    values = {
        "delivery_id": delivery_id,
        "event_id": event_id,
        "site_id": "site-1",
        "source_id": "s-1",
        "source_sequence": 1,
        "plan_id": "plan-1",
        "payload": "{}",
        "payload_sha256": HASH,
        "signature": "x",
        "kid": "k",
        "max_attempts": 5,
    }
    return Prepared(**(values | changes))


def store(engine: Engine, one: Prepared, *approval_ids: str, now: float = NOW) -> bool:
    """Insert a delivery as the preparer does."""

    def work(conn: Any) -> bool:
        lock_event(conn, one.event_id)
        return insert_delivery(conn, one, approval_ids, now=now)

    return writing(engine, work)


def terms(**changes: Any) -> Terms:
    """Return the terms of a worker for `d-1`."""
    values: dict[str, Any] = {
        "delivery_id": "d-1",
        "site_id": "site-1",
        "source_id": "s-1",
        "approval_ids": ("a-1",),
        "approvals_code": None,
        "worker_id": "w-1",
        "lease_seconds": 300.0,
        "send_seconds": 30.0,
        "is_guided": False,
        "promise": LOOKS,
        "jitter": 0.0,
    }
    return Terms(**(values | changes))


def turn(engine: Engine, now: float = NOW, **changes: Any) -> Any:
    """Take a turn; return it with the lease."""
    return writing(engine, lambda conn: take_turn(conn, terms(**changes), now=now))


def claimed(engine: Engine, now: float = NOW) -> SendLease:
    """Return a lease under which the delivery is being sent."""
    taken, lease = turn(engine, now)
    assert isinstance(taken, Send)
    assert isinstance(lease, SendLease)
    return lease


def word(outcome: str = "accepted") -> Word:
    """Return a verified word of a CMS."""
    answer = Answer(kind="lookup", outcome=outcome, nonce="n", document="{}", signature="x", kid="k")
    return Word(answer=answer, key=None)


def end(engine: Engine, lease: SendLease, how: Settlement, said: Word | None = None, *, now: float = NOW) -> bool:
    """Settle a lease."""
    return writing(engine, lambda conn: settle(conn, lease, how, said, now=now))


def change(engine: Engine, **values: Any) -> None:
    """Change the delivery behind the product's back."""
    writing(engine, lambda conn: conn.execute(update(deliveries).values(**values)))


# --- one delivery -------------------------------------------------------------------------------------------------------


def test_an_event_has_at_most_one_open_or_acknowledged_delivery(engine: Engine, event: None, rows: Rows) -> None:
    """A second one is not inserted, whatever its bytes; after a failure other bytes are, the same are not."""
    assert store(engine, prepared("d-1"), "a-1") is True
    for status in ("pending", "retry_wait", "succeeded"):
        change(engine, status=status)
        assert store(engine, prepared("d-1"), "a-1") is False
        assert store(engine, prepared("d-2"), "a-1") is False
    change(engine, status="failed")
    assert store(engine, prepared("d-1"), "a-1") is False
    assert store(engine, prepared("d-2"), "a-1") is True
    assert [(row["delivery_id"], row["status"]) for row in rows(deliveries)] == [("d-1", "failed"), ("d-2", "pending")]


@pytest.mark.parametrize(
    "blocked", [{"in_doubt": True}, {"last_error_code": "cms.outcome_unknown"}], ids=["in doubt", "unknown"]
)
def test_nothing_is_inserted_after_an_unknown_outcome(
    engine: Engine, event: None, rows: Rows, blocked: dict[str, Any]
) -> None:
    """Its text may be live."""
    store(engine, prepared("d-1"), "a-1")
    change(engine, status="failed", **blocked)
    assert store(engine, prepared("d-2"), "a-1") is False
    assert len(rows(deliveries)) == 1


def test_nothing_is_inserted_without_every_approval(engine: Engine, event: None, rows: Rows) -> None:
    """Missing, expired, or for a result that is no longer current."""
    assert store(engine, prepared(), "a-1", "a-2") is False
    assert store(engine, prepared(), "a-1", now=NOW + 1000) is False
    writing(engine, lambda conn: conn.execute(update(jobs).values(current_result_sha256="b" * 64)))
    assert store(engine, prepared(), "a-1") is False
    assert rows(deliveries) == []


def test_what_speaks_for_an_event_is_the_open_delivery_else_the_newest(engine: Engine, event: None) -> None:
    """A failed one only where there is no other."""
    store(engine, prepared("d-1"), "a-1")
    change(engine, status="failed")
    store(engine, prepared("d-2"), "a-1", now=NOW + 1)
    change(engine, status="failed")
    with reading(engine) as conn:
        found = find_delivery(conn, "e-1")
        assert found is not None
        assert found.delivery_id == "d-2"
        assert find_delivery(conn, "e-9") is None
    writing(
        engine,
        lambda conn: conn.execute(
            update(deliveries).where(deliveries.c.delivery_id == "d-1").values(status="succeeded")
        ),
    )
    with reading(engine) as conn:
        found = find_delivery(conn, "e-1")
        assert found is not None
        assert found.delivery_id == "d-1"


@pytest.mark.parametrize(
    ("values", "is_closed"),
    [
        ({"status": "pending"}, True),
        ({"status": "retry_wait"}, True),
        ({"status": "retry_wait", "in_doubt": True}, False),
        ({"status": "leased", "in_doubt": True}, False),
        ({"status": "succeeded"}, False),
        ({"status": "failed"}, False),
    ],
)
def test_only_what_was_certainly_not_sent_is_closed(
    engine: Engine, event: None, rows: Rows, values: dict[str, Any], *, is_closed: bool
) -> None:
    """A leased or in-doubt delivery keeps its row."""
    store(engine, prepared(), "a-1")
    change(engine, **values)
    before = rows(deliveries)
    closed = writing(engine, lambda conn: close_superseded(conn, ["e-1", "e-2"], now=NOW + 9))
    (row,) = rows(deliveries)
    if is_closed:
        assert closed == ("e-1",)
        assert (row["status"], row["last_error_code"], row["next_attempt_at"]) == ("failed", "superseded", NOW + 9)
    else:
        assert (closed, [row]) == ((), before)


def test_a_close_keeps_its_reason(engine: Engine, event: None, rows: Rows) -> None:
    """Withdrawn, replaced, renewed: the caller's word."""
    store(engine, prepared(), "a-1")
    assert writing(engine, lambda conn: close_unsent(conn, ["e-1"], "withdrawn", now=NOW)) == ("e-1",)
    assert rows(deliveries)[0]["last_error_code"] == "withdrawn"


def test_failed_deliveries_are_retired_all_or_none(engine: Engine, event: None, rows: Rows) -> None:
    """One of unknown outcome keeps all of them where they are."""
    store(engine, prepared("d-1"), "a-1")
    change(engine, status="failed", last_error_code="cms.x")
    store(engine, prepared("d-2"), "a-1")
    change(engine, status="failed", last_error_code="cms.x")
    writing(
        engine,
        lambda conn: conn.execute(
            update(deliveries).where(deliveries.c.delivery_id == "d-2").values(last_error_code="cms.outcome_unknown")
        ),
    )
    assert writing(engine, lambda conn: retire_failed(conn, "e-1", now=NOW)) == ()
    assert (len(rows(deliveries)), rows(delivery_history)) == (2, [])
    change(engine, last_error_code="cms.x")
    assert writing(engine, lambda conn: retire_failed(conn, "e-1", now=NOW)) == ("d-1", "d-2")
    assert (rows(deliveries), [row["delivery_id"] for row in rows(delivery_history)]) == ([], ["d-1", "d-2"])


# --- one claim ----------------------------------------------------------------------------------------------------------


def test_many_workers_at_once_claim_once(engine: Engine, event: None, rows: Rows) -> None:
    """Each of the others finds the lease taken; one attempt is counted."""
    store(engine, prepared(), "a-1")
    start = threading.Barrier(8)
    turns: list[Any] = []

    def take(worker: int) -> None:
        start.wait()
        turns.append(turn(engine, worker_id=f"w-{worker}")[0])

    threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, Send) for one in turns) == 1
    assert turns.count(Wait(reason="leased")) == 7
    assert (rows(deliveries)[0]["attempts"], rows(deliveries)[0]["in_doubt"]) == (1, True)


def test_a_claim_names_its_lease_in_one_update(engine: Engine, event: None, rows: Rows) -> None:
    """Token, owner, expiry, doubt and the time of the send stand together; a due time stays."""
    store(engine, prepared(), "a-1")
    lease = claimed(engine, NOW + 7)
    (row,) = rows(deliveries)
    assert (row["lease_owner"], row["lease_token"], row["lease_expires_at"]) == ("w-1", lease.token, NOW + 307)
    assert (row["in_doubt"], row["sent_at"], row["doubt_since_at"], row["next_attempt_at"]) == (
        True,
        NOW + 7,
        NOW + 7,
        NOW,
    )
    assert (lease.attempts, lease.max_attempts, lease.was_in_doubt, lease.taken_at) == (1, 5, False, NOW + 7)
    assert len(lease.token) == 64


def test_the_database_clock_judges_where_no_time_is_given(engine: Engine, event: None, rows: Rows) -> None:
    """Fresh rows are due at once, and leased for as long as asked."""
    writing(engine, lambda conn: conn.execute(update(approvals).values(expires_at=9e9)))

    def work(conn: Any) -> bool:
        return insert_delivery(conn, prepared(), ("a-1",), now=None)

    assert writing(engine, work) is True
    taken, lease = writing(engine, lambda conn: take_turn(conn, terms(), now=None))
    assert isinstance(taken, Send)
    (row,) = rows(deliveries)
    assert row["lease_expires_at"] - lease.taken_at == pytest.approx(300, abs=1)


@pytest.mark.parametrize(
    "unsettled", [{"status": "leased"}, {"in_doubt": True}, {"last_error_code": "cms.outcome_unknown"}]
)
def test_an_older_unsettled_delivery_of_the_source_holds_a_newer_one(
    engine: Engine, event: None, unsettled: dict[str, Any]
) -> None:
    """Leased, in doubt, or of unknown outcome; another source's or a newer one's does not."""
    store(engine, prepared("d-1", source_sequence=5), "a-1")
    older = {
        "delivery_id": "d-0",
        "event_id": "e-0",
        "site_id": "site-1",
        "source_id": "s-1",
        "source_sequence": 4,
        "plan_id": "p",
        "payload": "{}",
        "payload_sha256": HASH,
        "signature": "x",
        "kid": "k",
        "status": "failed",
        "attempts": 1,
        "max_attempts": 5,
        "next_attempt_at": NOW,
        "created_at": NOW,
        "updated_at": NOW,
        "in_doubt": False,
        "lookups": 0,
    }
    writing(engine, lambda conn: conn.execute(insert(deliveries).values(older | unsettled)))
    assert turn(engine) == (Wait(reason="older"), None)
    for other in ({"source_id": "s-2"}, {"site_id": "site-2"}, {"source_sequence": 6}):
        moved = update(deliveries).where(deliveries.c.delivery_id == "d-0")
        values = {"source_id": "s-1", "site_id": "site-1", "source_sequence": 4} | other
        writing(engine, lambda conn, moved=moved, values=values: conn.execute(moved.values(**values)))
        taken, lease = turn(engine)
        assert isinstance(taken, Send)
        assert end(engine, lease, Settlement(status="retry_wait", code="cms.x", in_doubt=False)) is True


def test_a_look_up_is_leased_without_counting(engine: Engine, event: None, rows: Rows) -> None:
    """It keeps the doubt, its time and the attempts."""
    store(engine, prepared(), "a-1")
    change(engine, status="retry_wait", attempts=5, in_doubt=True, sent_at=NOW - 9, doubt_since_at=NOW - 99)
    taken, lease = turn(engine)
    assert taken == Ask()
    (row,) = rows(deliveries)
    assert (row["status"], row["attempts"], row["lookups"], row["sent_at"]) == ("leased", 5, 1, NOW - 9)
    assert lease.asked(30.0).absent_counts_after == NOW + 51
    assert lease.asked(30.0).doubt_since_at == NOW - 99


def test_a_close_is_carried_out_where_it_is_decided(engine: Engine, event: None, rows: Rows) -> None:
    """Under the same lock; the next turn finds it over."""
    store(engine, prepared(), "a-1")
    closing = Close(code="release.approval.tampered")
    assert turn(engine, approvals_code=closing.code) == (closing, None)
    assert turn(engine) == (Over(status="failed", code=closing.code), None)
    assert rows(deliveries)[0]["attempts"] == 0


# --- settles ------------------------------------------------------------------------------------------------------------


def test_a_success_is_told_in_one_transaction(engine: Engine, event: None, rows: Rows) -> None:
    """Row, answer and event together."""
    store(engine, prepared(), "a-1")
    assert end(engine, claimed(engine), ACCEPTED, word(), now=NOW + 3) is True
    (row,), (found,), (said,) = rows(deliveries), rows(events), rows(delivery_answers)
    assert (row["status"], row["in_doubt"], row["acknowledged_at"], row["lease_owner"]) == (
        "succeeded",
        False,
        NOW + 3,
        None,
    )
    assert (found["state"], said["outcome"], said["answered_at"]) == ("delivered", "accepted", NOW + 3)


@pytest.mark.parametrize(
    "how",
    [
        ACCEPTED,
        UNKNOWN,
        Settlement(status="retry_wait", code="cms.x", in_doubt=True),
        Settlement(status="retry_wait", code="cms.x", in_doubt=False, is_attempt_returned=True),
    ],
)
@pytest.mark.parametrize("lost", ["expired", "other owner", "other token", "settled"])
def test_a_lost_lease_settles_nothing(engine: Engine, event: None, rows: Rows, how: Settlement, lost: str) -> None:
    """Neither the row, nor the event, nor an answer, nor a setback is written."""
    store(engine, prepared(), "a-1")
    lease = claimed(engine)
    if lost == "settled":
        assert end(engine, lease, ACCEPTED, word()) is True
    stale = {
        "expired": lease,
        "other owner": replace(lease, owner="w-2"),
        "other token": replace(lease, token="0" * 64),
        "settled": lease,
    }[lost]
    tables = (deliveries, events, delivery_answers, setbacks)
    before = [rows(table) for table in tables]
    assert end(engine, stale, how, word(), now=NOW + 300 if lost == "expired" else NOW) is False
    assert [rows(table) for table in tables] == before


def test_the_same_bytes_go_again_only_under_the_same_live_lease(engine: Engine, event: None, rows: Rows) -> None:
    """A signed absent counts a further attempt, starts a new doubt, and is kept."""
    store(engine, prepared(), "a-1")
    change(engine, status="retry_wait", attempts=1, in_doubt=True, sent_at=NOW - 99, doubt_since_at=NOW - 99)
    _, lease = turn(engine)
    again = writing(engine, lambda conn: send_again(conn, terms(), lease, word("absent"), now=NOW + 2))
    assert isinstance(again, SendLease)
    assert (again.attempts, again.was_in_doubt, again.sent_at, again.doubt_since_at) == (2, False, NOW + 2, NOW + 2)
    assert [row["outcome"] for row in rows(delivery_answers)] == ["absent"]
    before = rows(deliveries)
    stale = replace(lease, token="0" * 64)
    assert writing(engine, lambda conn: send_again(conn, terms(), stale, word("absent"), now=NOW + 3)) is None
    assert (rows(deliveries), len(rows(delivery_answers))) == (before, 1)


def test_a_lease_that_is_too_short_for_a_send_is_handed_on(engine: Engine, event: None, rows: Rows) -> None:
    """The doubt is over by the signed absent; the next claim sends."""
    store(engine, prepared(), "a-1")
    change(engine, status="retry_wait", attempts=1, in_doubt=True, sent_at=NOW - 99, doubt_since_at=NOW - 99)
    _, lease = turn(engine)
    late = NOW + 271
    follows = writing(engine, lambda conn: send_again(conn, terms(), lease, word("absent"), now=late))
    assert follows == Settlement(status="retry_wait", code="cms.lease_too_short", in_doubt=False)
    (row,) = rows(deliveries)
    assert (row["status"], row["attempts"], row["in_doubt"], row["next_attempt_at"]) == ("retry_wait", 1, False, late)
    assert isinstance(turn(engine, late)[0], Send)


def test_an_unsigned_answer_is_no_word(engine: Engine) -> None:
    """Only what was verified is kept."""
    assert word_of(CmsAnswer(outcome="unavailable", code="x"), "n", None) is None  # type: ignore[arg-type]


# --- flat ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("look", "index"),
    [
        (
            lambda conn: stamp_due_deliveries(
                conn, room=9, recovery_seconds=10, is_guided=lambda _site: False, now=NOW
            ),
            "deliveries_wakes",
        ),
        (lambda conn: stamp_due_evidence(conn, room=9, recovery_seconds=10, now=NOW), "evidence_due"),
        (
            lambda conn: stamp_ready_events(
                conn, room=9, recovery_seconds=10, accepted=lambda _site: frozenset(), now=NOW
            ),
            "events_open",
        ),
        (
            lambda conn: stamp_ready_events(
                conn, room=9, recovery_seconds=10, accepted=lambda _site: frozenset(), now=NOW
            ),
            "evidence_succeeded",
        ),
        (lambda conn: take_turn(conn, terms(), now=NOW), "deliveries_unsettled"),
    ],
)
@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)  # PostgreSQL plans by statistics, not by shape
def test_every_look_follows_its_partial_index(
    engine: Engine, event: None, look: Callable[[Any], object], index: str
) -> None:
    """So its cost does not grow with the rows that are not due."""
    store(engine, prepared(), "a-1")
    plans: list[str] = []

    def work(conn: Any) -> None:
        def explain(_conn: Any, cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
            if statement.startswith("SELECT"):
                found = cursor.connection.execute("EXPLAIN QUERY PLAN " + statement, parameters).fetchall()
                plans.extend(str(row[3]) for row in found)

        listen(conn, "before_cursor_execute", explain)
        look(conn)

    writing(engine, work)
    assert any(f"INDEX {index} " in plan for plan in plans), plans
    few = ("looked_at", "json_each", "VIRTUAL", "unprepared_events")  # what was picked already, and what was passed in
    assert not [plan for plan in plans if plan.startswith("SCAN") and not any(name in plan for name in few)]
