"""Collecting evidence: what is stored, what is asked and what is not, and how rows share a process (SPEC 5, 6, 9)."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.builders import NOW, Keyring, change_event, job_for, request_for, response_for, results_for
from tests.evidence_builders import ScriptedProvider, ScriptedVerifier, good, with_provider
from tests.fakes import Checkpoints, FixedPolicies
from tests.intake_builders import LOCALES, Everything, Rows, submit
from worker.domain.canonical import canonical_text, sha256_hex
from worker.domain.errors import Blocked
from worker.domain.evidence import EvidenceRequest
from worker.domain.policy import SitePolicy
from worker.domain.receipt import VerifiedReceipt, binding_for
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.services import Services
from worker.store.schema import approvals, evidence, public_keys, receipts, setbacks


def test_a_lease_is_as_long_as_the_policy_of_its_site(services: Services, keys: Keyring, rows: Rows) -> None:
    """The site's own length counts for its rows, the default's for all others."""
    seen: list[list[float]] = []

    def answer(request: EvidenceRequest) -> Any:
        seen.append([row["lease_expires_at"] for row in rows(evidence) if row["request_id"] == request.request_id])
        return good(keys)(request)

    default = SitePolicy(evidence_lease_seconds=200.0)
    for policies in (
        FixedPolicies(policy=default, sites={"site-1": SitePolicy(evidence_lease_seconds=120.0)}),
        FixedPolicies(policy=default, sites={"site-2": SitePolicy(evidence_lease_seconds=120.0)}),
    ):
        number = len(seen) + 1
        changes = {"event_id": f"event-{number}", "source_sequence": number, "source_revision": f"rev-{number}"}
        event = change_event(target_locales=["de"], **changes)
        submit(services, keys, event)
        collect_evidence(with_provider(services, ScriptedProvider(answer), policies=policies), None, ready=print)
    assert seen == [[NOW + 120.0], [NOW + 200.0]]


def test_one_locale_becomes_a_signed_approval(services: Services, keys: Keyring, rows: Rows) -> None:
    """A good answer succeeds the row and stores exactly one approval, its receipt and the keys, all at one time."""
    event = change_event(target_locales=["de"])
    provider = ScriptedProvider(good(keys))
    submit(services, keys, event)
    ready: list[str] = []
    done = collect_evidence(with_provider(services, provider), "event-1", ready=ready.append)
    request = request_for(event, "de")
    receipt = response_for(keys, request)["quality_receipt"]
    assert done == Collected(claimed=1, approved=1, failed=0)
    assert ready == ["event-1"]
    assert provider.asked == [request]
    assert provider.deadlines == [60.0]
    [row] = rows(evidence)
    assert (row["status"], row["attempts"], row["next_attempt_at"], row["last_error_code"]) == (
        "succeeded",
        1,
        NOW,
        None,
    )
    assert (row["lease_owner"], row["lease_token"], row["lease_expires_at"]) == (None, None, None)
    [approval] = rows(approvals)
    signed = keys.sign("approval", json.loads(approval["document"]))
    assert approval["signature"] == signed.signature
    assert (approval["request_id"], approval["kid"], approval["approved_at"], approval["expires_at"]) == (
        request.request_id,
        "approval-1",
        NOW,
        NOW + 2_592_000,
    )
    assert rows(receipts) == [
        {
            "request_id": request.request_id,
            "purpose": "quality",
            "receipt": receipt,
            "receipt_sha256": sha256_hex(receipt),
            "kid": "receipt-quality-1",
            "binding": canonical_text(binding_for(request, "quality").document),
            "verified_at": NOW,
        }
    ]
    assert receipt not in approval["document"]
    assert {(one["purpose"], one["kid"]) for one in rows(public_keys)} == {
        ("submission", "submission-1"),
        ("approval", "approval-1"),
        ("publication", "publication-1"),
        ("receipt:quality", "receipt-quality-1"),
    }
    assert rows(setbacks) == []


@pytest.mark.parametrize(
    ("content_type", "confidence", "purposes"),
    [
        ("legal", "low", {"quality", "human"}),
        ("commercial", "high", {"quality"}),
        ("ui", "low", {"quality", "independent"}),
    ],
)
def test_every_review_that_is_called_for_is_verified_and_kept(
    services: Services, keys: Keyring, rows: Rows, content_type: str, confidence: str, purposes: set[str]
) -> None:
    """Legal needs a human receipt, low confidence a second review; each is stored under its own purpose."""
    event = change_event(target_locales=["de"], content_type=content_type)
    submit(services, keys, event, results_for(event, confidence=confidence))
    done = collect_evidence(with_provider(services, ScriptedProvider(good(keys))), None, ready=lambda _: None)
    assert done == Collected(claimed=1, approved=1)
    assert {row["purpose"] for row in rows(receipts)} == purposes
    assert len(rows(approvals)) == 1


def test_nothing_due_asks_nobody(services: Services, everything: Everything) -> None:
    """Without a due row nothing is asked, written or said."""
    before = everything()
    provider = ScriptedProvider(good(Keyring()))
    ready: list[str] = []
    assert collect_evidence(with_provider(services, provider), None, ready=ready.append) == Collected()
    assert (everything(), provider.asked, ready) == (before, [], [])


def test_event_is_ready_only_with_its_last_locale(services: Services, keys: Keyring) -> None:
    """A locale without a result holds the whole event back; nothing is said before the last one is approved."""
    event = change_event(target_locales=["de", "fr"])
    ready: list[str] = []
    submit(services, keys, event, results_for(event, locales=["de"]))
    assert collect_evidence(services, None, ready=ready.append) == Collected(claimed=1, approved=1)
    assert ready == []
    submit(services, keys, event, results_for(event, locales=["fr"]))
    assert collect_evidence(services, None, ready=ready.append) == Collected(claimed=1, approved=1)
    assert ready == ["event-1"]


def test_event_that_cannot_be_prepared_stops_no_other(services: Services, keys: Keyring) -> None:
    """What `ready` raises about one event is not the others' affair: all are told, all approvals stand."""
    told: list[str] = []

    def prepare(event_id: str) -> None:
        told.append(event_id)
        if event_id == "event-1":
            raise Blocked("release.approval.tampered")

    submit(services, keys, change_event(target_locales=["de"]))
    submit(services, keys, change_event(event_id="event-2", source_id="other", target_locales=["de"]))
    assert collect_evidence(services, None, ready=prepare) == Collected(claimed=2, approved=2)
    assert sorted(told) == ["event-1", "event-2"]


