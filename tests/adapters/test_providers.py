"""Review providers: one contract for the in-process one and the HTTP one, then what only HTTP can do wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.adapters.conftest import run_calls
from tests.builders import Keyring, change_event, request_for, response_for
from tests.rough_server import RoughServer, hangs_up, reply, says
from worker.adapters.endpoint import Endpoint
from worker.adapters.http import HttpClient
from worker.adapters.providers.http import HttpProvider
from worker.adapters.providers.local import LocalProvider
from worker.adapters.sandbox.contracts import REVIEWER
from worker.adapters.sandbox.server import SandboxThread
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Invalid, ProviderFailure
from worker.domain.evidence import Evidence, EvidenceRequest, NotYet, judge_response
from worker.domain.receipt import binding_for

PLAIN = request_for(change_event(), "de")
LEGAL = request_for(change_event(content_type="legal"), "de")
UNSURE = request_for(change_event(), "fr-CA", confidence="low")

Ask = Callable[..., Any]


def over_http(url: str, requests: list[EvidenceRequest], *, deadline: float = 5.0) -> list[Any]:
    """Ask for all at once; return answers and exceptions in order."""

    async def ask(client: HttpClient) -> list[Any]:
        provider = HttpProvider(client, Endpoint(url=url, allow_loopback_http=True))
        asked = [provider.review(request, deadline_seconds=deadline) for request in requests]
        return await asyncio.gather(*asked, return_exceptions=True)

    return run_calls(ask)


@pytest.fixture(params=["local", "http"])
def ask(request: pytest.FixtureRequest, sandbox: SandboxThread) -> Ask:
    """Ask either provider, both signing with the sandbox's keys."""
    if request.param == "http":
        return lambda requests: over_http(sandbox.listening.provider_url, requests)
    local = LocalProvider(sandbox.sandbox.keys.receipt, reviewer=REVIEWER)

    async def all_of(requests: list[EvidenceRequest]) -> list[Any]:
        return await asyncio.gather(*(local.review(one, deadline_seconds=5) for one in requests))

    return lambda requests: asyncio.run(all_of(requests))


def verified(sandbox: SandboxThread, request: EvidenceRequest, evidence: Evidence) -> list[str | None]:
    """Return the kids of the receipts of an answer, each verified for its purpose."""
    verifier = JwsVerifier(sandbox.sandbox.keys.trust)
    found = [(evidence.quality_receipt, binding_for(request, "quality"))]
    if evidence.human_receipt:
        found.append((evidence.human_receipt, binding_for(request, "human")))
    if evidence.independent_receipt:
        found.append((evidence.independent_receipt, binding_for(request, "independent", evidence.reviewer)))
    return [asyncio.run(verifier.verify(text, bound, deadline_seconds=1)).kid for text, bound in found]


@pytest.mark.parametrize(
    ("request_", "kids"),
    [
        (PLAIN, ["sandbox-quality-1"]),
        (LEGAL, ["sandbox-quality-1", "sandbox-human-1"]),
        (UNSURE, ["sandbox-quality-1", "sandbox-independent-1"]),
    ],
    ids=["plain", "legal", "unsure"],
)
def test_the_answer_holds_exactly_the_receipts_that_were_called_for(
    ask: Ask, sandbox: SandboxThread, request_: EvidenceRequest, kids: list[str]
) -> None:
    """Each kind of content comes back with its receipts, and each of them verifies for its purpose."""
    [answer] = ask([request_])
    assert verified(sandbox, request_, judge_response(request_, answer)) == kids


def test_calls_at_once_get_their_own_answers(ask: Ask) -> None:
    """Fifty calls in flight never mix up their answers, and leave the request as it was."""
    requests = [request_for(change_event(event_id=f"event-{n}"), "de") for n in range(50)]
    before = [json.dumps(request.document) for request in requests]
    answers = ask(requests)
    assert [answer["request_id"] for answer in answers] == [request.request_id for request in requests]
    assert [json.dumps(request.document) for request in requests] == before


