"""Every review route end to end against the sandbox: days of a human's work, and who may speak for low confidence."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from config.settings import Settings
from tests.builders import Keyring, change_event, results_for, signed_submission
from tests.fakes import RecordingQueue
from tests.system.facts import facts, is_delivered
from worker.adapters.sandbox.keys import SandboxKeys
from worker.adapters.sandbox.server import SandboxThread
from worker.bootstrap import Plant, build_plant
from worker.cli.demo_event import SITE_ID
from worker.cli.local_fleet import LocalFleet, wait_for
from worker.cli.local_stage import Stage
from worker.domain.messages import EVIDENCE_SUBMIT
from worker.domain.review import Collected
from worker.flow.accept_response import accept_response
from worker.flow.accept_submission import accept_submission
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.schema import approvals, evidence, receipts

OURS = ("submission", "approval", "publication")


def fetch(url: str, *, body: bytes | None = None) -> Any:
    """Ask the sandbox as a person with curl does."""
    request = urllib.request.Request(url, data=body)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@dataclass
class Bench:
    """A process with real clients beside a sandbox, without a broker: the test carries the messages."""

    plant: Plant
    sandbox: SandboxThread
    keys: Keyring
    services: Services

    def submit(self, *, confidence: str = "high", **changes: Any) -> None:
        """Have one locale accepted."""
        event = change_event(target_locales=["de"], **changes)
        text = signed_submission(self.keys, event, results_for(event, confidence=confidence))
        assert accept_submission(self.services, text).state == "accepted"

    def collect(self) -> Collected:
        """Collect what is due, and prepare what became ready."""
        return collect_evidence(self.services, None, ready=lambda name: prepare_delivery(self.services, name) and None)

    def finish(self) -> str:
        """Have the sandbox's reviewer finish the one review that was put off, and return the signed response."""
        [request_id] = fetch(f"{self.sandbox.listening.url}/responses")["requests"]
        url = f"{self.sandbox.listening.url}/responses/{request_id}"
        return json.dumps(fetch(url, body=b""))

    def purposes(self, engine: Engine) -> list[str]:
        """Return the purposes of the receipts that were verified."""
        with reading(engine) as conn:
            return sorted(conn.execute(select(receipts.c.purpose)).scalars())


