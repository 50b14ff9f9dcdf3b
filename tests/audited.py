"""A database in which everything has happened that an audit looks at, all of it through the product's own steps."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Engine

from tests.builders import (
    NOW,
    Keyring,
    change_event,
    request_for,
    results_for,
    signed_response,
    signed_submission,
    signed_withdrawal,
)
from tests.evidence_builders import ScriptedProvider, failing, with_provider
from tests.fake_cms import FakeCms
from tests.fakes import FixedPolicies, RecordingQueue
from worker.adapters.calls import CallLoop
from worker.adapters.providers.local import LocalProvider
from worker.adapters.verifiers.jws import JwsVerifier
from worker.domain.audit.finding import Tally
from worker.domain.canonical import canonical_bytes
from worker.domain.errors import Blocked, ProviderFailure
from worker.domain.evidence import NotYet
from worker.domain.receipt import PURPOSES
from worker.domain.result import parse_result
from worker.domain.signature import sign_detached
from worker.flow.accept_response import accept_response
from worker.flow.accept_submission import accept_submission
from worker.flow.audit_database import audit_database
from worker.flow.collect_evidence import collect_evidence
from worker.flow.plan_run import plan_run
from worker.flow.prepare_delivery import prepare_delivery
from worker.flow.publish_delivery import publish_delivery
from worker.flow.reconcile_delivery import OperatorsWord, reconcile_delivery
from worker.flow.retry_delivery import retry_delivery
from worker.flow.services import Deadlines, Services
from worker.flow.start_run import start_run
from worker.flow.sweep_fleet import sweep_fleet
from worker.flow.withdraw_event import withdraw_event


@dataclass
class Story:
    """A fleet of one process whose time goes on by a second with every step."""

    services: Services
    keys: Keyring
    cms: FakeCms
    now: float = NOW
    ids: dict[str, str] = field(default_factory=dict)  # delivery ids by event

    def step(self, seconds: float = 1.0) -> Services:
        """Return the services of the next moment."""
        self.now += seconds
        return replace(self.services, now=lambda: self.now, cms=lambda _site_id: self.cms)

    def submit(self, **changes: Any) -> dict[str, Any]:
        """Have an event accepted with a result for every locale."""
        options = {name: changes.pop(name) for name in ("confidence", "candidate") if name in changes}
        event = change_event(**changes)
        text = signed_submission(self.keys, event, results_for(event, **options))
        assert accept_submission(self.step(), text).state == "accepted"
        return event

    def collect(self, event_id: str) -> None:
        """Have the evidence of an event collected and its delivery prepared."""

        def ready(name: str) -> None:
            self.ids[name] = prepare_delivery(self.step(), name).delivery_id or ""

        collect_evidence(self.step(), event_id, ready=ready)

    def publish(self, event_id: str, *words: str) -> None:
        """Send the delivery of an event; the CMS answers with these words, one each time."""
        for word in words or ("accept",):
            self.cms.sends = [word]
            with contextlib.suppress(Blocked):  # the failure is the story
                publish_delivery(self.step(), event_id)

    def release(self, **changes: Any) -> str:
        """Take an event from its submission to its publication; return its id."""
        event = self.submit(**changes)
        self.collect(event["event_id"])
        self.publish(event["event_id"])
        return str(event["event_id"])


def tell(services: Services, keys: Keyring) -> Story:
    """Let everything happen: reviews of every kind, one text after another, doubt, refusal, withdrawal."""
    story = Story(services=services, keys=keys, cms=FakeCms(keys=keys))
    story.release(event_id="event-1", target_locales=["de", "fr-CA", "ja"])
    story.release(event_id="event-2", source_sequence=2, source_text="Second text.", source_revision="rev-2")
    story.release(event_id="legal", source_id="terms", content_type="legal")
    story.release(event_id="unsure", source_id="doubt", confidence="low")
    story.release(event_id="priced", source_id="price", content_type="commercial")
    story.submit(event_id="old", source_id="menu", source_text="Old menu.")
    story.collect("old")
    story.submit(event_id="new", source_id="menu", source_sequence=2, source_text="New menu.")
    withdrawn = story.submit(event_id="withdrawn", source_id="gone", source_text="Not today.")
    assert withdraw_event(story.step(), signed_withdrawal(keys, withdrawn)).state == "accepted"
    story.submit(event_id="lost", source_id="lost", source_text="Torn off.")
    story.collect("lost")
    story.publish("lost", "lost")
    story.now += 120.0
    story.publish("lost", "accept")  # the look-up finds it
    story.submit(event_id="refused", source_id="refused", source_text="Refused.")
    story.collect("refused")
    story.publish("refused", "unreachable")
    story.now += 120.0
    story.publish("refused", "refuse")
    story.submit(event_id="unknown", source_id="unknown", source_text="Unknown.")
    story.collect("unknown")
    story.publish("unknown", "unverifiable")
    word = OperatorsWord(outcome="accepted", operator="ops", reason="seen on the page")
    reconcile_delivery(story.step(), story.ids["unknown"], word)
    _after_failures(story)
    _after_corrections(story)
    story.submit(event_id="waiting", source_id="waiting", source_text="Waiting.")
    assert accept_submission(story.step(), "{}").state == "rejected"
    sweep_fleet(story.step())
    return story


def _after_failures(story: Story) -> None:
    """A refused delivery that an operator retries, a provider that fails first, and one that hands its review in."""
    story.submit(event_id="again", source_id="again", source_text="Again.")
    story.collect("again")
    story.publish("again", "refuse")
    retry_delivery(story.step(), "again")
    story.ids["again"] = prepare_delivery(story.step(), "again").delivery_id or ""
    story.publish("again")
    story.submit(event_id="slow", source_id="slow", source_text="Slow.")
    outage = failing(ProviderFailure("evidence.provider.timeout", retryable=True))
    collect_evidence(with_provider(story.step(), ScriptedProvider(outage)), "slow", ready=lambda _: None)
    story.now += 60.0
    story.collect("slow")
    pushed = story.submit(event_id="pushed", source_id="pushed", source_text="Handed in.", target_locales=["de"])
    later = with_provider(story.step(), ScriptedProvider(lambda _: NotYet()))
    collect_evidence(later, "pushed", ready=lambda _: None)
    handed = signed_response(story.keys, request_for(pushed, "de"))
    assert accept_response(story.step(), handed).state == "accepted"
    story.collect("pushed")


def _after_corrections(story: Story) -> None:
    """A result replaced before its approval, a text that comes again with its approvals, and a planned run."""
    event = story.submit(event_id="fixed", source_id="fixed", source_text="Fixed.", target_locales=["de"])
    (old,) = results_for(event)
    (new,) = results_for(event, candidate="[de] better")
    replacing = {**new, "replaces": parse_result(old).sha256}
    assert accept_submission(story.step(), signed_submission(story.keys, event, [replacing])).state == "accepted"
    story.collect("fixed")
    story.publish("fixed")
    story.submit(event_id="same", source_id="terms", content_type="legal", source_sequence=2)
    story.ids["same"] = prepare_delivery(story.step(), "same").delivery_id or ""
    run_id = plan_run(story.step(), "site-1", "2026.02")["run_id"]
    start_run(story.step(), run_id, request_id="request-0001")


def codes(tally: Tally) -> dict[str, set[str]]:
    """Return the row ids of the violations that were found, by code."""
    found: dict[str, set[str]] = {}
    for one in tally.violations:
        found.setdefault(one.code.removeprefix("audit."), set()).add(one.row_id)
    return found


def audited(engine: Engine, **options: Any) -> dict[str, set[str]]:
    """Audit a database and return what was found."""
    return codes(audit_database(engine, **options))


def story_services(engine: Engine, keys: Keyring, calls: CallLoop) -> Services:
    """Return services around a database for a story, with in-process reviewers that sign for real."""

    def sign(purpose: str, document: Mapping[str, Any]) -> str:
        return sign_detached(purpose, keys.kids[purpose], keys.private[purpose], canonical_bytes(document))

    return Services(
        engine=engine,
        worker_id="w-story",
        policies=FixedPolicies(),
        providers={"default": LocalProvider(sign)},
        verifiers={purpose: JwsVerifier(keys.trust) for purpose in PURPOSES},
        cms=lambda _site_id: FakeCms(keys=keys),
        keys=keys,
        queue=RecordingQueue(),
        calls=calls,
        deadlines=Deadlines(),
    )
