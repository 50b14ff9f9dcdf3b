"""Taking submissions in: what is stored, who is woken, what a repeat or a crash leaves (SPEC section 3)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Engine

from tests.builders import (
    NOW,
    Keyring,
    change_event,
    job_for,
    parsed,
    request_for,
    result_for,
    results_for,
    signed_submission,
    submission,
)
from tests.fakes import FixedPolicies, RecordingQueue, counting
from tests.intake_builders import (
    COLLECT,
    LOCALES,
    Everything,
    Rows,
    asked,
    submit,
)
from worker.domain.acceptance import Acceptance
from worker.domain.canonical import canonical_text, hash_of, sha256_hex
from worker.domain.evidence import request_id_of
from worker.domain.policy import SitePolicy
from worker.domain.result import parse_result
from worker.flow.accept_submission import accept_submission
from worker.flow.services import Services
from worker.store.schema import (
    events,
    evidence,
    jobs,
    plan_jobs,
    public_keys,
    rejections,
    results,
    submissions,
)


def test_new_submission_is_stored_whole_and_wakes_once(
    services: Services, keys: Keyring, queue: RecordingQueue, policies: FixedPolicies, rows: Rows
) -> None:
    """An event with all results becomes one open event, its plan, jobs, results, one due row a locale, and one wake."""
    policies.policy = SitePolicy(evidence_max_attempts=7, review_route={"marketing": "fast", "default": "slow"})
    event = change_event()
    text = signed_submission(keys, event, results_for(event))
    answer = accept_submission(services, text)
    assert answer == Acceptance(document_sha256=sha256_hex(text), state="accepted", event_id="event-1")
    change = parsed(event)
    assert rows(submissions) == [
        {
            "document_sha256": sha256_hex(text),
            "kind": "release",
            "site_id": "site-1",
            "event_id": "event-1",
            "kid": "submission-1",
            "body": text,
            "accepted_at": NOW,
        }
    ]
    assert rows(events) == [
        {
            "event_id": "event-1",
            "site_id": "site-1",
            "website_version": "2026.02",
            "source_id": "home.hero",
            "source_sequence": 1,
            "plan_id": change.plan_id,
            "event_sha256": hash_of(event),
            "document": canonical_text(event),
            "state": "open",
            "superseded_by": None,
            "created_at": NOW,
            "updated_at": NOW,
            "last_woken_at": None,
        }
    ]
    assert [(row["plan_id"], row["job_id"], row["target_locale"]) for row in rows(plan_jobs)] == [
        (change.plan_id, job.job_id, job.target_locale) for job in change.jobs
    ]
    given = {result["job_id"]: result for result in results_for(event)}
    assert [(row["job_id"], row["current_result_sha256"], row["site_id"]) for row in rows(jobs)] == [
        (job.job_id, hash_of(given[job.job_id]), "site-1") for job in change.jobs
    ]
    assert [(row["job_id"], row["document"], row["replaced_at"]) for row in rows(results)] == [
        (job.job_id, canonical_text(given[job.job_id]), None) for job in change.jobs
    ]
    request_ids = sorted(request_for(event, locale).request_id for locale in ("de", "fr-CA"))
    assert [row["request_id"] for row in rows(evidence)] == request_ids
    for row in rows(evidence):
        assert row | {"request_id": "", "job_id": "", "result_sha256": ""} == {
            "request_id": "",
            "event_id": "event-1",
            "plan_id": change.plan_id,
            "job_id": "",
            "result_sha256": "",
            "evidence_revision": "r1",
            "status": "pending",
            "attempts": 0,
            "max_attempts": 7,
            "next_attempt_at": NOW,
            "lease_owner": None,
            "lease_token": None,
            "lease_expires_at": None,
            "last_error_code": None,
            "created_at": NOW,
            "updated_at": NOW,
            "site_id": "site-1",
            "provider": "fast",
            "awaited_since_at": None,
            "renewed_at": None,
            "last_woken_at": NOW,
        }
    assert [(row["purpose"], row["kid"]) for row in rows(public_keys)] == [("submission", "submission-1")]
    assert queue.take() == [(COLLECT, {"event_id": "event-1"})]


def test_text_travels_byte_for_byte(services: Services, keys: Keyring, rows: Rows) -> None:
    """A document with spaces, escapes and astral characters is hashed and kept exactly as it came."""
    event = change_event(source_text='"Grüße" 👋 \u2028 \\u0041', target_locales=["de"])
    signed = keys.sign("submission", submission(event, results_for(event, candidate="Привет 🎉")))
    text = json.dumps(signed.to_json(), indent=1, ensure_ascii=True)
    answer = accept_submission(services, text)
    assert (answer.state, answer.document_sha256) == ("accepted", sha256_hex(text))
    assert rows(submissions)[0]["body"] == text
    assert rows(events)[0]["document"] == canonical_text(event)
    assert json.loads(rows(results)[0]["document"])["candidate"] == "Привет 🎉"


def test_statements_and_commits(services: Services, keys: Keyring, engine: Engine) -> None:
    """A new submission takes nine statements and one commit, for one locale as for 24; a known job costs one more."""
    counts = []
    for number, locales in enumerate([["de"], LOCALES]):
        event = change_event(event_id=f"event-{number}", source_id=f"s-{number}", target_locales=locales)
        text = signed_submission(keys, event, results_for(event))
        with counting(engine) as counted:
            assert accept_submission(services, text).state == "accepted"
        counts.append((len(counted.statements), counted.commits))
    event = change_event(event_id="event-3", source_id="s-3", target_locales=["de"])
    submit(services, keys, event, [])
    with counting(engine) as counted:
        assert submit(services, keys, event).state == "accepted"
    counts.append((len(counted.statements), counted.commits))
    assert counts == [(9, 1), (9, 1), (9, 1)]


def test_exact_repeat_changes_nothing_and_wakes_nobody(
    services: Services, keys: Keyring, queue: RecordingQueue, engine: Engine, everything: Everything
) -> None:
    """The same bytes again are accepted; no row changes, no message is sent, two statements are enough."""
    text = signed_submission(keys, change_event(), results_for(change_event()))
    first = accept_submission(services, text)
    queue.take()
    before = everything()
    with counting(engine) as counted:
        assert accept_submission(services, text) == first
    assert everything() == before
    assert queue.take() == []
    assert len(counted.statements) == 2


def test_repeat_stays_accepted_though_its_key_was_revoked(
    services: Services, keys: Keyring, everything: Everything
) -> None:
    """What was accepted stays accepted: a repeat under a key revoked since is no rejection."""
    text = signed_submission(keys, change_event(), results_for(change_event()))
    first = accept_submission(services, text)
    keys.revoke("submission")
    before = everything()
    assert accept_submission(services, text) == first
    assert everything() == before


def test_results_come_later_one_by_one(services: Services, keys: Keyring, queue: RecordingQueue, rows: Rows) -> None:
    """A plan may wait for its results; each later submission asks only about what it brings, repeats are free."""
    event = change_event()
    assert submit(services, keys, event, []).state == "accepted"
    assert rows(evidence) == [] and queue.take() == []
    assert submit(services, keys, event, results_for(event, locales=["de"])).state == "accepted"
    assert [row["job_id"] for row in rows(evidence)] == [job_for(event, "de").job_id]
    assert queue.take() == [(COLLECT, {"event_id": "event-1"})]
    assert submit(services, keys, event).state == "accepted"  # both: the first of them is an exact repeat
    assert asked(rows) == {("event-1", "r1", "pending", None)} and len(rows(evidence)) == 2
    assert queue.take() == [(COLLECT, {"event_id": "event-1"})]
    assert len(rows(submissions)) == 3 and len(rows(events)) == 1 and len(rows(results)) == 2


def test_identical_submissions_at_once_make_one_event(
    services: Services, keys: Keyring, queue: RecordingQueue, rows: Rows
) -> None:
    """Four threads with the same bytes: all are accepted, one event and one wake come of it."""
    text = signed_submission(keys, change_event(), results_for(change_event()))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: accept_submission(services, text), range(4)))
    assert {answer.state for answer in answers} == {"accepted"}
    assert len(rows(events)) == len(rows(submissions)) == 1 and len(rows(evidence)) == 2
    assert queue.take() == [(COLLECT, {"event_id": "event-1"})]
    assert rows(rejections) == []


def test_one_event_id_for_two_sources_at_once_is_accepted_once(services: Services, keys: Keyring, rows: Rows) -> None:
    """Two sources that claim one event id at the same time: one wins, the other is a collision, none is an error."""
    texts = [
        signed_submission(keys, event, results_for(event))
        for event in (change_event(source_id=f"s-{number}") for number in range(4))
    ]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda text: accept_submission(services, text), texts))
    assert (
        sorted((answer.state, answer.code) for answer in answers if answer.code)
        == [("rejected", "submission.event.collision")] * 3
    )
    assert len(rows(events)) == 1


def test_whole_site_of_250_locales_is_one_commit(services: Services, keys: Keyring, engine: Engine, rows: Rows) -> None:
    """The largest plan goes in with the same nine statements."""
    tags = [f"{language}-{region}" for region in REGIONS for language in LANGUAGES][:250]
    event = change_event(target_locales=tags)
    with counting(engine) as counted:
        assert submit(services, keys, event).state == "accepted"
    assert (len(counted.statements), counted.commits, len(rows(evidence))) == (9, 1, 250)


REGIONS = ["AT", "BE", "CA", "CH", "DE", "ES", "FR", "GB", "IT", "US"]
LANGUAGES = [*LOCALES, "sv"]


def test_request_id_binds_the_revision() -> None:
    """The id of a row is the hash of its schema and binding, so no two revisions share one."""
    event = change_event(target_locales=["de"])
    one, two = (request_for(event, "de", revision=revision) for revision in ("r1", "r2"))
    assert one.request_id == request_id_of(one.binding) != two.request_id
    assert parse_result(result_for(job_for(event, "de"))).sha256 == one.key.result_sha256
