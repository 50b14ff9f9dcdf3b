"""Claiming many due rows at once: whose turn it is, what is passed over, and that no row is ever taken twice."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, text

from tests.store.rows import HASH, contents, damage, refused, row
from worker.domain.evidence import EvidenceClaim, EvidenceKey
from worker.store.due_evidence import ClaimedRow, claim_due
from worker.store.engine import is_sqlite, writing
from worker.store.evidence import EvidenceStore
from worker.store.leases import EVIDENCE
from worker.store.schema import deliveries, events, evidence
from worker.store.setbacks import Ending


def put(engine: Engine, *rows: dict[str, Any], state: str = "open") -> None:
    """Insert due rows and the events that they belong to."""
    whole = [
        {
            "event_id": "event-1",
            "plan_id": "plan-1",
            "job_id": f"job-{one['request_id']}",
            "result_sha256": HASH,
            "evidence_revision": "r1",
            "status": "pending",
            "attempts": 0,
            "max_attempts": 3,
            "next_attempt_at": 10.0,
            "created_at": 1.0,
            "updated_at": 1.0,
            "site_id": "site-a",
            "provider": "default",
            **one,
        }
        for one in rows
    ]
    named = {one["event_id"] for one in whole}
    with engine.begin() as conn:
        conn.execute(insert(evidence), whole)
        for event_id in sorted(named):
            conn.execute(
                insert(events).values(
                    event_id=event_id,
                    site_id="site-a",
                    website_version="v1",
                    source_id=event_id,
                    source_sequence=1,
                    plan_id="plan-1",
                    event_sha256=HASH,
                    document="{}",
                    state=state,
                    created_at=1.0,
                    updated_at=1.0,
                )
            )


def claim(engine: Engine, *, limit: int = 10, now: float | None = 100.0, **changed: Any) -> list[ClaimedRow]:
    return claim_due(engine, **{"worker_id": "w-1", "limit": limit, "lease_seconds": 10, "now": now, **changed})


def ids(claimed: list[ClaimedRow]) -> list[str]:
    return [one.key.request_id for one in claimed]


def test_a_batch_is_leased_row_by_row(engine: Engine) -> None:
    """Each row has its own token and attempt, under its own bound; what comes back says whom to ask for what."""
    put(engine, {"request_id": "e-1"}, {"request_id": "e-2", "max_attempts": 7, "provider": "human"})
    first, second = claim(engine)
    assert first == ClaimedRow(
        key=EvidenceKey(
            request_id="e-1",
            event_id="event-1",
            plan_id="plan-1",
            job_id="job-e-1",
            result_sha256=HASH,
            evidence_revision="r1",
        ),
        claim=EvidenceClaim(
            request_id="e-1",
            lease_owner="w-1",
            lease_token=first.claim.lease_token,
            lease_expires_at=110.0,
            attempt=1,
            max_attempts=3,
        ),
        site_id="site-a",
        provider="default",
    )
    assert (second.claim.max_attempts, second.provider) == (7, "human")
    assert first.claim.lease_token != second.claim.lease_token
    stored = row(engine, "e-1")
    assert (stored["status"], stored["attempts"], stored["lease_token"]) == ("leased", 1, first.claim.lease_token)
    assert (stored["next_attempt_at"], stored["updated_at"], stored["lease_expires_at"]) == (10.0, 100.0, 110.0)
    assert claim(engine) == []


def test_a_lease_lasts_as_long_as_its_site_says(engine: Engine) -> None:
    """One claim takes rows of many sites, each for its own time; where none is named the default holds."""
    put(engine, {"request_id": "a"}, {"request_id": "b", "site_id": "site-b"})
    claimed = claim_due(
        engine, worker_id="w", limit=9, lease_seconds=300.0, site_leases={"site-b": 42.5, "site-z": 1.0}, now=100.0
    )
    found = {one.key.request_id: one.claim.lease_expires_at for one in claimed}
    assert found == {"a": 400.0, "b": 142.5}


def test_rows_are_taken_in_due_order(engine: Engine) -> None:
    """next_attempt_at, then created_at, then request_id; what is not due yet stays."""
    put(
        engine,
        {"request_id": "e-4", "next_attempt_at": 20.0},
        {"request_id": "e-3"},
        {"request_id": "e-2"},
        {"request_id": "e-1", "created_at": 2.0},
        {"request_id": "e-0", "next_attempt_at": 100.5},
        {"request_id": "e-5", "next_attempt_at": 100.0},
    )
    assert ids(claim(engine)) == ["e-2", "e-3", "e-1", "e-4", "e-5"]
    assert ids(claim(engine, now=100.5)) == ["e-0"]


def test_no_more_is_claimed_than_asked_for(engine: Engine) -> None:
    """The limit is a limit, and none at all writes nothing."""
    put(engine, *({"request_id": f"e-{n}"} for n in range(9)))
    before = contents(engine)
    assert claim(engine, limit=0) == []
    assert claim(engine, limit=-1) == []
    assert contents(engine) == before
    assert ids(claim(engine, limit=4)) == ["e-0", "e-1", "e-2", "e-3"]
    assert ids(claim(engine, limit=50)) == ["e-4", "e-5", "e-6", "e-7", "e-8"]


def test_the_site_with_the_fewest_live_leases_comes_first(engine: Engine) -> None:
    """Leases of this batch count as it goes; leases that ran out do not count."""
    put(
        engine,
        *({"request_id": f"a-{n}", "next_attempt_at": 1.0} for n in range(8)),
        *({"request_id": f"b-{n}", "next_attempt_at": 50.0, "site_id": "site-b"} for n in range(4)),
        {"request_id": "c-0", "next_attempt_at": 60.0, "site_id": "site-c"},
    )
    assert ids(claim(engine, limit=3, now=100.0)) == ["a-0", "b-0", "c-0"]
    assert ids(claim(engine, limit=2, blocked_sites=["site-b"], now=105.0)) == ["a-1", "a-2"]
    # a holds three live leases, b one; at 112 the first ones have run out: a holds two, b none
    assert ids(claim(engine, limit=4, now=112.0)) == ["b-1", "b-2", "a-3", "b-3"]


def test_a_flood_of_one_site_does_not_starve_another(engine: Engine) -> None:
    """However many rows a site has and however old they are, another site's row is in the next batch."""
    put(
        engine,
        *({"request_id": f"a-{n:03}", "next_attempt_at": 1.0} for n in range(300)),
        {"request_id": "b-0", "next_attempt_at": 99.0, "site_id": "site-b"},
    )
    assert ids(claim(engine, limit=10)) == ["a-000", "b-0", *(f"a-{n:03}" for n in range(1, 9))]


