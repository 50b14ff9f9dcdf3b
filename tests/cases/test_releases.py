"""Field cases of releases and delivery (G, and 31, 71, 79, 93, 105): real steps on real databases, a CMS that keeps a ledger."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, update

from tests.builders import NOW, Keyring, change_event, job_for, response_for, result_for, results_for
from tests.fake_cms import FakeCms
from tests.fakes import RecordingQueue
from tests.intake_builders import PREPARE, Rows, submit
from worker.domain.canonical import sha256_hex
from worker.domain.errors import Blocked, ProviderFailure
from worker.domain.evidence import EvidenceRequest, NotYet
from worker.domain.result import parse_result, result_sha256
from worker.flow.advance_event import advance_event
from worker.flow.collect_evidence import collect_evidence
from worker.flow.collecting.slot import Collecting
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.flow.sweep_fleet import sweep_fleet
from worker.store.engine import reading, writing
from worker.store.schema import approvals, deliveries, events, evidence

Answer = Callable[[EvidenceRequest], object]


@dataclass
class Reviewer:
    """Answers with valid receipts, or as `by_locale` says; keeps what it was asked."""

    keys: Keyring
    by_locale: dict[str, Answer] = field(default_factory=dict)
    asked: list[EvidenceRequest] = field(default_factory=list)

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object | NotYet:
        """Answer one request."""
        self.asked.append(request)
        locale = request.document["target_locale"]
        answer = self.by_locale.get(locale)
        return response_for(self.keys, request) if answer is None else answer(request)

    def locales(self) -> list[str]:
        """Return the locales that were asked about, sorted."""
        return sorted(request.document["target_locale"] for request in self.asked)


@dataclass
class Release:
    """One process that takes every message there is, at a time that a test moves on."""

    services: Services
    queue: RecordingQueue
    now: float = NOW
    blocked: list[str] = field(default_factory=list)  # codes of what a task was refused

    def live(self, worker_id: str = "w-test") -> None:
        """Sweep, then take every message until none is left."""
        here = replace(self.services, now=lambda: self.now, worker_id=worker_id, collecting=Collecting())
        sweep_fleet(here)
        while self.queue.sent:
            message, ids = self.queue.sent.pop(0)
            try:
                self._take(here, message, ids["event_id"])
            except Blocked as failure:  # as the task border does
                self.blocked.append(failure.code)

    def _take(self, here: Services, message: str, event_id: str) -> None:
        if message == "evidence.collect":
            collect_evidence(
                here, event_id, ready=lambda ready_id: self.queue.sent.append((PREPARE, {"event_id": ready_id}))
            )
        elif message == "delivery.prepare":
            prepare_delivery(here, event_id)
        else:
            publish_delivery(here, event_id)


@pytest.fixture
def cms(keys: Keyring) -> FakeCms:
    """A CMS that behaves."""
    return FakeCms(keys=keys)


@pytest.fixture
def reviewer(keys: Keyring) -> Reviewer:
    """A reviewer that finds everything good."""
    return Reviewer(keys)


@pytest.fixture
def release(services: Services, queue: RecordingQueue, cms: FakeCms, reviewer: Reviewer) -> Release:
    """A process before its first message."""
    return Release(
        services=replace(services, cms=lambda _site_id: cms, providers={"default": reviewer}, concurrent_calls=1),
        queue=queue,
    )


def live_texts(cms: FakeCms) -> list[tuple[str, dict[str, str]]]:
    """Return each accepted publication: its event and its texts by locale."""
    return [
        (one["event_id"], {entry["locale"]: entry["target_text"] for entry in one["localizations"]})
        for one in cms.ledger.values()
    ]


def newer(**changes: Any) -> dict[str, Any]:
    """Return the next revision of the source, with another text."""
    return change_event(
        **{"event_id": "event-2", "source_sequence": 2, "source_revision": "rev-2", "source_text": "New.", **changes}
    )


def status(release: Release, event_id: str) -> str:
    """Return where an event stands."""
    return advance_event(replace(release.services, now=lambda: release.now), event_id).status


@pytest.mark.parametrize("moment", ["submit.woken", "collect.claimed", "collect.settled", "prepare.committed"])
def test_121_nothing_of_an_old_source_goes_out_as_the_new(
    release: Release, keys: Keyring, cms: FakeCms, reviewer: Reviewer, moment: str
) -> None:
    """The source changes before or during review, after an approval, or once prepared: only the new texts are published."""
    second = newer()
    came: list[str] = []

    def checkpoint(name: str) -> None:
        if name == moment and not came:
            came.append(name)
            submit(release.services, keys, second, results_for(second, candidate="new text"))

    release.services = replace(release.services, checkpoint=checkpoint)
    submit(release.services, keys, change_event())
    release.live()
    release.now += 400
    release.live()
    assert came == [moment]
    assert live_texts(cms) == [("event-2", {"de": "new text", "fr-CA": "new text"})]
    assert len(cms.requests) == 1
    assert (status(release, "event-1"), status(release, "event-2")) == ("superseded", "delivered")


def test_123_a_new_locale_is_reviewed_against_the_new_source(
    release: Release, keys: Keyring, cms: FakeCms, reviewer: Reviewer
) -> None:
    """Revision 1 is live; revision 2 adds pt-BR: every question about it names revision 2's text and digest."""
    submit(release.services, keys, change_event())
    release.live()
    second = newer(target_locales=["de", "fr-CA", "pt-BR"])
    submit(release.services, keys, second)
    release.live()
    asked = [request.document for request in reviewer.asked if request.document["event_id"] == "event-2"]
    assert sorted(document["target_locale"] for document in asked) == ["de", "fr-CA", "pt-BR"]
    assert {(one["source_text"], one["source_sha256"]) for one in asked} == {("New.", sha256_hex("New."))}
    assert [event_id for event_id, _ in live_texts(cms)] == ["event-1", "event-2"]


