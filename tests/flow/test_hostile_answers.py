"""Well-formed HTTP with the wrong content: what each lie of a provider on a loopback server does to its row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.builders import NOW, TRANSLATOR, Keyring, change_event, receipt_for, request_for, response_for, results_for
from tests.intake_builders import Rows, submit
from tests.rough_server import RoughServer, reply, says
from worker.adapters.calls import CallLoop
from worker.adapters.endpoint import Endpoint
from worker.adapters.http import HttpClient
from worker.adapters.providers.http import HttpProvider
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.change import Provider
from worker.domain.evidence import EvidenceRequest
from worker.domain.key import TrustSet
from worker.domain.receipt import PURPOSES, binding_for
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.services import Services
from worker.store.schema import approvals, evidence

EVENT = change_event(target_locales=["de"])
MINUTE = 60.0


def answered(services: Services, calls: CallLoop, data: bytes) -> Services:
    """Return services whose provider is a real client of a server that says this to every request."""
    server = RoughServer(says(data))
    server.__enter__()
    calls.at_close(lambda: _stop(server))
    client = HttpClient()
    calls.at_close(client.aclose)
    provider = HttpProvider(client, Endpoint(url=server.url, allow_loopback_http=True))
    return replace(services, providers={"default": provider})


async def _stop(server: RoughServer) -> None:
    server.__exit__(None, None, None)


def collected(services: Services, keys: Keyring, **given: Any) -> Collected:
    """Submit one locale and collect once."""
    submit(services, keys, EVENT, results_for(EVENT, **given))
    return collect_evidence(services, None, ready=lambda _: None)


def of_another(keys: Keyring, **changes: Any) -> str:
    """Return the quality receipt of a request that differs in one thing."""
    revision = changes.pop("revision", "r1")
    given = {"candidate": changes.pop("candidate")} if "candidate" in changes else {}
    other = request_for(change_event(target_locales=["de"], **changes), revision=revision, **given)
    return receipt_for(keys, binding_for(other, "quality"))


LIES: dict[str, tuple[str, str, Callable[[Keyring, EvidenceRequest], dict[str, Any]]]] = {
    "another request": (
        "high",
        "evidence.response.binding_mismatch",
        lambda keys, _: response_for(keys, request_for(change_event(event_id="event-9"))),
    ),
    "a receipt of another purpose": (
        "high",
        "release.quality.receipt.rejected",
        lambda keys, asked: response_for(keys, asked, quality_receipt=receipt_for(keys, binding_for(asked, "human"))),
    ),
    "a receipt of another revision": (
        "high",
        "release.quality.receipt.rejected",
        lambda keys, asked: response_for(keys, asked, quality_receipt=of_another(keys, revision="r2")),
    ),
    "a receipt of another result": (
        "high",
        "release.quality.receipt.rejected",
        lambda keys, asked: response_for(keys, asked, quality_receipt=of_another(keys, candidate="Anders.")),
    ),
    "a receipt of another policy version": (
        "high",
        "release.quality.receipt.rejected",
        lambda keys, asked: response_for(keys, asked, quality_receipt=of_another(keys, policy_version="policy-8")),
    ),
    "the translator reviews itself": (
        "low",
        "evidence.independent_model_review.not_independent",
        lambda keys, asked: response_for(
            keys,
            asked,
            independent_model_review={
                "schema": "locseal.independent-review.v1",
                "provider": dict(TRANSLATOR),
                "receipt": receipt_for(keys, binding_for(asked, "independent", Provider(**TRANSLATOR))),
            },
        ),
    ),
    "a human where none was called for": (
        "high",
        "evidence.review_escalation.unexpected",
        lambda keys, asked: response_for(keys, asked, reviews=["quality", "human"]),
    ),
    "two further reviews": (
        "low",
        "evidence.review_escalation.required",
        lambda keys, asked: response_for(keys, asked, reviews=["quality", "human", "independent"]),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_fails_its_row_at_once(services: Services, calls: CallLoop, keys: Keyring, rows: Rows, lie: str) -> None:
    """Parsed JSON with wrong content is terminal: one attempt, the exact code, no approval."""
    confidence, code, answer = LIES[lie]
    asked = request_for(EVENT, confidence=confidence)
    here = answered(services, calls, reply(json.dumps(answer(keys, asked)).encode()))
    assert collected(here, keys, confidence=confidence) == Collected(claimed=1, failed=1)
    [row] = rows(evidence)
    assert (row["status"], row["attempts"], row["last_error_code"]) == ("failed", 1, code)
    assert rows(approvals) == []


@pytest.mark.parametrize("status", [202, 503])
def test_a_wait_without_end_is_an_hour(
    services: Services, calls: CallLoop, keys: Keyring, rows: Rows, status: int
) -> None:
    """`Retry-After: 999999` moves the next attempt by 3600 seconds, put off or failed."""
    here = answered(services, calls, reply(b"", status=status, content_type="", headers=("Retry-After: 999999",)))
    collected(here, keys)
    [row] = rows(evidence)
    assert (row["status"], row["next_attempt_at"]) == ("retry_wait", NOW + 3600)


def test_a_provider_whose_clock_is_ahead(services: Services, calls: CallLoop, keys: Keyring, rows: Rows) -> None:
    """Ten minutes: its good answer counts, and approval and expiry go by the database's clock alone."""
    good = json.dumps(response_for(keys, request_for(EVENT))).encode()
    here = answered(services, calls, reply(good, headers=("Date: Fri, 15 Jan 2027 08:10:00 GMT",)))
    assert collected(here, keys) == Collected(claimed=1, approved=1)
    [approval] = rows(approvals)
    assert (approval["approved_at"], approval["expires_at"]) == (NOW, NOW + 2_592_000)


def test_a_wait_until_a_date_is_meant_by_the_clock_that_is_ahead(
    services: Services, calls: CallLoop, keys: Keyring, rows: Rows
) -> None:
    """A date of 08:11 said at 08:10 is a minute, whatever the time is here."""
    ahead = ("Date: Fri, 15 Jan 2027 08:10:00 GMT", "Retry-After: Fri, 15 Jan 2027 08:11:00 GMT")
    here = answered(services, calls, reply(b"", status=202, content_type="", headers=ahead))
    collected(here, keys)
    [row] = rows(evidence)
    assert row["next_attempt_at"] == NOW + MINUTE


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("retired now", ("succeeded", None)),
        ("retired an hour ago", ("failed", "release.quality.receipt.rejected")),
        ("revoked", ("failed", "release.quality.receipt.rejected")),
        ("removed", ("failed", "release.quality.receipt.rejected")),
    ],
)
def test_a_key_that_changes_between_signing_and_verifying(
    services: Services, calls: CallLoop, keys: Keyring, rows: Rows, what: str, expected: tuple[str, str | None]
) -> None:
    """Rotated while the answer was on its way it still verifies; revoked or removed it verifies nothing."""
    good = json.dumps(response_for(keys, request_for(EVENT))).encode()
    if what == "revoked":
        keys.revoke("receipt:quality")
    elif what.startswith("retired"):
        keys.retire("receipt:quality", retired_at=NOW - (1.0 if what == "retired now" else 3600.0))

    def trust(purpose: str) -> TrustSet:
        return TrustSet(purpose=purpose, keys={}) if what == "removed" else keys.trust(purpose)

    verifiers = {purpose: JwsVerifier(trust, wall_clock=lambda: NOW) for purpose in PURPOSES}
    here = replace(answered(services, calls, reply(good)), verifiers=verifiers)
    collected(here, keys)
    [row] = rows(evidence)
    assert (row["status"], row["last_error_code"]) == expected