@pytest.fixture
def bench(engine: Engine, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench whose sandbox has low confidence reviewed as the test's parameter says."""
    escalation = getattr(request, "param", "independent")
    keys = Keyring()
    private, trust = tmp_path / "keys" / "private", tmp_path / "keys" / "trust"
    keys.write(private, trust)
    for path in private.iterdir():
        if path.name.split(".")[0] not in OURS:
            path.unlink()
    for path in SandboxKeys(tmp_path / "sandbox", sites=("site-1",)).trust_dir.glob("*.jwks.json"):
        (trust / path.name).write_bytes(path.read_bytes())
    with SandboxThread(tmp_path / "sandbox", escalation=escalation) as sandbox:
        settings = Settings(
            keys_private_dir=private,
            keys_trust_dir=trust,
            state_dir=tmp_path / "unused",
            allow_loopback_http=True,
            providers={"default": {"url": sandbox.listening.provider_url}},  # type: ignore[dict-item]
            cms={"default": {"url": sandbox.listening.cms_url}},  # type: ignore[dict-item]
        )
        plant = build_plant(settings, worker_id="w-test", queue=RecordingQueue())
        own = plant.services.engine
        try:
            yield Bench(plant=plant, sandbox=sandbox, keys=keys, services=replace(plant.services, engine=engine))
        finally:
            plant.close()
            own.dispose()


def test_a_legal_text_waits_for_its_human_and_is_handed_in(bench: Bench, engine: Engine) -> None:
    """Put off with 202, no attempt counted; the human's signed response comes as a message and is the human receipt."""
    bench.sandbox.behave(provider={"by_hand": ["human"], "retry_after": "3600"})
    bench.submit(content_type="legal")
    assert bench.collect() == Collected(claimed=1)
    with reading(engine) as conn:
        row = conn.execute(select(evidence)).mappings().one()
    assert (row["attempts"], row["last_error_code"], row["awaited_since_at"] is None) == (0, "evidence.not_yet", False)
    assert accept_response(bench.services, bench.finish()).state == "accepted"
    assert bench.collect() == Collected(claimed=1, approved=1)
    assert bench.purposes(engine) == ["human", "quality"]
    assert publish_delivery(bench.services, "event-1").status == "delivered"
    assert bench.sandbox.state()["calls"]["provider"] == 1


def test_a_legal_text_may_be_pulled_once_it_is_finished(bench: Bench, engine: Engine) -> None:
    """The same route without a push: asked again later, the provider answers."""
    bench.sandbox.behave(provider={"by_hand": ["human"], "retry_after": "1"})
    bench.submit(content_type="legal")
    assert bench.collect() == Collected(claimed=1)
    bench.finish()
    with reading(engine) as conn:
        due_at = conn.execute(select(evidence.c.next_attempt_at)).scalar_one()
    bench.services = replace(bench.services, now=lambda: due_at)
    assert bench.collect() == Collected(claimed=1, approved=1)
    assert bench.purposes(engine) == ["human", "quality"]


@pytest.mark.parametrize(("bench", "purpose"), [("human", "human"), ("independent", "independent")], indirect=["bench"])
def test_low_confidence_gets_exactly_one_further_review(bench: Bench, engine: Engine, purpose: str) -> None:
    """One human, or one second provider; either way one receipt beside that of quality, and the text goes live."""
    bench.submit(confidence="low")
    assert bench.collect() == Collected(claimed=1, approved=1)
    assert bench.purposes(engine) == sorted([purpose, "quality"])
    assert publish_delivery(bench.services, "event-1").status == "delivered"


@pytest.mark.parametrize(("bench", "purpose"), [("human", "human"), ("independent", "independent")], indirect=["bench"])
def test_low_confidence_may_take_days_too(bench: Bench, engine: Engine, purpose: str) -> None:
    """Put off and handed in, by a human or a second provider."""
    bench.sandbox.behave(provider={"by_hand": ["independent"]})
    bench.submit(confidence="low")
    assert bench.collect() == Collected(claimed=1)
    assert accept_response(bench.services, bench.finish()).state == "accepted"
    assert bench.collect() == Collected(claimed=1, approved=1)
    assert bench.purposes(engine) == sorted([purpose, "quality"])


def test_a_response_of_a_key_we_do_not_trust_is_rejected(bench: Bench, engine: Engine) -> None:
    """Signed under the right name with another key: a rejection, and the review is still waited for."""
    bench.sandbox.behave(provider={"by_hand": ["human"], "wrong_key": True})
    bench.submit(content_type="legal")
    bench.collect()
    answer = accept_response(bench.services, bench.finish())
    assert (answer.state, answer.code) == ("rejected", "evidence.response.signature.invalid")
    with reading(engine) as conn:
        assert conn.execute(select(approvals)).all() == []
        assert conn.execute(select(evidence.c.status)).scalar_one() == "retry_wait"


def test_a_fleet_takes_a_review_that_is_handed_in(fleet: LocalFleet, stage: Stage) -> None:
    """Real processes: submitted, put off, finished by hand, pushed by message, approved, published once."""
    stage.control({"provider": {"by_hand": ["human"], "retry_after": "3600"}})
    worker = fleet.start_worker()
    fleet.wait_for_worker(worker)
    event = change_event(target_locales=["de"], content_type="legal", site_id=SITE_ID)
    stage.submit(stage.sign({"schema": "locseal.submission.v1", "event": event, "results": results_for(event)}))

    def waiting() -> list[str]:
        found: list[str] = fetch(f"{stage.sandbox_url}/responses")["requests"]
        return found

    wait_for(lambda: bool(waiting()), worker, "the review")
    [request_id] = waiting()
    response = json.dumps(fetch(f"{stage.sandbox_url}/responses/{request_id}", body=b""))
    for _ in range(2):  # a message may come twice
        stage.queue.submit(EVIDENCE_SUBMIT, "response", response)
    wait_for(lambda: is_delivered(stage), worker, "the delivery")
    seen = facts(stage)
    assert (seen.approvals, seen.delivered, seen.rejections) == (1, 1, 0)
    assert stage.control()["calls"]["provider"] == 1