def test_125_one_exhausted_locale_holds_all_and_its_repair_reviews_only_itself(
    release: Release, keys: Keyring, cms: FakeCms, reviewer: Reviewer, rows: Rows
) -> None:
    """With pt-BR refused nothing goes out; a better pt-BR brings all three locales, and it alone is asked about."""

    def refuse(_request: EvidenceRequest) -> object:
        raise ProviderFailure("evidence.terminology", "refused", retryable=False)

    event = change_event(target_locales=["de", "fr", "pt-BR"])
    reviewer.by_locale["pt-BR"] = refuse
    submit(release.services, keys, event)
    release.live()
    assert (status(release, "event-1"), cms.requests) == ("waiting", [])
    assert reviewer.locales() == ["de", "fr", "pt-BR"]
    reviewer.asked.clear()
    reviewer.by_locale.clear()
    job = job_for(event, "pt-BR")
    old = result_sha256(parse_result(result_for(job)))
    better = result_for(job, candidate="melhor", replaces=old)
    assert submit(release.services, keys, event, [better]).state == "accepted"
    release.live()
    assert reviewer.locales() == ["pt-BR"]
    [(_, texts)] = live_texts(cms)
    assert (sorted(texts), texts["pt-BR"]) == (["de", "fr", "pt-BR"], "melhor")


@pytest.mark.parametrize(
    ("fault", "row", "said"),
    [
        ("approval revoked", ("failed", "cms.delivery.approval_expired"), {"cms.delivery.approval_expired"}),
        ("approval key revoked", ("failed", "release.approval.tampered"), {"release.approval.tampered"}),
        ("superseded", ("failed", "superseded"), set()),
    ],
)
def test_127_readiness_is_asked_again_when_the_post_begins(
    release: Release, keys: Keyring, engine: Engine, cms: FakeCms, rows: Rows, fault: str, row: Any, said: set[str]
) -> None:
    """What changes after the preparation, even as its last step is done, is seen by the claim: nothing is sent."""

    def happen() -> None:
        if fault == "approval revoked":
            writing(engine, lambda conn: conn.execute(update(approvals).values(revoked_at=NOW)))
        elif fault == "approval key revoked":
            keys.revoke("approval")
        else:
            submit(release.services, keys, newer(), [])

    release.services = replace(
        release.services, checkpoint=lambda name: happen() if name == "prepare.committed" else None
    )
    submit(release.services, keys, change_event())
    release.live()
    release.now += 400
    release.live()
    assert (cms.requests, cms.ledger) == ([], {})
    [delivery] = rows(deliveries)
    assert (delivery["status"], delivery["last_error_code"]) == row
    assert set(release.blocked) == said


