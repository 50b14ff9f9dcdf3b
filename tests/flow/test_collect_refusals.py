"""Every way in which an attempt ends without an approval: its code, its row's state and due time, and nothing signed.

Terminal refusals fail the row at once; everything retryable waits for exactly as long as the rules say (SPEC 4 to 6).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, update

from tests.builders import NOW, REVIEWER, TRANSLATOR, Keyring, change_event, job_for, response_for, results_for
from tests.evidence_builders import ScriptedProvider, ScriptedVerifier, WatchedKeys, failing, good, with_provider
from tests.intake_builders import Rows, submit
from worker.domain.canonical import hash_of
from worker.domain.errors import Blocked, ProviderFailure, Unavailable
from worker.domain.evidence import EvidenceRequest, NotYet
from worker.domain.review import Collected
from worker.flow.collect_evidence import collect_evidence
from worker.flow.services import Deadlines, Services
from worker.store.engine import writing
from worker.store.schema import approvals, events, evidence, public_keys, receipts, results, setbacks

REVIEW = {"schema": "locseal.independent-review.v1", "provider": dict(REVIEWER), "receipt": "r"}


def one_locale(services: Services, keys: Keyring, kind: str = "ui") -> None:
    """Submit one locale: `legal`, `low` (confidence) or a plain one."""
    event = change_event(target_locales=["de"], content_type="legal" if kind == "legal" else "ui")
    submit(services, keys, event, results_for(event, confidence="low" if kind == "low" else "high"))


def refused(
    services: Services, rows: Rows, *, code: str, status: str, due_at: float, attempts: int = 1, failed: int = 1
) -> None:
    """Collect once and check that the one row ended like this, with its setback, and that nothing was approved."""
    watched = WatchedKeys(services.keys)  # type: ignore[arg-type]
    ready: list[str] = []
    done = collect_evidence(replace(services, keys=watched), None, ready=ready.append)
    assert done == Collected(claimed=1, approved=0, failed=failed)
    [row] = rows(evidence)
    assert (row["status"], row["attempts"], row["last_error_code"], row["next_attempt_at"], row["updated_at"]) == (
        status,
        attempts,
        code,
        due_at,
        NOW,
    )
    assert (row["lease_owner"], row["lease_token"], row["lease_expires_at"]) == (None, None, None)
    assert [(one["code"], one["outcome"], one["attempt"], one["lease_owner"]) for one in rows(setbacks)] == [
        (code, status if failed else "released", 1, "w-test")
    ]
    assert (rows(approvals), rows(receipts), watched.signed, ready) == ([], [], [], [])
    assert {one["purpose"] for one in rows(public_keys)} == {"submission"}


@pytest.mark.parametrize(
    ("kind", "changes", "code"),
    [
        ("ui", {"extra": 1}, "evidence.response.invalid"),
        ("ui", {"schema": "locseal.evidence-response.v2"}, "evidence.response.binding_mismatch"),
        ("ui", {"request_id": "evidence-0"}, "evidence.response.binding_mismatch"),
        ("ui", {"result_sha256": "0" * 64}, "evidence.response.binding_mismatch"),
        ("ui", {"quality_receipt": None}, "evidence.quality_receipt.invalid"),
        ("ui", {"human_review_receipt": "r"}, "evidence.review_escalation.unexpected"),
        ("ui", {"independent_model_review": REVIEW}, "evidence.review_escalation.unexpected"),
        ("legal", {"independent_model_review": REVIEW}, "evidence.independent_model_review.legal_forbidden"),
        ("legal", {"human_review_receipt": None}, "evidence.human_receipt.required"),
        ("low", {"independent_model_review": None}, "evidence.review_escalation.required"),
        ("low", {"human_review_receipt": "r"}, "evidence.review_escalation.required"),
        ("low", {"independent_model_review": {"schema": "x"}}, "evidence.independent_model_review.invalid"),
        (
            "low",
            {"independent_model_review": REVIEW | {"provider": {"id": "a"}}},
            "evidence.independent_model_review.provider.invalid",
        ),
        (
            "low",
            {"independent_model_review": REVIEW | {"provider": TRANSLATOR}},
            "evidence.independent_model_review.not_independent",
        ),
        (
            "low",
            {"independent_model_review": REVIEW | {"receipt": "r\x00"}},
            "evidence.independent_model_review.receipt.required",
        ),
        ("ui", {"quality_receipt": "a..b"}, "release.quality.receipt.rejected"),
        ("legal", {"human_review_receipt": "a..b"}, "release.human.receipt.rejected"),
        ("low", {"independent_model_review": REVIEW}, "release.independent.receipt.rejected"),
    ],
)
def test_refused_answer_fails_the_row_at_once(
    services: Services, keys: Keyring, rows: Rows, kind: str, changes: dict[str, Any], code: str
) -> None:
    """Whatever is wrong with an answer is terminal: failed after one attempt, nothing signed, nothing stored."""
    one_locale(services, keys, kind)
    asked = with_provider(services, ScriptedProvider(good(keys, **changes)))
    refused(asked, rows, code=code, status="failed", due_at=NOW)


def test_answer_that_is_no_object_fails_the_row(services: Services, keys: Keyring, rows: Rows) -> None:
    """An answer that is no JSON object at all is `evidence.response.invalid`."""
    one_locale(services, keys)
    asked = with_provider(services, ScriptedProvider(lambda _: ["no", "object"]))
    refused(asked, rows, code="evidence.response.invalid", status="failed", due_at=NOW)


def test_changed_request_is_refused(services: Services, keys: Keyring, rows: Rows) -> None:
    """A provider that changes its copy of the request gets no approval, however good its answer is."""

    def answer(request: EvidenceRequest) -> Any:
        response = response_for(keys, request)
        request.document["human_review_required"] = 0  # type: ignore[index]  # equals False, and is none
        return response

    one_locale(services, keys)
    asked = with_provider(services, ScriptedProvider(answer))
    refused(asked, rows, code="evidence.request_mutated", status="failed", due_at=NOW)


# --- failures of the provider ---------------------------------------------------------------------------------------


class Unsure(ProviderFailure):
    """A failure whose `retryable` is no boolean."""

    def __init__(self) -> None:
        super().__init__("evidence.busy", retryable=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "code", "status", "due_at"),
    [
        (ProviderFailure("evidence.busy", retryable=True), "evidence.busy", "retry_wait", NOW + 5),
        (ProviderFailure("quota.used_up", retryable=False), "evidence.quota.used_up", "failed", NOW),
        (ProviderFailure("No Code!", retryable=True), "evidence.failed", "retry_wait", NOW + 5),
        (ProviderFailure("x" * 120, retryable=False), "evidence.failed", "failed", NOW),
        (ProviderFailure("a.b", retryable=True, retry_after_seconds=3), "evidence.a.b", "retry_wait", NOW + 5),
        (ProviderFailure("a.b", retryable=True, retry_after_seconds=90), "evidence.a.b", "retry_wait", NOW + 90),
        (ProviderFailure("a.b", retryable=True, retry_after_seconds=1e9), "evidence.a.b", "retry_wait", NOW + 3600),
        (
            ProviderFailure("a.b", retryable=True, retry_after_seconds=float("nan")),
            "evidence.a.b",
            "retry_wait",
            NOW + 5,
        ),
        (Unsure(), "evidence.unavailable", "retry_wait", NOW + 5),
        (ValueError("secret text"), "evidence.unavailable", "retry_wait", NOW + 5),
    ],
)
def test_failure_of_the_provider(
    services: Services, keys: Keyring, rows: Rows, failure: Exception, code: str, status: str, due_at: float
) -> None:
    """A declared failure keeps its code under `evidence` and its word on retrying; any other is retryable."""
    one_locale(services, keys)
    asked = with_provider(services, ScriptedProvider(failing(failure)))
    refused(asked, rows, code=code, status=status, due_at=due_at)


def test_a_wait_that_was_asked_for_is_kept_with_its_attempt(services: Services, keys: Keyring, rows: Rows) -> None:
    """The value as it came stands in the line of the attempt, also where the wait itself was cut to an hour."""
    one_locale(services, keys)
    failure = ProviderFailure("evidence.busy", retryable=True, retry_after_seconds=999_999.0)
    refused(
        with_provider(services, ScriptedProvider(failing(failure))),
        rows,
        code="evidence.busy",
        status="retry_wait",
        due_at=NOW + 3600,
    )
    assert [one["retry_after_seconds"] for one in rows(setbacks)] == [999_999.0]


def test_random_part_only_lengthens_the_wait(services: Services, keys: Keyring, rows: Rows) -> None:
    """With the most that the random part may be, the first wait is 7.5 seconds."""
    one_locale(services, keys)
    provider = ScriptedProvider(failing(ProviderFailure("evidence.busy", retryable=True)))
    asked = with_provider(services, provider, jitter=lambda: 0.5)
    refused(asked, rows, code="evidence.busy", status="retry_wait", due_at=NOW + 7.5)


def test_provider_that_ignores_its_deadline_is_cut_off(services: Services, keys: Keyring, rows: Rows) -> None:
    """A call that never ends gives its place back at its deadline, retryably."""

    async def answer(_request: EvidenceRequest) -> Any:
        await asyncio.Event().wait()

    one_locale(services, keys)
    hasty = Deadlines(provider_seconds=0.01)
    asked = with_provider(services, ScriptedProvider(answer), deadlines=hasty)
    refused(asked, rows, code="evidence.unavailable", status="retry_wait", due_at=NOW + 5)


def test_attempts_are_bounded(services: Services, keys: Keyring, rows: Rows) -> None:
    """Five retryable failures wait 5, 10, 20 and 40 seconds, and the fifth fails the row for good."""
    one_locale(services, keys)
    provider = ScriptedProvider(failing(ProviderFailure("evidence.busy", retryable=True)))
    now, seen = NOW, []
    for _ in range(6):
        collect_evidence(with_provider(services, provider, now=lambda: now), None, ready=lambda _: None)  # noqa: B023
        [row] = rows(evidence)
        seen.append((row["status"], row["attempts"], row["next_attempt_at"] - NOW))
        now = row["next_attempt_at"]
    assert seen == [
        ("retry_wait", 1, 5),
        ("retry_wait", 2, 15),
        ("retry_wait", 3, 35),
        ("retry_wait", 4, 75),
        ("failed", 5, 75),
        ("failed", 5, 75),
    ]
    assert len(provider.asked) == 5


@pytest.mark.parametrize(
    ("asked_seconds", "wait"), [(None, 30), (0, 1), (600, 600), (1e9, 3600), (float("nan"), 30), (True, 30)]
)
def test_not_yet_hands_the_row_back_uncounted(
    services: Services, keys: Keyring, rows: Rows, asked_seconds: float | None, wait: float
) -> None:
    """An answer "accepted, not yet" counts no attempt; the row is due again when the provider said, within an hour."""
    one_locale(services, keys)
    asked = with_provider(services, ScriptedProvider(lambda _: NotYet(retry_after_seconds=asked_seconds)))
    refused(asked, rows, code="evidence.not_yet", status="retry_wait", due_at=NOW + wait, attempts=0, failed=0)


def test_unknown_route_hands_the_row_back(services: Services, keys: Keyring, rows: Rows) -> None:
    """A route that this process does not know costs no attempt; somebody has to mend the settings."""
    one_locale(services, keys)
    nowhere = replace(services, providers={})
    refused(nowhere, rows, code="evidence.route.unknown", status="retry_wait", due_at=NOW + 60, attempts=0, failed=0)


# --- verifiers, signers and what is stored --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "code", "status", "due_at"),
    [
        (ProviderFailure("verifier.busy", retryable=True), "release.verifier.busy", "retry_wait", NOW + 5),
        (Unavailable("keys.trust.missing"), "release.keys.trust.missing", "retry_wait", NOW + 5),
        (Blocked("release.quality.receipt.rejected"), "release.quality.receipt.rejected", "failed", NOW),
        (RuntimeError("secret text"), "release.receipt.unavailable", "retry_wait", NOW + 5),
    ],
)
def test_verifier_that_cannot_answer_is_retried(
    services: Services, keys: Keyring, rows: Rows, failure: Exception, code: str, status: str, due_at: float
) -> None:
    """A verifier's rejection is terminal; one that cannot answer, or fails in any other way, is asked again."""
    one_locale(services, keys)
    verifier = ScriptedVerifier(lambda _receipt, _binding: failing(failure)(_binding))  # type: ignore[arg-type]
    asked = with_provider(services, ScriptedProvider(good(keys)), verifiers={"quality": verifier})
    refused(asked, rows, code=code, status=status, due_at=due_at)
    assert len(verifier.shown) == 1


