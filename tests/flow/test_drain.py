"""A process that drains: what it has not begun goes back at once, what it has begun ends, what is cut off stays leased."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.builders import NOW, Keyring, change_event
from tests.delivery_builders import approved_event
from tests.evidence_builders import ScriptedProvider, good, with_provider
from tests.fake_cms import FakeCms
from tests.fakes import RecordingQueue
from tests.intake_builders import Rows, submit
from worker.adapters.calls import CallLoop
from worker.domain.breaker import PROVIDER
from worker.domain.delivery import CmsAnswer, Lookup
from worker.domain.errors import Blocked, ProviderFailure, Unavailable
from worker.domain.evidence import EvidenceRequest
from worker.domain.review import Collected
from worker.domain.signature import SignedDocument
from worker.flow.announce_drain import announce_drain
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.store.breakers import lock_breaker
from worker.store.engine import writing
from worker.store.schema import deliveries, drains, evidence, setbacks

WAIT = 60.0


def draining_from(services: Services, checkpoint: str) -> Services:
    """Return services of a process that is asked to stop at a checkpoint."""
    asked = threading.Event()

    def passed(name: str) -> None:
        if name == checkpoint:
            asked.set()

    return replace(services, checkpoint=passed, draining=asked.is_set)


@dataclass
class Endless:
    """A provider that never answers; says when so many were asked."""

    many: int
    asked: list[str] = field(default_factory=list)
    all_asked: threading.Event = field(default_factory=threading.Event)

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> Any:
        """Wait for ever."""
        del deadline_seconds
        self.asked.append(request.request_id)
        if len(self.asked) == self.many:
            self.all_asked.set()
        await asyncio.Event().wait()


def test_rows_that_were_claimed_and_not_asked_are_free_at_once(
    services: Services, keys: Keyring, rows: Rows, queue: RecordingQueue
) -> None:
    """The stop comes between the claim and the calls: nobody is asked, no attempt counts, and another is woken."""
    submit(services, keys, change_event(target_locales=["de", "fr"]))
    queue.take()
    provider = ScriptedProvider(good(keys))
    done = collect_evidence(
        draining_from(with_provider(services, provider), "collect.claimed"), None, ready=lambda _: None
    )
    assert (done, provider.asked) == (Collected(claimed=2), [])
    assert [(row["status"], row["attempts"], row["next_attempt_at"]) for row in rows(evidence)] == [
        ("retry_wait", 0, NOW)
    ] * 2
    assert {(row["outcome"], row["code"], row["attempt"]) for row in rows(setbacks)} == {
        ("released", "evidence.worker_draining", 1)
    }
    assert queue.take() == [("evidence.collect", {"event_id": "event-1"})]
    assert collect_evidence(services, None, ready=lambda _: None) == Collected(claimed=2, approved=2)


def test_a_probe_that_was_not_asked_gives_its_permit_back(services: Services, keys: Keyring, engine: Engine) -> None:
    """The one row that may try a closed route goes back with its permit: the next claim gets it at once."""
    submit(services, keys, change_event(target_locales=["de", "es", "fr", "it", "pl"]))

    def down(_request: EvidenceRequest) -> Any:
        raise ProviderFailure("evidence.provider.unreachable", retryable=True)

    collect_evidence(with_provider(services, ScriptedProvider(down)), None, ready=lambda _: None)
    later = replace(services, now=lambda: NOW + 600)
    assert collect_evidence(draining_from(later, "collect.claimed"), None, ready=lambda _: None).claimed == 1
    state = writing(engine, lambda conn: lock_breaker(conn, PROVIDER, "default"))
    assert (state.is_open, state.probe_token) == (True, None)
    assert collect_evidence(later, None, ready=lambda _: None).approved == 5


def test_calls_that_are_cut_off_keep_their_lease_and_count(
    services: Services, keys: Keyring, rows: Rows, calls: CallLoop
) -> None:
    """Two calls are open when the grace period ends: the collector returns, and nothing of the rows was written."""
    submit(services, keys, change_event(target_locales=["de", "fr"]))
    provider, over = Endless(2), threading.Event()
    ending = replace(with_provider(services, provider), draining=over.is_set, cut=over.is_set)
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(collect_evidence, ending, None, ready=lambda _: None)
        assert provider.all_asked.wait(WAIT)
        before = rows(evidence)
        over.set()
        calls.cut_off()
        assert done.result(WAIT) == Collected(claimed=2)
    assert rows(evidence) == before
    assert [(row["status"], row["attempts"]) for row in before] == [("leased", 1)] * 2
    assert rows(setbacks) == []


def test_a_database_that_is_away_holds_up_no_end(
    services: Services, keys: Keyring, rows: Rows, calls: CallLoop
) -> None:
    """What cannot be settled at the end of the grace period is left to its lease; the collector does not wait for it."""
    submit(services, keys, change_event(target_locales=["de"]))
    over = threading.Event()

    def answer(request: EvidenceRequest) -> Any:
        with services.engine.begin() as conn:
            conn.execute(text("ALTER TABLE jobs RENAME TO jobs_away"))
        over.set()
        return good(keys)(request)

    ending = replace(with_provider(services, ScriptedProvider(answer)), draining=over.is_set, cut=over.is_set)
    with pytest.raises(Unavailable):
        collect_evidence(ending, None, ready=lambda _: None)
    assert [(row["status"], row["attempts"]) for row in rows(evidence)] == [("leased", 1)]
    with services.engine.begin() as conn:
        conn.execute(text("ALTER TABLE jobs_away RENAME TO jobs"))


@pytest.fixture
def cms(keys: Keyring) -> FakeCms:
    """A CMS with a look-up that behaves unless it is told otherwise."""
    return FakeCms(keys=keys)


@pytest.fixture
def prepared(services: Services, keys: Keyring, cms: FakeCms) -> Services:
    """Services with a CMS, and an event that is approved and prepared."""
    approved_event(services, keys)
    publishing = replace(services, cms=lambda _site_id: cms)
    prepare_delivery(publishing, "event-1")
    return publishing


def standing(rows: Rows) -> tuple[Any, ...]:
    [row] = rows(deliveries)
    return row["status"], row["attempts"], bool(row["in_doubt"]), row["last_error_code"], row["next_attempt_at"]


def test_a_send_that_was_not_begun_is_no_attempt(prepared: Services, rows: Rows, cms: FakeCms) -> None:
    """The stop comes between the claim and the send: not in doubt, not counted, due at once, and sent by the next."""
    assert publish_delivery(draining_from(prepared, "publish.claimed"), "event-1").status == "delivery_ready"
    assert standing(rows) == ("retry_wait", 0, False, "cms.worker_draining", NOW)
    assert cms.requests == []
    assert publish_delivery(prepared, "event-1").status == "delivered"


def test_a_look_up_that_was_not_begun_is_due_at_once(prepared: Services, rows: Rows, cms: FakeCms) -> None:
    """A delivery in doubt stays so, with its one attempt; another worker may ask at once."""
    cms.sends = ["lost"]
    publish_delivery(prepared, "event-1")
    later = replace(prepared, now=lambda: NOW + 60)
    assert publish_delivery(draining_from(later, "publish.claimed"), "event-1").status == "delivery_ready"
    assert standing(rows) == ("retry_wait", 1, True, "cms.worker_draining", NOW + 60)
    assert cms.questions == []
    assert publish_delivery(later, "event-1").status == "delivered"


@dataclass
class Silent:
    """A CMS that takes what it is sent and never answers."""

    begun: threading.Event = field(default_factory=threading.Event)
    has_lookup: bool = True
    is_idempotent: bool = False

    async def publish(self, delivery: SignedDocument, *, delivery_id: str, deadline_seconds: float) -> CmsAnswer:
        """Wait for ever."""
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def look_up(self, lookup: Lookup, *, deadline_seconds: float) -> CmsAnswer:
        """Wait for ever."""
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_a_request_to_the_cms_that_is_cut_off_keeps_its_lease(
    prepared: Services, rows: Rows, cms: FakeCms, calls: CallLoop, is_in_doubt: bool
) -> None:
    """A send, and a look-up, end with the process: leased and in doubt as they were, for the next look-up to find."""
    if is_in_doubt:
        cms.sends = ["lost"]
        publish_delivery(prepared, "event-1")
    silent = Silent()
    ending = replace(prepared, cms=lambda _site_id: silent, now=lambda: NOW + 60)
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(publish_delivery, ending, "event-1")
        assert silent.begun.wait(WAIT)
        calls.cut_off()
        with pytest.raises(Blocked) as cut:
            done.result(WAIT)
    assert (cut.value.code, cut.value.retryable) == ("cms.cut_off", True)
    assert standing(rows)[:3] == ("leased", 1, True)


def test_a_worker_announces_its_end_under_the_id_of_its_leases(services: Services, rows: Rows) -> None:
    """The announcement names the owner of its leases, once, at the database's time."""
    assert announce_drain(services) is True
    assert announce_drain(services) is False
    assert rows(drains) == [{"worker_id": services.worker_id, "announced_at": NOW}]