def test_129_a_release_of_one_locale_holds_that_locale_alone(release: Release, keys: Keyring, cms: FakeCms) -> None:
    """Another version of the site has de, fr and pt-BR open; the one frozen with [de] publishes de and nothing else."""
    submit(release.services, keys, change_event(target_locales=["de"]))
    wide = change_event(event_id="event-2", source_id="other", target_locales=["de", "fr", "pt-BR"])
    submit(release.services, keys, wide, results_for(wide, locales=["de"]))
    release.live()
    assert [(event_id, list(texts)) for event_id, texts in live_texts(cms)] == [("event-1", ["de"])]


def test_131_a_conflict_at_the_cms_is_final(release: Release, keys: Keyring, cms: FakeCms, rows: Rows) -> None:
    """The CMS says that its page moved on: one POST, a stable reason, no retry however long we wait."""
    cms.sends = ["refuse"]
    submit(release.services, keys, change_event())
    release.live()
    for _ in range(3):
        release.now += 4000
        release.live()
    assert (len(cms.requests), cms.ledger) == (1, {})
    assert [(row["status"], row["last_error_code"]) for row in rows(deliveries)] == [
        ("failed", "cms.delivery.http_422")
    ]


def test_93_an_older_version_that_waits_is_never_sent_after_a_newer(
    release: Release, keys: Keyring, cms: FakeCms, rows: Rows
) -> None:
    """Version 7 waits for a retry, version 8 is delivered, then 7 becomes due: it is superseded and not sent."""
    cms.sends = ["not_now"]
    submit(release.services, keys, change_event(source_sequence=7))
    release.live()
    assert [row["status"] for row in rows(deliveries)] == ["retry_wait"]
    submit(release.services, keys, newer(source_sequence=8))
    release.live()
    release.now += 4000
    release.live()
    assert [event_id for event_id, _ in live_texts(cms)] == ["event-2"]
    assert len(cms.requests) == 2  # the refused one of 7, and 8
    assert status(release, "event-1") == "superseded"


def test_71_every_attempt_of_any_worker_sends_the_same(
    release: Release, keys: Keyring, cms: FakeCms, rows: Rows
) -> None:
    """Time-out, 503, 200, by three workers: three POSTs of one key and the same bytes, which no attempt has a part in."""
    cms.has_lookup, cms.is_idempotent = False, True
    cms.sends = ["timeout", "not_now"]
    submit(release.services, keys, change_event())
    for worker in ("w-1", "w-2", "w-3"):
        release.live(worker)
        release.now += 4000
    assert len(cms.requests) == 3
    assert len(set(cms.requests)) == 1
    [delivery] = rows(deliveries)
    assert (delivery["status"], delivery["attempts"]) == ("succeeded", 3)
    assert cms.requests[0][0] == delivery["delivery_id"]
    assert not [word for word in (b"w-1", b"attempt", str(NOW + 4000).encode()) if word in cms.requests[0][1]]


def test_109_a_receipt_for_sr_proves_neither_script(
    release: Release, keys: Keyring, cms: FakeCms, reviewer: Reviewer, rows: Rows
) -> None:
    """A provider that knows only `sr` signs for it: both Serbian locales are refused, and none is approved."""

    def only_sr(request: EvidenceRequest) -> object:
        plain = change_event(target_locales=["sr"])
        about_sr = EvidenceRequest(**{**vars(request), "document": {**request.document, "target_locale": "sr"}})
        assert plain["localization"]["target_locales"] == ["sr"]
        return response_for(keys, about_sr)

    reviewer.by_locale = {"sr-Latn": only_sr, "sr-Cyrl": only_sr}
    submit(release.services, keys, change_event(target_locales=["sr-Cyrl", "sr-Latn"]))
    release.live()
    assert {(row["status"], row["last_error_code"]) for row in rows(evidence)} == {
        ("failed", "release.quality.receipt.rejected")
    }
    assert (rows(approvals), cms.requests) == ([], [])


