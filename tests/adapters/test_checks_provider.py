"""The review route `checks`: signs what passes, blocks with a stable code, and never stands in for another review."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.builders import Keyring, change_event, job_for, parsed, result_for
from worker.adapters.providers.checks import ChecksProvider
from worker.adapters.providers.local import LocalProvider
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.checks.policy import parse_check_policy
from worker.domain.errors import ProviderFailure
from worker.domain.evidence import EvidenceRequest, NotYet, build_request, judge_response
from worker.domain.receipt import binding_for
from worker.domain.result import parse_result


class Pen:
    """Signs with a keyring and keeps the purposes it was asked for."""

    def __init__(self) -> None:
        self.keys = Keyring()
        self.purposes: list[str] = []

    def __call__(self, purpose: str, document: Mapping[str, Any]) -> str:
        self.purposes.append(purpose)
        return self.keys.sign(purpose, document).signature


class Behind:
    """A provider behind the checks that keeps what it was asked and how long it had."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[tuple[str, float]] = []

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object:
        self.asked.append((request.request_id, deadline_seconds))
        return self.answer


def asked(source: str, target: str, *, confidence: str = "high", **event: Any) -> EvidenceRequest:
    change = parsed(change_event(source_text=source, target_locales=["de"], **event))
    job = job_for(change, "de")
    return build_request(change, job, parse_result(result_for(job, candidate=target, confidence=confidence)), "r1")


def failure(provider: ChecksProvider, request: EvidenceRequest, *, deadline: float = 5.0) -> ProviderFailure:
    with pytest.raises(ProviderFailure) as caught:
        asyncio.run(provider.review(request, deadline_seconds=deadline))
    return caught.value


GOOD = asked("Hello {name}, welcome", "Hallo {name}, willkommen")


def test_what_passes_gets_a_quality_receipt_that_verifies() -> None:
    """The answer is judged like any provider's, and its receipt proves exactly this request."""
    pen = Pen()
    answer = asyncio.run(ChecksProvider(pen).review(GOOD, deadline_seconds=5))
    evidence = judge_response(GOOD, answer)
    assert (evidence.human_receipt, evidence.independent_receipt, pen.purposes) == (None, None, ["receipt:quality"])
    verifier = JwsVerifier(pen.keys.trust)
    verified = asyncio.run(verifier.verify(evidence.quality_receipt, binding_for(GOOD, "quality"), deadline_seconds=1))
    assert verified.purpose == "quality"


def test_what_blocks_fails_for_good_and_signs_nothing() -> None:
    """The code is that of the first blocking finding; the sentence names codes and places and none of the texts."""
    pen = Pen()
    source = json.dumps({"title": "Hello {name}", "body": "<b>Now</b> open", "Secret text": "Read %s"})
    target = json.dumps({"title": "Hallo", "body": "Jetzt offen", "Secret text": "Lies"})
    failed = failure(ChecksProvider(pen), asked(source, target, media_type="application/json"))
    assert (failed.code, failed.retryable) == ("evidence.checks.placeholder.missing", False)
    assert failed.message == (
        "placeholder.missing at $.title, markup.tag.missing at $.body, placeholder.missing at $.*2"
    )
    assert pen.purposes == []


def test_the_sentence_of_a_failure_is_bounded() -> None:
    """However many findings block, ten are named."""
    many = asked(json.dumps(["{a} here"] * 50), json.dumps(["hier"] * 50), media_type="application/json")
    assert failure(ChecksProvider(Pen()), many).message.endswith("placeholder.missing at $[9], and 40 more")


@pytest.mark.parametrize(
    ("event", "confidence", "code"),
    [
        ({"content_type": "legal"}, "high", "evidence.checks.human_review_required"),
        ({"content_type": "legal"}, "low", "evidence.checks.human_review_required"),
        ({}, "low", "evidence.checks.second_review_required"),
    ],
)
def test_the_checks_never_replace_another_review(event: dict[str, Any], confidence: str, code: str) -> None:
    """Legal content and low confidence fail with what is needed, for good, and nothing is signed."""
    pen = Pen()
    failed = failure(ChecksProvider(pen), asked("Hello there", "Hallo zusammen", confidence=confidence, **event))
    assert (failed.code, failed.retryable, pen.purposes) == (code, False, [])


def test_who_reviews_behind_the_checks_gets_what_needs_more() -> None:
    """Plain texts are answered here; the others are handed on with what is left of the deadline."""
    pen = Pen()
    local = LocalProvider(pen)
    provider = ChecksProvider(pen, then=local)
    legal, unsure = (
        asked("Hello there", "Hallo zusammen", content_type="legal"),
        asked("Hello there", "Hallo zusammen", confidence="low"),
    )
    for request, purposes in (
        (GOOD, ["receipt:quality"]),
        (legal, ["receipt:quality", "receipt:human"]),
        (unsure, ["receipt:independent", "receipt:quality"]),
    ):
        pen.purposes.clear()
        judge_response(request, asyncio.run(provider.review(request, deadline_seconds=5)))
        assert sorted(pen.purposes) == sorted(purposes)
    behind = Behind(NotYet(retry_after_seconds=9.0))
    waiting = asyncio.run(ChecksProvider(pen, then=behind).review(legal, deadline_seconds=5.0))
    assert waiting == NotYet(retry_after_seconds=9.0)
    [(request_id, left)] = behind.asked
    assert request_id == legal.request_id
    assert 0 < left <= 5.0


def test_a_provider_behind_the_checks_cannot_overrule_them() -> None:
    """With the checks in front of everything, what they block is never asked, and what passes is the other's word."""
    behind = Behind({"answer": "as it is"})
    provider = ChecksProvider(Pen(), then=behind, always_then=True)
    blocked = asked("Hello {name}", "Hallo")
    assert failure(provider, blocked).code == "evidence.checks.placeholder.missing"
    assert behind.asked == []
    assert asyncio.run(provider.review(GOOD, deadline_seconds=5)) == {"answer": "as it is"}
    with pytest.raises(ValueError, match="behind"):
        ChecksProvider(Pen(), always_then=True)


def test_the_policy_decides_by_content_type() -> None:
    """What only warns in marketing blocks where the policy says so."""
    request = asked("Error 500 here", "Fehler hier")
    strict = parse_check_policy({"rules": {"marketing": {"block": ["number.missing"]}}})
    assert judge_response(request, asyncio.run(ChecksProvider(Pen()).review(request, deadline_seconds=5)))
    assert failure(ChecksProvider(Pen(), policy=strict), request).code == "evidence.checks.number.missing"


def test_large_texts_leave_the_loop_free_and_keep_the_deadline() -> None:
    """While a large text is checked the loop serves others; one that takes too long is a time-out worth trying again."""
    large = asked("Good morning everybody. " * 20_000, "Guten Morgen zusammen. " * 20_000)

    async def meanwhile() -> tuple[object, int]:
        turns = 0
        checking = asyncio.ensure_future(ChecksProvider(Pen()).review(large, deadline_seconds=60))
        while not checking.done():
            await asyncio.sleep(0)
            turns += 1
        return await checking, turns

    answer, turns = asyncio.run(meanwhile())
    judge_response(large, answer)
    assert turns > 10
    late = failure(ChecksProvider(Pen()), large, deadline=0.000_001)
    assert (late.code, late.retryable) == ("evidence.provider.timeout", True)