def test_many_sites_and_routes_fill_a_batch(engine: Engine) -> None:
    """A batch is filled although each site has few rows and some have none due."""
    put(
        engine,
        *(
            {
                "request_id": f"e-{n:03}",
                "site_id": f"site-{n % 40:02}",
                "provider": f"route-{n % 3}",
                "next_attempt_at": 500.0 if n % 40 == 7 else 10.0,
            }
            for n in range(200)
        ),
    )
    claimed = claim(engine, limit=60)
    assert len(claimed) == 60
    assert Counter(one.site_id for one in claimed).most_common(1)[0][1] == 2
    rest = claim(engine, limit=500)
    assert len(rest) == 200 - 60 - 5


def test_the_event_of_the_message_breaks_ties_only(engine: Engine) -> None:
    """Of rows that fell due together those of the event come first; an older row of another still leads."""
    put(
        engine,
        {"request_id": "e-1"},
        {"request_id": "e-2", "event_id": "event-2"},
        {"request_id": "e-3", "event_id": "event-2"},
        {"request_id": "e-0", "next_attempt_at": 5.0},
    )
    assert ids(claim(engine, preferred_event_id="event-2")) == ["e-0", "e-2", "e-3", "e-1"]


def test_what_is_blocked_stays(engine: Engine) -> None:
    """Rows of a closed provider and of a paused site are not claimed, all others are."""
    put(
        engine,
        {"request_id": "e-1", "provider": "closed"},
        {"request_id": "e-2"},
        {"request_id": "e-3", "site_id": "site-b"},
        {"request_id": "e-4", "site_id": "site-b", "provider": "closed"},
        {"request_id": "e-5", "site_id": "site-c", "provider": "zeta"},
    )
    assert ids(claim(engine, blocked_providers=["closed", "unknown"], blocked_sites=["site-c"])) == ["e-2", "e-3"]
    assert ids(claim(engine, blocked_sites=["site-a", "site-b"])) == ["e-5"]
    assert ids(claim(engine)) == ["e-1", "e-4"]


@pytest.mark.parametrize("state", ["superseded", "withdrawn", "delivered"])
def test_rows_of_an_ended_event_are_not_claimed(engine: Engine, state: str) -> None:
    """Nobody needs evidence for an event that is not open."""
    put(engine, {"request_id": "e-1"}, state=state)
    put(engine, {"request_id": "e-2", "event_id": "event-2"})
    assert ids(claim(engine)) == ["e-2"]


def test_rows_without_an_event_are_not_claimed(engine: Engine) -> None:
    """A row that only the store's own surface made belongs to who made it."""
    store = EvidenceStore(engine)
    key = EvidenceKey(
        request_id="e-1", event_id="event-1", plan_id="p", job_id="j", result_sha256=HASH, evidence_revision="r1"
    )
    mine = store.claim(key, worker_id="w", now=1.0, lease_seconds=10, max_attempts=3)
    assert mine is not None
    store.release(mine, "worker.drain", not_before=1.0, now=2.0)
    assert claim(engine) == []


@pytest.mark.parametrize("status", ["pending", "leased", "retry_wait", "succeeded", "failed"])
def test_an_event_that_has_a_delivery_is_not_asked_about(engine: Engine, status: str) -> None:
    """A delivery speaks for its event; one that failed speaks no more."""
    put(engine, {"request_id": "e-1"})
    with engine.begin() as conn:
        conn.execute(insert(deliveries).values(delivery(status=status)))
    assert ids(claim(engine)) == (["e-1"] if status == "failed" else [])