def test_111_no_approval_is_borrowed_from_a_sibling(release: Release, keys: Keyring, cms: FakeCms, rows: Rows) -> None:
    """The same text is approved in pt-PT and es-ES; an event that needs pt-BR and es-419 as well is not released."""
    submit(release.services, keys, change_event(target_locales=["es-ES", "pt-PT"]))
    release.live()
    wanted = change_event(event_id="event-2", source_sequence=2, target_locales=["es-419", "es-ES", "pt-BR", "pt-PT"])
    submit(release.services, keys, wanted, [])
    release.live()
    assert [event_id for event_id, _ in live_texts(cms)] == ["event-1"]
    assert status(release, "event-2") == "waiting"
    submit(release.services, keys, wanted, results_for(wanted, locales=["es-419", "pt-BR"]))
    release.live()
    assert sorted(live_texts(cms)[1][1]) == ["es-419", "es-ES", "pt-BR", "pt-PT"]


def test_79_a_receipt_seen_before_counts_for_its_own_question_only(
    release: Release, keys: Keyring, reviewer: Reviewer, rows: Rows
) -> None:
    """The provider repeats the first locale's receipts for the second, and event 1's for event 2: all are rejected."""
    kept: list[dict[str, Any]] = []

    def replay(request: EvidenceRequest) -> object:
        answer = response_for(keys, request)
        kept.append(answer)
        return answer | {"quality_receipt": kept[0]["quality_receipt"]}

    reviewer.by_locale = dict.fromkeys(("de", "fr"), replay)
    submit(release.services, keys, change_event(target_locales=["de", "fr"]))
    submit(release.services, keys, change_event(event_id="event-2", source_id="other", target_locales=["de"]))
    release.live()
    assert len(kept) == 3
    assert sorted((row["status"], row["last_error_code"]) for row in rows(evidence)) == sorted(
        [("succeeded", None), *[("failed", "release.quality.receipt.rejected")] * 2], key=str
    )
    assert len(rows(approvals)) == 1


def test_105_no_message_goes_out_before_what_it_is_about(release: Release, keys: Keyring, engine: Engine) -> None:
    """At every wake of a whole release another connection already sees the event, its approvals or its delivery."""
    seen: list[tuple[str, int]] = []
    table = {"evidence.collect": events, "delivery.prepare": approvals, "delivery.publish": deliveries}

    class Looking(RecordingQueue):
        def wake(self, message: str, **ids: str) -> bool:
            with reading(engine) as conn:
                found = conn.execute(select(func.count()).select_from(table[message])).scalar_one()
            seen.append((message, int(found)))
            return super().wake(message, **ids)

    looking = Looking()
    here = Release(services=replace(release.services, queue=looking), queue=looking)
    submit(here.services, keys, change_event())
    here.live()
    assert seen == [("evidence.collect", 1), ("delivery.publish", 1)]


def test_105_a_submission_that_rolls_back_leaves_no_wake(
    release: Release, keys: Keyring, queue: RecordingQueue
) -> None:
    """A refused change writes no event and sends nothing; a message about an event that is not there ends quietly."""
    assert submit(release.services, keys, change_event(), [{"schema": "x"}]).state == "rejected"
    assert queue.take() == []
    assert collect_evidence(release.services, "event-1", ready=pytest.fail).claimed == 0


def test_49_no_test_trusts_a_fake_broker() -> None:
    """No test imports a fake Redis: whatever is said of the broker is said of a real one."""
    tests = Path(__file__).parents[1]
    for path in tests.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] in {"fakeredis", "birdisle"}], path