@pytest.mark.parametrize("answer", [None, "verified", True])
def test_verifier_must_speak_of_the_receipt(services: Services, keys: Keyring, rows: Rows, answer: object) -> None:
    """An answer that is not about this receipt and purpose proves nothing."""
    one_locale(services, keys)
    verifier = ScriptedVerifier(lambda _receipt, _binding: answer)
    asked = with_provider(services, ScriptedProvider(good(keys)), verifiers={"quality": verifier})
    refused(asked, rows, code="release.receipt.unavailable", status="retry_wait", due_at=NOW + 5)


@pytest.mark.parametrize("failure", [Unavailable("keys.signer.failed"), RuntimeError("kms: secret")])
def test_signing_failure_is_retried(services: Services, keys: Keyring, rows: Rows, failure: Exception) -> None:
    """When the approval cannot be signed, nothing of the answer is stored and the row is tried again."""
    one_locale(services, keys)
    broken = replace(services, keys=WatchedKeys(keys, failing=failure))
    done = collect_evidence(with_provider(broken, ScriptedProvider(good(keys))), None, ready=lambda _: None)
    assert done == Collected(claimed=1, failed=1)
    [row] = rows(evidence)
    assert (row["status"], row["last_error_code"], row["next_attempt_at"]) == (
        "retry_wait",
        "release.approval.signing.failed",
        NOW + 5,
    )
    assert (rows(approvals), rows(receipts)) == ([], [])