def test_key_that_is_not_ours_to_trust_is_named_but_not_kept(services: Services, keys: Keyring, rows: Rows) -> None:
    """A verifier elsewhere may know keys that we do not: the receipt names the key, and only ours are kept."""
    submit(services, keys, change_event(target_locales=["de"]))
    verifier = ScriptedVerifier(
        lambda receipt, binding: VerifiedReceipt(
            purpose=binding.purpose, receipt_sha256=sha256_hex(receipt), kid="elsewhere-1"
        )
    )
    asked = with_provider(services, ScriptedProvider(good(keys)), verifiers={"quality": verifier})
    assert collect_evidence(asked, None, ready=lambda _: None) == Collected(claimed=1, approved=1)
    assert [row["kid"] for row in rows(receipts)] == ["elsewhere-1"]
    assert {row["purpose"] for row in rows(public_keys)} == {"submission", "approval", "publication"}


def test_never_more_rows_claimed_than_calls_can_start(services: Services, keys: Keyring, rows: Rows) -> None:
    """With 3 places, 24 locales are asked at most 3 at a time, and no row waits inside a lease for a place."""
    open_calls = most_open = most_leased = 0
    three_open: asyncio.Event | None = None

    async def answer(request: Any) -> Any:
        nonlocal open_calls, most_open, most_leased, three_open
        three_open = three_open or asyncio.Event()
        open_calls += 1
        most_open = max(most_open, open_calls)
        most_leased = max(most_leased, [row["status"] for row in rows(evidence)].count("leased"))
        if open_calls == 3:
            three_open.set()
        await three_open.wait()  # until all places were taken at once
        open_calls -= 1
        return response_for(keys, request)

    submit(services, keys, change_event(target_locales=LOCALES))
    limited = with_provider(services, ScriptedProvider(answer), concurrent_calls=3)
    assert collect_evidence(limited, None, ready=lambda _: None) == Collected(claimed=24, approved=24)
    assert (most_open, most_leased) == (3, 3)


