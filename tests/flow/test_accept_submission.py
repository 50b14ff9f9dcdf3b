"""Taking submissions in: what is stored, what is refused, who is woken (SPEC section 3)."""

from __future__ import annotations

from tests.builders import NOW, change_event, results_for, signed_submission
from tests.fakes import counting
from worker.flow.accept_submission import accept_submission
from worker.store.schema import events, evidence, jobs, results


def test_new_submission_is_stored_whole_and_wakes_once(services, keys, queue, rows):
    """A new event with all results becomes one open event with one due evidence row for each locale, and one wake."""
    event = change_event()
    answer = accept_submission(services, signed_submission(keys, event, results_for(event)))
    assert (answer.state, answer.code, answer.path, answer.event_id) == ("accepted", None, None, "event-1")
    assert [(row["event_id"], row["state"]) for row in rows(events)] == [("event-1", "open")]
    assert [(row["status"], row["evidence_revision"], row["next_attempt_at"]) for row in rows(evidence)] == [
        ("pending", "r1", NOW)
    ] * 2
    assert len(rows(jobs)) == 2 and len(rows(results)) == 2
    assert queue.take() == [("evidence.collect", {"event_id": "event-1"})]


def test_statements(services, keys, engine):
    """A new one-result submission takes at most nine statements and one commit; 24 locales take the same."""
    counts = []
    for number, locales in enumerate([["de"], LOCALES]):
        event = change_event(event_id=f"event-{number}", source_id=f"s-{number}", target_locales=locales)
        text = signed_submission(keys, event, results_for(event))
        with counting(engine) as counted:
            assert accept_submission(services, text).state == "accepted"
        counts.append((len(counted.statements), counted.commits))
    assert counts == [(9, 1), (9, 1)]


LOCALES = [
    "ar",
    "bg",
    "cs",
    "da",
    "de",
    "el",
    "es",
    "et",
    "fi",
    "fr",
    "ga",
    "hr",
    "hu",
    "it",
    "ja",
    "ko",
    "lt",
    "lv",
    "nl",
    "pl",
    "pt",
    "ro",
    "sk",
    "sl",
]
