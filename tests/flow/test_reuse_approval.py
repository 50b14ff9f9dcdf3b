"""Approvals that stand already: whom they answer, when they do not, and what is never approved beside them (SPEC 6)."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, update

from tests.builders import NOW, Keyring, change_event, job_for, request_for, result_for
from tests.evidence_builders import ScriptedProvider, WatchedKeys, good, with_provider
from tests.fakes import FixedPolicies
from tests.intake_builders import Rows, approve, change_row, submit
from worker.domain.errors import Unavailable
from worker.domain.policy import SitePolicy
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.services import Services
from worker.store.engine import writing
from worker.store.schema import approvals, events, evidence, receipts, setbacks

SECOND = {"event_id": "event-2", "source_sequence": 2, "target_locales": ["de", "fr"]}


def shared_jobs(services: Services, keys: Keyring) -> None:
    """Let two plans contain the job of `de`: event-1 with de, event-2 with de and fr."""
    submit(services, keys, change_event(target_locales=["de"]))
    second = change_event(event_id="event-2", source_sequence=2, target_locales=["de", "fr"])
    submit(services, keys, second)


def reopen(engine: Engine, event_id: str) -> None:
    """Put a superseded event back, so that two open events share a job."""
    writing(engine, lambda conn: conn.execute(update(events).where(events.c.event_id == event_id).values(state="open")))


def test_approval_answers_every_row_of_its_job(services: Services, engine: Engine, keys: Keyring, rows: Rows) -> None:
    """Once the job of two events is approved, the other event's row succeeds too, unasked, and both are ready."""
    shared_jobs(services, keys)
    reopen(engine, "event-1")
    for row in rows(evidence):
        if row["event_id"] == "event-1":
            change_row(engine, row, status="retry_wait", attempts=2, next_attempt_at=NOW + 500, last_error_code="a.b")
    provider = ScriptedProvider(good(keys))
    ready: list[str] = []
    done = collect_evidence(with_provider(services, provider), None, ready=ready.append)
    assert done == Collected(claimed=2, approved=3)
    assert [request.key.event_id for request in provider.asked] == ["event-2", "event-2"]
    assert {(row["status"], row["last_error_code"], row["next_attempt_at"]) for row in rows(evidence)} == {
        ("succeeded", None, NOW)
    }
    assert sorted(ready) == ["event-1", "event-2"]
    assert len(rows(approvals)) == 2


def test_standing_approval_is_reused_without_a_call(
    services: Services, engine: Engine, keys: Keyring, rows: Rows
) -> None:
    """An approval that came to stand after a row was made answers it at the claim: no call, no second approval."""
    submit(services, keys, change_event(target_locales=["de"]))
    approve(engine, keys, request_for(change_event(target_locales=["de"], event_id="event-0"), "de"))
    provider = ScriptedProvider(good(keys))
    ready: list[str] = []
    done = collect_evidence(with_provider(services, provider), None, ready=ready.append)
    assert done == Collected(claimed=1, approved=1)
    assert (provider.asked, ready) == ([], ["event-1"])
    assert [row["status"] for row in rows(evidence)] == ["succeeded"]
    assert (len(rows(approvals)), rows(receipts), rows(setbacks)) == (1, [], [])


def test_tampered_approval_stops_its_row_alone(services: Services, engine: Engine, keys: Keyring, rows: Rows) -> None:
    """A standing approval that was changed in the store is not reused, nobody is asked, and other rows go on."""
    event = change_event(target_locales=["de", "fr"])
    submit(services, keys, event)
    approve(engine, keys, request_for(event, "de"), expires_at=NOW + 9e8)
    provider = ScriptedProvider(good(keys))
    done = collect_evidence(with_provider(services, provider), None, ready=lambda _: None)
    assert done == Collected(claimed=2, approved=1, failed=1)
    assert [request.document["target_locale"] for request in provider.asked] == ["fr"]
    by_job = {row["job_id"]: (row["status"], row["last_error_code"]) for row in rows(evidence)}
    assert by_job == {
        job_for(event, "de").job_id: ("failed", "release.approval.tampered"),
        job_for(event, "fr").job_id: ("succeeded", None),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"expires_at": NOW},
        {"revoked_at": NOW - 1},
        {"policy": SitePolicy(approval_ttl_seconds=77)},
    ],
    ids=["expired", "revoked", "other policy"],
)
def test_approval_that_does_not_stand_is_not_reused(
    services: Services, engine: Engine, keys: Keyring, rows: Rows, changes: dict[str, Any]
) -> None:
    """Expired, revoked, or given under terms that the site does not accept: the provider is asked."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    approve(engine, keys, request_for(change_event(target_locales=["de"], event_id="event-0"), "de"), **changes)
    provider = ScriptedProvider(good(keys))
    assert collect_evidence(with_provider(services, provider), None, ready=lambda _: None) == Collected(
        claimed=1, approved=1
    )
    assert len(provider.asked) == 1
    assert len(rows(approvals)) == 2


def test_compatible_policy_is_accepted(
    services: Services, engine: Engine, keys: Keyring, policies: FixedPolicies
) -> None:
    """An approval under a policy that the site's lists as compatible answers the row."""
    old = SitePolicy(approval_ttl_seconds=77)
    policies.policy = SitePolicy(compatible_policies=frozenset({old.sha256}))
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    approve(engine, keys, request_for(change_event(target_locales=["de"], event_id="event-0"), "de"), policy=old)
    provider = ScriptedProvider(good(keys))
    ready: list[str] = []
    collect_evidence(with_provider(services, provider), None, ready=ready.append)
    assert (provider.asked, ready) == ([], ["event-1"])


def test_no_second_target_while_an_approval_stands(
    services: Services, engine: Engine, keys: Keyring, rows: Rows
) -> None:
    """A job that is approved for another text is refused for good, and nothing is signed or stored for it."""
    event = change_event(target_locales=["de", "fr"])
    submit(services, keys, event)
    other = result_for(job_for(event, "de"), candidate="something else")
    approve(engine, keys, request_for(event, "de", result=other))
    ready: list[str] = []
    done = collect_evidence(with_provider(services, ScriptedProvider(good(keys))), None, ready=ready.append)
    assert done == Collected(claimed=2, approved=1, failed=1)
    [row] = [row for row in rows(evidence) if row["status"] == "failed"]
    assert (row["job_id"], row["last_error_code"]) == (
        job_for(event, "de").job_id,
        "release.approval.target_conflict",
    )
    assert len(rows(approvals)) == 2
    assert [row["request_id"] for row in rows(receipts)] == [request_for(event, "fr").request_id]
    assert ready == []


def test_keys_that_cannot_be_read_hand_the_row_back(
    services: Services, engine: Engine, keys: Keyring, rows: Rows
) -> None:
    """While the trust set of approvals cannot be read, a row with a standing approval is asked later, uncounted."""
    event = change_event(target_locales=["de"])
    submit(services, keys, event)
    approve(engine, keys, request_for(event, "de"))
    broken = WatchedKeys(keys, failing=Unavailable("keys.trust.missing"))
    provider = ScriptedProvider(good(keys))
    done = collect_evidence(with_provider(services, provider, keys=broken), None, ready=lambda _: None)
    assert (done, provider.asked) == (Collected(claimed=1), [])
    [row] = rows(evidence)
    assert (row["status"], row["attempts"], row["next_attempt_at"]) == ("retry_wait", 0, NOW + 10)
