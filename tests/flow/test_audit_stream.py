"""The audit as a stream: 20,000 rows of real work in constant memory, found damage included."""

from __future__ import annotations

import tracemalloc

import pytest
from sqlalchemy import Engine, update

from tests.audited import codes, story_services
from tests.builders import Keyring, change_event, results_for, signed_submission
from worker.adapters.calls import CallLoop
from worker.domain.audit.finding import MOST_KEPT
from worker.flow.accept_submission import accept_submission
from worker.flow.audit_database import audit_database
from worker.store.audit_pages import Scope
from worker.store.engine import writing
from worker.store.schema import evidence, rejections

EVENTS = 400
REJECTIONS = 11_000
LOCALES = ["de", "fr", "ja", "nl", "pl"]
MOST_BYTES = 48 * 1024 * 1024  # generous: a page is 4 MiB of documents, and parsing one makes several times that


def rejected(count: int) -> list[dict[str, object]]:
    """Return rejection rows, each of its own document."""
    return [
        {
            "document_sha256": f"{number:064x}",
            "size_bytes": 1,
            "message": "release.submit",
            "code": "submission.invalid",
            "path": "",
            "times": 1,
            "first_at": 1.0,
            "last_at": 2.0,
        }
        for number in range(count)
    ]


@pytest.mark.timeout(300)  # memory is traced, which takes three times as long
def test_20_000_rows_take_constant_memory(sqlite_engine: Engine) -> None:
    """What an audit holds does not grow with the database, nor with what it finds."""
    keys = Keyring()
    calls = CallLoop()
    services = story_services(sqlite_engine, keys, calls)
    for number in range(EVENTS):
        event = change_event(
            event_id=f"e-{number}", source_id=f"s-{number}", source_text=f"{number}", target_locales=LOCALES
        )
        text = signed_submission(keys, event, results_for(event, candidate=f"{number} " + "x" * 2_000))
        assert accept_submission(services, text).state == "accepted"
    calls.close()
    writing(sqlite_engine, lambda conn: conn.execute(rejections.insert(), rejected(REJECTIONS)))
    writing(sqlite_engine, lambda conn: conn.execute(update(evidence).values(attempts=6)))
    tracemalloc.start()
    damaged = audit_database(sqlite_engine)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(damaged.checked.values()) == EVENTS * (3 + 4 * len(LOCALES)) + REJECTIONS + 1
    assert sum(damaged.checked.values()) > 20_000
    assert (damaged.by_code, damaged.note_count) == ({"audit.evidence.attempts_exceeded": EVENTS * len(LOCALES)}, 0)
    assert (damaged.violation_count, len(damaged.violations)) == (EVENTS * len(LOCALES), MOST_KEPT)
    assert peak < MOST_BYTES
    report = damaged.to_json(elapsed_seconds=1.0, site=None, event=None)
    assert (report["clean"], report["violation_count"], len(report["violations"])) == (False, 2_000, 1_000)


def test_pages_of_rows_are_each_read_once(engine: Engine) -> None:
    """Rows beyond one page are neither lost nor read twice, and those of another scope not at all."""
    rows = rejected(1_200)
    rows[0]["code"] = rows[700]["code"] = "bad code"
    writing(engine, lambda conn: conn.execute(rejections.insert(), rows))
    tally = audit_database(engine)
    assert tally.checked["rejection"] == 1_200
    assert len(codes(tally)["rejection.row_invalid"]) == 2
    assert audit_database(engine, scope=Scope(site="site-1")).checked["rejection"] == 0