def delivery(**changed: Any) -> dict[str, Any]:
    return {
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
        "status": "pending",
        "attempts": 0,
        "max_attempts": 3,
        "next_attempt_at": 10.0,
        "created_at": 1.0,
        "updated_at": 1.0,
        "in_doubt": False,
        "lookups": 0,
        **changed,
    }


DAMAGE = [
    "event_id = 'a b'",
    "plan_id = ''",
    f"job_id = '{'x' * 257}'",
    "evidence_revision = 'ü'",
    f"result_sha256 = '{'A' * 64}'",
    f"result_sha256 = '{'a' * 63}'",
    "max_attempts = 21",
    "max_attempts = 0",
    "attempts = -1",
    "attempts = 3",
    "next_attempt_at = -1",
    "created_at = -1",
    "updated_at = -1",
    "lease_owner = 'w'",
    "lease_token = 't'",
    "lease_expires_at = 500",
    "last_error_code = 'a'",
    "status = 'retry_wait', last_error_code = 'A'",
    "status = 'retry_wait', last_error_code = '1a'",
    "status = 'done'",
]
DAMAGE_SQLITE = ["attempts = 0.5", "attempts = 'x'", "next_attempt_at = x'00'", "created_at = 9e999", "plan_id = x'70'"]
DAMAGE_POSTGRES = ["created_at = 'NaN'", "updated_at = 'Infinity'", "next_attempt_at = 'NaN'"]


def test_damaged_rows_are_passed_over_and_left_as_they_are(engine: Engine) -> None:
    """They take nobody's place in a batch, and whatever else is due is claimed."""
    for assignment in DAMAGE + (DAMAGE_SQLITE if is_sqlite(engine) else DAMAGE_POSTGRES):
        put(engine, {"request_id": "e-1", "next_attempt_at": 5.0}, {"request_id": "e-2"})
        damage(engine, assignment, "e-1")
        damaged = row_text(engine)
        assert ids(claim(engine, limit=1)) == ["e-2"], assignment
        assert claim(engine) == [], assignment
        assert row_text(engine) == damaged
        with engine.begin() as conn:
            conn.execute(text("DELETE FROM evidence"))
            conn.execute(text("DELETE FROM events"))


def row_text(engine: Engine) -> list[Any]:
    return [one for one in contents(engine)["evidence"] if one[0] == "'e-1'"]


def test_a_claim_is_one_statement(engine: Engine) -> None:
    """Whatever the number of rows, sites and routes: one statement and one commit."""
    put(engine, *({"request_id": f"e-{n}", "site_id": f"s-{n % 5}", "provider": f"p-{n % 2}"} for n in range(30)))
    asked: list[str] = []
    commits: list[int] = []

    def note(_conn: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not statement.startswith("BEGIN"):
            asked.append(statement)

    def note_commit(_conn: Any) -> None:
        commits.append(1)

    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "commit", note_commit)
    try:
        assert len(claim(engine, limit=24)) == 24
    finally:
        event.remove(engine, "before_cursor_execute", note)
        event.remove(engine, "commit", note_commit)
    assert (len(asked), len(commits)) == (1, 1)


def test_wrong_arguments_of_a_claim_have_their_codes(engine: Engine) -> None:
    """As in a claim of one row."""
    put(engine, {"request_id": "e-1"})
    for changed, code in (
        ({"worker_id": "a b"}, "evidence.worker_id.invalid"),
        ({"lease_seconds": 0}, "evidence.lease.invalid"),
        ({"lease_seconds": True}, "coordinator.time.invalid"),
        ({"now": float("nan")}, "coordinator.time.invalid"),
    ):
        with refused(engine, code):
            claim(engine, **changed)


@pytest.mark.parametrize("limit", [1, 7])
def test_eight_workers_drain_the_rows_without_taking_one_twice(engine: Engine, limit: int) -> None:
    """Claims equal rows: 300 rows, real threads, the database's clock, and no worker goes idle while rows are due."""
    put(
        engine,
        *({"request_id": f"e-{n:03}", "site_id": f"site-{n % 3}", "event_id": f"event-{n % 13}"} for n in range(300)),
    )
    start = threading.Barrier(8)
    taken: list[str] = []
    faults: list[BaseException] = []

    def work(number: int) -> None:
        start.wait()
        try:
            while claimed := claim(engine, limit=limit, now=None, worker_id=f"w-{number}", lease_seconds=600):
                endings = [
                    Ending(row_id=one.key.request_id, owner=one.claim.lease_owner, token=one.claim.lease_token)
                    for one in claimed
                ]
                done = writing(engine, lambda conn, endings=endings: EVIDENCE.succeed(conn, endings, now=None))
                assert done == {one.key.request_id for one in claimed}
                taken.extend(one.key.request_id for one in claimed)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert sorted(taken) == [f"e-{n:03}" for n in range(300)]
    stored = contents(engine)
    assert stored["setbacks"] == []
    assert {(one[6], one[7]) for one in stored["evidence"]} == {("'succeeded'", "1")}