@pytest.mark.parametrize("altered", ["source", "shape", "target", "gone"])
def test_altered_document_stops_its_row_alone(
    services: Services, engine: Engine, keys: Keyring, rows: Rows, altered: str
) -> None:
    """Where a stored text is not what was accepted, nobody is shown it; rows that it does not concern go on."""
    event = change_event(target_locales=["de", "fr"])
    other = change_event(event_id="event-2", source_id="other", target_locales=["de"])
    submit(services, keys, event)
    submit(services, keys, other)
    job_id = job_for(event, "de").job_id
    [text] = [row["document"] for row in rows(events) if row["event_id"] == "event-1"]
    [target] = [row["document"] for row in rows(results) if row["job_id"] == job_id]
    changes = {
        "source": update(events).where(events.c.event_id == "event-1").values(document=text.replace("cart", "tart")),
        "shape": update(events).where(events.c.event_id == "event-1").values(document="{}", event_sha256=hash_of({})),
        "target": update(results).where(results.c.job_id == job_id).values(document=target.replace("cart", "tart")),
        "gone": update(results).where(results.c.job_id == job_id).values(result_sha256="0" * 64),
    }
    writing(engine, lambda conn: conn.execute(changes[altered]))
    provider = ScriptedProvider(good(keys))
    collect_evidence(with_provider(services, provider), None, ready=lambda _: None)
    stopped = {"de", "fr"} if altered in {"source", "shape"} else {"de"}
    ended = {(row["event_id"], row["job_id"]): (row["status"], row["last_error_code"]) for row in rows(evidence)}
    tampered = ("failed", "evidence.request.tampered")
    assert ended == {
        ("event-1", job_for(event, "de").job_id): tampered,
        ("event-1", job_for(event, "fr").job_id): tampered if "fr" in stopped else ("succeeded", None),
        ("event-2", job_for(other, "de").job_id): ("succeeded", None),
    }
    assert len(provider.asked) == 3 - len(stopped)
