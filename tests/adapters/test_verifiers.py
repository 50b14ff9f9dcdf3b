"""Receipt verifiers: one contract for the local one and the HTTP one, then keys, reviewers, rotation and bad answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.conftest import run_calls
from tests.builders import NOW, REVIEWER, Keyring, change_event, receipt_for, request_for
from tests.rough_server import RoughServer, reply, says
from worker.adapters.endpoint import Endpoint
from worker.adapters.http import HttpClient
from worker.adapters.sandbox.contracts import REVIEWER as SANDBOX_REVIEWER
from worker.adapters.sandbox.server import SandboxThread
from worker.adapters.verifiers.http import HttpVerifier
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.change import Provider
from worker.domain.errors import Blocked, Invalid, ProviderFailure, Unavailable
from worker.domain.receipt import Purpose, ReceiptBinding, VerifiedReceipt, binding_for, receipt_sha256

REQUEST = request_for(change_event(), "de")
Verify = Callable[[str, ReceiptBinding], VerifiedReceipt]


def binding(purpose: Purpose, *, reviewer: Provider = SANDBOX_REVIEWER, **changes: Any) -> ReceiptBinding:
    """Return a binding of the request, or of one that differs in a member."""
    bound = binding_for(REQUEST, purpose, reviewer if purpose == "independent" else None)
    return ReceiptBinding(purpose=purpose, document={**bound.document, **changes})


def over_http(url: str, receipt: str, bound: ReceiptBinding, *, deadline: float = 5.0) -> VerifiedReceipt:
    async def verify(client: HttpClient) -> VerifiedReceipt:
        verifier = HttpVerifier(client, Endpoint(url=url, allow_loopback_http=True))
        return await verifier.verify(receipt, bound, deadline_seconds=deadline)

    return run_calls(verify)


def locally(verifier: JwsVerifier, receipt: str, bound: ReceiptBinding) -> VerifiedReceipt:
    return asyncio.run(verifier.verify(receipt, bound, deadline_seconds=1))


@pytest.fixture(params=["jws", "http"])
def verify(request: pytest.FixtureRequest, sandbox: SandboxThread) -> Verify:
    """Verify with either verifier; both trust the sandbox's keys."""
    if request.param == "http":
        return lambda receipt, bound: over_http(sandbox.listening.verifier_url, receipt, bound)
    verifier = JwsVerifier(sandbox.sandbox.keys.trust)
    return lambda receipt, bound: locally(verifier, receipt, bound)


@pytest.mark.parametrize("purpose", ["quality", "human", "independent"])
def test_a_receipt_proves_its_binding(verify: Verify, sandbox: SandboxThread, purpose: Purpose) -> None:
    """A good receipt of each purpose verifies and tells its hash and key."""
    bound = binding(purpose)
    receipt = sandbox.sandbox.keys.receipt(f"receipt:{purpose}", bound.document)
    assert verify(receipt, bound) == VerifiedReceipt(
        purpose=purpose, receipt_sha256=receipt_sha256(receipt), kid=f"sandbox-{purpose}-1"
    )


