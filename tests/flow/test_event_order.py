"""Events of one source: collisions, what a newer one ends, what comes late, what was withdrawn before (SPEC section 3)."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, update

from tests.builders import (
    NOW,
    Keyring,
    change_event,
    signed_withdrawal,
)
from tests.fakes import RecordingQueue
from tests.intake_builders import (
    COLLECT,
    Everything,
    Rows,
    asked,
    change_row,
    deliver,
    later,
    states,
    submit,
)
from worker.flow.services import Services
from worker.flow.withdraw_event import withdraw_event
from worker.store.engine import writing
from worker.store.schema import (
    deliveries,
    events,
    evidence,
    withdrawals,
)


@pytest.mark.parametrize(
    ("second", "code", "path"),
    [
        (change_event(website_version="2026.03"), "submission.event.collision", "event.event_id"),
        (change_event(site_id="site-2"), "submission.event.collision", "event.event_id"),
        (change_event(event_id="event-2"), "submission.sequence.collision", "event.source_sequence"),
    ],
)
def test_collision_is_refused_and_writes_nothing_else(
    services: Services,
    keys: Keyring,
    queue: RecordingQueue,
    rows: Rows,
    everything: Everything,
    second: dict[str, Any],
    code: str,
    path: str,
) -> None:
    """The same event id with other bytes, and another event in the same place of a source, are refused."""
    submit(services, keys, change_event())
    queue.take()
    before = everything()
    answer = submit(services, keys, second)
    assert (answer.state, answer.code, answer.path) == ("rejected", code, path)
    after = everything()
    kept = after.pop("rejections")
    before.pop("rejections")
    assert after == before and len(kept) == 1 and queue.take() == []


def test_higher_sequence_supersedes_what_is_not_published(
    services: Services, keys: Keyring, engine: Engine, queue: RecordingQueue, rows: Rows
) -> None:
    """Every older open event of the source ends: due rows fail, a leased one is left to its holder, deliveries close."""
    old = change_event(target_locales=["de", "fr-CA", "it"])
    submit(services, keys, old)
    first, second, third = rows(evidence)
    change_row(engine, second, status="retry_wait", attempts=1, last_error_code="evidence.unavailable")
    change_row(engine, third, status="leased", attempts=1, lease_owner="w", lease_token="t", lease_expires_at=NOW + 9)
    deliver(engine, old)
    other = change_event(event_id="other", source_id="other.source")
    elsewhere = change_event(event_id="elsewhere", site_id="site-2")
    submit(services, keys, other)
    submit(services, keys, elsewhere)
    queue.take()
    newer = later(source_text="Changed.")
    assert submit(services, keys, newer).state == "accepted"
    assert states(rows) == {"event-1": "superseded", "event-2": "open", "other": "open", "elsewhere": "open"}
    assert {row["event_id"]: row["superseded_by"] for row in rows(events)}["event-1"] == "event-2"
    ended = {row["request_id"]: (row["status"], row["attempts"], row["last_error_code"]) for row in rows(evidence)}
    assert ended[first["request_id"]] == ("failed", 0, "evidence.superseded")
    assert ended[second["request_id"]] == ("failed", 1, "evidence.superseded")
    assert ended[third["request_id"]] == ("leased", 1, None)
    assert [row["status"] for row in rows(evidence) if row["event_id"] != "event-1"] == ["pending"] * 6
    assert [(row["status"], row["last_error_code"]) for row in rows(deliveries)] == [("failed", "superseded")]
    assert queue.take() == [(COLLECT, {"event_id": "event-2"})]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"status": "pending"}, ("failed", "superseded")),
        ({"status": "retry_wait", "attempts": 1, "last_error_code": "cms.unavailable"}, ("failed", "superseded")),
        (
            {"status": "retry_wait", "attempts": 1, "last_error_code": "cms.timeout", "in_doubt": True},
            ("retry_wait", "cms.timeout"),
        ),
        (
            {"status": "leased", "lease_owner": "w", "lease_token": "t", "lease_expires_at": NOW + 9, "in_doubt": True},
            ("leased", None),
        ),
        ({"status": "failed", "last_error_code": "cms.refused"}, ("failed", "cms.refused")),
    ],
)
def test_superseding_leaves_what_may_be_at_the_cms(
    services: Services, keys: Keyring, engine: Engine, rows: Rows, columns: dict[str, Any], expected: tuple[str, str]
) -> None:
    """Only a delivery that certainly is not at the CMS is closed; a leased or in-doubt one keeps its row as it is."""
    submit(services, keys, change_event())
    deliver(engine, change_event(), **columns)
    submit(services, keys, later())
    row = rows(deliveries)[0]
    assert (row["status"], row["last_error_code"]) == expected
    assert states(rows)["event-1"] == "superseded"


def test_published_event_is_not_superseded(services: Services, keys: Keyring, engine: Engine, rows: Rows) -> None:
    """A delivered event is history: a newer change leaves it and its delivery as they are."""
    submit(services, keys, change_event())
    deliver(engine, change_event(), status="succeeded", acknowledged_at=NOW)
    writing(engine, lambda conn: conn.execute(update(events).values(state="delivered")))
    submit(services, keys, later())
    assert states(rows) == {"event-1": "delivered", "event-2": "open"}
    assert rows(deliveries)[0]["status"] == "succeeded"


def test_older_event_arriving_late_is_superseded_at_once(
    services: Services, keys: Keyring, queue: RecordingQueue, rows: Rows
) -> None:
    """A late older event is kept as superseded by the newest; nothing of it is asked, and the newer one is untouched."""
    submit(services, keys, later(source_text="Changed.", source_sequence=3))
    queue.take()
    assert submit(services, keys, change_event()).state == "accepted"
    assert states(rows) == {"event-1": "superseded", "event-2": "open"}
    assert {row["event_id"]: row["superseded_by"] for row in rows(events)} == {"event-1": "event-2", "event-2": None}
    assert asked(rows) == {("event-2", "r1", "pending", None)}
    assert queue.take() == []


def test_withdrawal_that_overtook_its_event_is_applied_on_arrival(
    services: Services, keys: Keyring, queue: RecordingQueue, rows: Rows
) -> None:
    """The event arrives withdrawn: nothing of it is asked; older events are superseded all the same."""
    submit(services, keys, change_event())
    queue.take()
    assert withdraw_event(services, signed_withdrawal(keys, later())).state == "accepted"
    assert rows(withdrawals)[0]["applied_at"] is None
    assert submit(services, keys, later()).state == "accepted"
    assert states(rows) == {"event-1": "superseded", "event-2": "withdrawn"}
    assert rows(withdrawals)[0]["applied_at"] == NOW
    assert asked(rows) == {("event-1", "r1", "failed", "evidence.superseded")}
    assert queue.take() == []


def test_withdrawal_of_another_site_is_not_applied(services: Services, keys: Keyring, rows: Rows) -> None:
    """A withdrawal kept for the same event id of another site changes nothing here."""
    withdraw_event(services, signed_withdrawal(keys, change_event(site_id="site-2")))
    submit(services, keys, change_event())
    assert states(rows) == {"event-1": "open"} and rows(withdrawals)[0]["applied_at"] is None