def test_slow_call_holds_up_no_other(services: Services, keys: Keyring, rows: Rows) -> None:
    """With two places, one call that waits for all the others to be approved does not keep them from it."""
    event = change_event(target_locales=LOCALES[:8])
    slow = job_for(event, LOCALES[0]).job_id
    others_stored = threading.Event()
    waited: list[bool] = []

    def look(name: str) -> None:
        if name == "collect.settled" and len(rows(approvals)) == 7:
            others_stored.set()

    async def answer(request: Any) -> Any:
        if request.key.job_id == slow:
            waited.append(await asyncio.to_thread(others_stored.wait, 30))
        return response_for(keys, request)

    submit(services, keys, event)
    limited = with_provider(services, ScriptedProvider(answer), concurrent_calls=2, checkpoint=look)
    assert collect_evidence(limited, None, ready=lambda _: None) == Collected(claimed=8, approved=8)
    assert waited == [True]


def test_no_connection_is_held_while_a_call_is_open(services: Services, keys: Keyring) -> None:
    """While a provider and a verifier are asked, the pool has lent nothing."""
    lent: list[int] = []

    async def answer(request: Any) -> Any:
        async with asyncio.timeout(30):  # the collector gives its connection back while this call is open, or never
            while services.engine.pool.checkedout():  # type: ignore[attr-defined]  # noqa: ASYNC110 - the pool tells nobody
                await asyncio.sleep(0)
        lent.append(services.engine.pool.checkedout())  # type: ignore[attr-defined]
        return response_for(keys, request)

    submit(services, keys, change_event(target_locales=["de"]))
    collect_evidence(with_provider(services, ScriptedProvider(answer)), None, ready=lambda _: None)
    assert lent == [0]


def test_second_caller_leaves_a_wake_and_returns(services: Services, keys: Keyring, rows: Rows) -> None:
    """A row that falls due while a collector has a place free is asked at once, though its own message returned."""
    second = change_event(event_id="event-2", source_id="other", target_locales=["de"])
    returned: list[Collected] = []
    second_asked: asyncio.Event | None = None

    async def answer(request: Any) -> Any:
        nonlocal second_asked
        second_asked = second_asked or asyncio.Event()
        if request.key.event_id == "event-1":
            await asyncio.to_thread(submit, services, keys, second)
            returned.append(await asyncio.to_thread(collect_evidence, asked, "event-2", ready=not_called))
            await second_asked.wait()
        second_asked.set()
        return response_for(keys, request)

    def not_called(_event_id: str) -> None:
        raise AssertionError("the collector speaks, not the second caller")

    asked = with_provider(services, ScriptedProvider(answer))
    submit(services, keys, change_event(target_locales=["de"]))
    ready: list[str] = []
    assert collect_evidence(asked, "event-1", ready=ready.append) == Collected(claimed=2, approved=2)
    assert returned == [Collected()]
    assert sorted(ready) == ["event-1", "event-2"]
    assert {row["status"] for row in rows(evidence)} == {"succeeded"}


def test_no_wake_is_lost_between_the_last_look_and_the_leaving(
    services: Services, keys: Keyring, checkpoints: Checkpoints, rows: Rows
) -> None:
    """Eight threads that each submit and then collect leave nothing due, whoever collects and whenever it stops."""
    together = threading.Barrier(8)

    def one(number: int) -> int:
        together.wait()
        approved = 0
        for turn in range(5):
            name = f"s{number}-{turn}"
            submit(services, keys, change_event(event_id=name, source_id=name, target_locales=["de", "fr"]))
            approved += collect_evidence(services, name, ready=lambda _: None).approved
        return approved

    with ThreadPoolExecutor(8) as threads:
        approved = sum(threads.map(one, range(8)))
    assert approved == 80
    assert [row["status"] for row in rows(evidence)] == ["succeeded"] * 80
    assert checkpoints.passed.count("collect.settled") <= 80


def test_drain_lets_open_calls_finish_and_claims_nothing_more(services: Services, keys: Keyring, rows: Rows) -> None:
    """Asked to stop inside the first call, the collector settles that call and leaves the other rows as they are."""
    stopping = False

    def answer(request: Any) -> Any:
        nonlocal stopping
        stopping = True
        return response_for(keys, request)

    submit(services, keys, change_event(target_locales=["de", "fr", "it"]))
    draining = with_provider(services, ScriptedProvider(answer), concurrent_calls=1, draining=lambda: stopping)
    assert collect_evidence(draining, None, ready=lambda _: None) == Collected(claimed=1, approved=1)
    assert sorted((row["status"], row["attempts"]) for row in rows(evidence)) == [
        ("pending", 0),
        ("pending", 0),
        ("succeeded", 1),
    ]