@pytest.mark.parametrize("purpose", ["quality", "human", "independent"])
@pytest.mark.parametrize(
    "changes",
    [
        {"evidence_revision": "r2"},
        {"request_id": "evidence-" + "1" * 64},
        {"result_sha256": "1" * 64},
        {"target_sha256": "1" * 64},
        {"policy_version": "policy-8"},
        {"target_locale": "fr"},
        {"human_review_required": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_receipt_of_anything_else_is_rejected(
    verify: Verify, sandbox: SandboxThread, purpose: Purpose, changes: dict[str, Any]
) -> None:
    """A receipt for another revision, request, result, text, policy, locale or flag proves nothing here; terminal."""
    receipt = sandbox.sandbox.keys.receipt(f"receipt:{purpose}", binding(purpose, **changes).document)
    with pytest.raises(Invalid) as caught:
        verify(receipt, binding(purpose))
    assert (caught.value.code, caught.value.retryable) == (f"release.{purpose}.receipt.rejected", False)


@pytest.mark.parametrize(
    ("made_for", "shown_as"), [("quality", "human"), ("human", "quality"), ("human", "independent")]
)
def test_a_receipt_of_another_purpose_is_rejected(
    verify: Verify, sandbox: SandboxThread, made_for: Purpose, shown_as: Purpose
) -> None:
    """A key of one purpose never speaks for another, even over the very same bytes."""
    bound = binding(shown_as)
    for signed in (bound, binding(made_for)):
        receipt = sandbox.sandbox.keys.receipt(f"receipt:{made_for}", signed.document)
        with pytest.raises(Invalid) as caught:
            verify(receipt, bound)
        assert caught.value.code == f"release.{shown_as}.receipt.rejected"


@pytest.mark.parametrize("receipt", ["", "x", "a..b", "{}", "é" * 100, "x" * 16_384])
def test_what_is_no_receipt_is_rejected(verify: Verify, receipt: str) -> None:
    """Any other string is rejected, whatever it holds."""
    with pytest.raises(Invalid) as caught:
        verify(receipt, binding("quality"))
    assert caught.value.code == "release.quality.receipt.rejected"


def test_a_receipt_by_an_unknown_key_is_rejected(verify: Verify, sandbox: SandboxThread) -> None:
    """A key that only has the right name proves nothing."""
    bound = binding("quality")
    receipt = sandbox.sandbox.keys.receipt("receipt:quality", bound.document, wrong_key=True)
    with pytest.raises(Invalid) as caught:
        verify(receipt, bound)
    assert caught.value.code == "release.quality.receipt.rejected"


def test_an_independent_receipt_must_come_from_the_named_reviewer() -> None:
    """A trusted key that names other reviewers is rejected, though its signature is right."""
    keys = Keyring(providers=["someone-else"])
    bound = binding("independent", reviewer=Provider(**REVIEWER))
    with pytest.raises(Invalid) as caught:
        locally(JwsVerifier(keys.trust), receipt_for(keys, bound), bound)
    assert caught.value.code == "release.independent.receipt.rejected"
    keys = Keyring(providers=["someone-else", REVIEWER["id"]])
    assert locally(JwsVerifier(keys.trust), receipt_for(keys, bound), bound).kid == "receipt-independent-1"


@pytest.mark.parametrize("purpose", ["quality", "human"])
def test_only_the_configured_review_providers_count(purpose: Purpose) -> None:
    """Where review providers are configured, a trusted key of another provider is rejected."""
    keys = Keyring(providers=["quality-lab"])
    bound = binding(purpose)
    receipt = receipt_for(keys, bound)
    for allowed in (["quality-lab"], ["other", "quality-lab"], None):
        assert locally(JwsVerifier(keys.trust, provider_ids=allowed), receipt, bound).purpose == purpose
    for refused in (["other"], []):
        with pytest.raises(Invalid) as caught:
            locally(JwsVerifier(keys.trust, provider_ids=refused), receipt, bound)
        assert caught.value.code == f"release.{purpose}.receipt.rejected"


def test_a_key_rotated_while_the_call_went_on_still_verifies() -> None:
    """A key retired within the grace verifies what arrives now; one retired before it, or revoked, does not."""
    keys = Keyring()
    bound = binding("quality")
    receipt = receipt_for(keys, bound)
    verifier = JwsVerifier(keys.trust, grace_seconds=60, wall_clock=lambda: NOW)
    keys.retire("receipt:quality", retired_at=NOW - 59)
    assert locally(verifier, receipt, bound).kid == "receipt-quality-1"
    keys.retire("receipt:quality", retired_at=NOW - 61)
    with pytest.raises(Invalid):
        locally(verifier, receipt, bound)
    keys.revoke("receipt:quality")
    with pytest.raises(Invalid) as caught:
        locally(verifier, receipt, bound)
    assert caught.value.code == "release.quality.receipt.rejected"


def test_a_removed_key_no_longer_verifies() -> None:
    """The trust set is asked anew for every receipt."""
    signing, trusting = Keyring(), Keyring()
    bound = binding("quality")
    receipt = receipt_for(signing, bound)
    current = {"receipt:quality": signing.trust("receipt:quality")}
    verifier = JwsVerifier(current.__getitem__)
    assert locally(verifier, receipt, bound).kid == "receipt-quality-1"
    current["receipt:quality"] = trusting.trust("receipt:quality")
    with pytest.raises(Invalid) as caught:
        locally(verifier, receipt, bound)
    assert caught.value.code == "release.quality.receipt.rejected"


def test_trust_that_cannot_be_read_is_retryable() -> None:
    """A fault of our own files never rejects a receipt."""

    def broken(_purpose: str) -> Any:
        raise Unavailable("keys.trust.missing")

    with pytest.raises(Blocked) as caught:
        locally(JwsVerifier(broken), "x", binding("quality"))
    assert (caught.value.code, caught.value.retryable) == ("keys.trust.missing", True)


@pytest.mark.parametrize(
    ("behaviour", "code", "retryable"),
    [
        ({"fail_times": 1}, "release.verifier.status_503", True),
        ({"fail_times": 1, "fail_status": 400}, "release.verifier.status_400", False),
        ({"rubbish": "html"}, "release.verifier.content_type", True),
        ({"rubbish": "truncated"}, "release.verifier.connection_lost", True),
        ({"rubbish": "other"}, "release.verifier.answer_invalid", False),
        ({"rubbish": "binding"}, "release.verifier.binding_mismatch", False),
        ({"redirect_to": "https://other.invalid/"}, "release.verifier.redirect", False),
        ({"delay_seconds": 5.0}, "release.verifier.timeout", True),
    ],
)
def test_a_verifier_that_cannot_answer_is_no_verdict(
    sandbox: SandboxThread, behaviour: dict[str, Any], code: str, retryable: bool
) -> None:
    """Faults of the verifier have codes of their own, and are retryable as those of any other call."""
    sandbox.behave(verifier=behaviour)
    bound = binding("quality")
    receipt = sandbox.sandbox.keys.receipt("receipt:quality", bound.document)
    with pytest.raises(ProviderFailure) as caught:
        over_http(sandbox.listening.verifier_url, receipt, bound, deadline=0.4 if "timeout" in code else 5.0)
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert sandbox.state()["calls"]["verifier"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"purpose": "human"},
        {"receipt_sha256": "2" * 64},
        {"binding_sha256": "2" * 64},
        {"verdict": "maybe"},
        {"verdict": True},
        {"kid": "not a token"},
        {"kid": None},
        {"schema": "locseal.verification-answer.v2"},
        {"extra": 1},
    ],
    ids=str,
)
def test_an_answer_about_anything_else_is_terminal_and_never_a_pass(changes: dict[str, Any]) -> None:
    """Every member of the answer must be exactly right, or there is no verdict."""
    bound = binding("quality")
    answer = {
        "schema": "locseal.verification-answer.v1",
        "purpose": "quality",
        "binding_sha256": bound.sha256,
        "receipt_sha256": receipt_sha256("r"),
        "verdict": "accepted",
        "kid": "k-1",
    }
    with RoughServer(says(reply(json.dumps(answer).encode()))) as server:
        assert over_http(server.url, "r", bound).kid == "k-1"
    wrong = reply(json.dumps(answer | changes).encode())
    with RoughServer(says(wrong)) as server, pytest.raises(ProviderFailure) as caught:
        over_http(server.url, "r", bound)
    assert caught.value.retryable is False
    assert caught.value.code in ("release.verifier.answer_invalid", "release.verifier.binding_mismatch")


def test_the_question_holds_receipt_and_binding_and_nothing_else() -> None:
    """The verifier learns what it must know, under a key that names the request and the body."""
    bound = binding("quality")
    with RoughServer(says(reply(b"{}", status=503))) as server, pytest.raises(ProviderFailure):
        over_http(server.url, "r", bound)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert json.loads(body) == {
        "schema": "locseal.verification.v1",
        "purpose": "quality",
        "receipt": "r",
        "binding": bound.document,
    }
    assert f"idempotency-key: {REQUEST.request_id}.".encode() in head.lower()