def test_the_local_provider_keeps_to_the_deadline() -> None:
    """A delay longer than the deadline is a time-out at the deadline, like anybody's."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    provider = LocalProvider(lambda _purpose, _binding: "receipt", delay_seconds=9.0, sleep=sleep)
    with pytest.raises(ProviderFailure) as caught:
        asyncio.run(provider.review(PLAIN, deadline_seconds=2.0))
    assert (caught.value.code, caught.value.retryable) == ("evidence.provider.timeout", True)
    answer = asyncio.run(provider.review(PLAIN, deadline_seconds=10.0))
    assert isinstance(answer, dict)
    assert slept == [2.0, 9.0]


def test_low_confidence_may_go_to_a_human_instead() -> None:
    """With human escalation a text of low confidence gets a human receipt and no independent one."""
    provider = LocalProvider(lambda purpose, _binding: purpose, escalation="human")
    answer = asyncio.run(provider.review(UNSURE, deadline_seconds=1))
    assert judge_response(UNSURE, answer) == Evidence(quality_receipt="receipt:quality", human_receipt="receipt:human")


def test_every_attempt_sends_the_same_bytes_under_the_same_key() -> None:
    """The body is the canonical document, and the idempotency key names the request and the digest of the body."""
    with RoughServer(says(reply(b"", status=503)), says(reply(b'{"x":1}'))) as server:
        first, second = (over_http(server.url, [PLAIN])[0] for _ in range(2))
    assert (first.code, first.retryable, second) == ("evidence.provider.status_503", True, {"x": 1})
    heads, bodies = zip(*(request.split(b"\r\n\r\n", 1) for request in server.requests), strict=True)
    assert bodies == (PLAIN.body, PLAIN.body)
    key = f"idempotency-key: {PLAIN.request_id}.{sha256_hex(PLAIN.body)}".encode()
    assert all(key in head.lower() for head in heads)


def test_accepted_not_yet_carries_the_wait() -> None:
    """202 is no answer yet, with or without the wait that was asked for; its body is not looked at."""
    with RoughServer(
        says(reply(b"", status=202, headers=("Retry-After: 120",), content_type="")),
        says(reply(b"<p>queued", status=202, content_type="text/html")),
    ) as server:
        found = [over_http(server.url, [PLAIN])[0] for _ in range(2)]
    assert found == [NotYet(retry_after_seconds=120.0), NotYet(retry_after_seconds=None)]


@pytest.mark.parametrize(
    ("status", "body", "code", "retryable"),
    [
        (422, {"code": "placeholder.missing"}, "evidence.placeholder.missing", False),
        (422, {"code": "evidence.tone"}, "evidence.tone", False),
        (429, {"code": "quota.daily"}, "evidence.quota.daily", True),
        (422, {"code": "Not a code: secret prose"}, "evidence.provider.status_422", False),
        (422, {"code": 7}, "evidence.provider.status_422", False),
        (422, {"code": "x" * 128}, "evidence.failed", False),
        (422, ["code"], "evidence.provider.status_422", False),
        (404, {}, "evidence.provider.status_404", False),
    ],
)
def test_a_refusal_may_name_its_code(status: int, body: object, code: str, retryable: bool) -> None:
    """A well-formed code of the provider is kept under our area; prose never is; the status decides what is tried again."""
    with RoughServer(says(reply(json.dumps(body).encode(), status=status, headers=("Retry-After: 9",)))) as server:
        [failure] = over_http(server.url, [PLAIN])
    assert isinstance(failure, ProviderFailure)
    assert (failure.code, failure.retryable, failure.retry_after_seconds) == (code, retryable, 9.0)
    assert "prose" not in str(failure)


def test_an_answer_for_another_request_is_returned_unjudged_and_refused_by_the_judge() -> None:
    """The adapter judges nothing: what is bound to another request fails on its binding, terminally."""
    other = response_for(Keyring(), UNSURE)
    with RoughServer(says(reply(json.dumps(other).encode()))) as server:
        [answer] = over_http(server.url, [PLAIN])
    assert answer == other
    with pytest.raises(Invalid) as caught:
        judge_response(PLAIN, answer)
    assert (caught.value.code, caught.value.retryable) == ("evidence.response.binding_mismatch", False)


def test_a_call_is_made_once() -> None:
    """A torn answer is reported and not asked for again."""
    with RoughServer(hangs_up()) as server:
        [failure] = over_http(server.url, [PLAIN])
    assert (failure.code, failure.retryable, failure.sent) == ("evidence.provider.connection_lost", True, True)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("behaviour", "code", "retryable"),
    [
        ({"fail_times": 1, "fail_status": 500}, "evidence.provider.status_500", True),
        ({"fail_ratio": 1.0, "fail_status": 400}, "evidence.provider.status_400", False),
        ({"rubbish": "html"}, "evidence.provider.content_type", True),
        ({"rubbish": "text"}, "evidence.provider.json_invalid", True),
        ({"rubbish": "duplicate"}, "evidence.provider.json_invalid", True),
        ({"rubbish": "truncated"}, "evidence.provider.connection_lost", True),
        ({"lose_answer_times": 1}, "evidence.provider.connection_lost", True),
        ({"redirect_to": "https://other.invalid/steal"}, "evidence.provider.redirect", False),
        ({"refuse": {"de": "terms.missing"}}, "evidence.terms.missing", False),
        ({"delay_seconds": 5.0}, "evidence.provider.timeout", True),
        ({"answer_delay_seconds": 5.0}, "evidence.provider.timeout", True),
    ],
)
def test_a_misbehaving_provider_becomes_its_stable_code(
    sandbox: SandboxThread, behaviour: dict[str, Any], code: str, retryable: bool
) -> None:
    """Each way in which the sandbox misbehaves ends in one code, after exactly one call."""
    sandbox.behave(provider=behaviour)
    [failure] = over_http(sandbox.listening.provider_url, [PLAIN], deadline=0.4 if "timeout" in code else 5.0)
    assert isinstance(failure, ProviderFailure)
    assert (failure.code, failure.retryable) == (code, retryable)
    assert sandbox.state()["calls"]["provider"] == 1


def test_receipts_by_an_untrusted_key_and_answers_about_others_do_not_pass(sandbox: SandboxThread) -> None:
    """A wrong key makes receipts that no verifier takes; parsed rubbish fails the judge."""
    verifier = JwsVerifier(sandbox.sandbox.keys.trust)
    sandbox.behave(provider={"wrong_key": True})
    [answer] = over_http(sandbox.listening.provider_url, [PLAIN])
    evidence = judge_response(PLAIN, answer)
    with pytest.raises(Invalid) as caught:
        asyncio.run(verifier.verify(evidence.quality_receipt, binding_for(PLAIN, "quality"), deadline_seconds=1))
    assert caught.value.code == "release.quality.receipt.rejected"
    for rubbish, code in (("other", "evidence.response.invalid"), ("binding", "evidence.response.binding_mismatch")):
        sandbox.behave(provider={"rubbish": rubbish})
        [answer] = over_http(sandbox.listening.provider_url, [PLAIN])
        with pytest.raises(Invalid) as caught:
            judge_response(PLAIN, answer)
        assert caught.value.code == code
