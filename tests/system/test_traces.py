"""Traces and logs of a real worker: one trace from the producer's message on, and lines that name it and hide the rest."""

from __future__ import annotations

import json
import uuid
from typing import Any

from kombu import Connection

from tests.builders import change_event, results_for, submission
from tests.otlp_receiver import Receiver
from tests.system.facts import facts, started
from tests.system.test_nothing_leaks import secrets
from tests.system.test_start import lines
from worker.cli.demo_event import SITE_ID
from worker.cli.local_fleet import Child, LocalFleet, wait_for
from worker.cli.local_stage import Stage

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CREDENTIAL = "credential-4711"
LOCALES = ["de", "fr-CA", "ja", "pt-BR", "sv"]
LONG = 120.0


def send(fleet: LocalFleet, text: str) -> None:
    """Send a submission as a producer does that traces its own work."""
    task_id = str(uuid.uuid4())
    headers = {"task": "release.submit", "id": task_id, "traceparent": f"00-{TRACE}-{PARENT}-01"}
    with Connection(fleet.broker_url()) as connection:
        connection.Producer().publish(
            [[], {"version": 1, "submission": text}, {}],
            exchange="",
            routing_key="intake",
            serializer="json",
            headers=headers,
            correlation_id=task_id,
        )


def about(worker: Child, *events: str) -> list[dict[str, Any]]:
    """Return the lines of some transitions."""
    return [line for event in events for line in lines(worker, event)]


def test_a_release_is_one_trace_and_its_lines_name_it(fleet: LocalFleet, sqlite_stage: Stage) -> None:
    """A provider that fails at first, one setting and a collector: spans and lines of the producer's trace, no content."""
    stage = sqlite_stage
    token = fleet.directory / "collector-token"
    token.write_text(CREDENTIAL)
    provider = json.loads(fleet.settings["PROVIDERS"])
    provider["default"]["token_file"] = str(token)
    fleet.settings["PROVIDERS"] = json.dumps(provider)
    stage.control({"provider": {"fail_times": 2}})
    event = change_event(site_id=SITE_ID, event_id="traced", source_text="CANARY source", target_locales=LOCALES)
    results = [one for locale in LOCALES for one in results_for(event, locales=[locale], candidate=f"CANARY {locale}")]
    with Receiver() as receiver:
        traced = {"TRACES": "true", "TRACES_ENDPOINT": receiver.url, "TRACES_TOKEN_FILE": str(token)}
        worker = started(fleet, LOG_LEVEL="DEBUG", **traced)
        fleet.start_beat()
        send(fleet, stage.sign(submission(event, results)))
        wait_for(lambda: facts(stage).delivered == 1, worker, "the delivery", LONG)
        wait_for(lambda: about(worker, "delivery.acknowledged") != [], worker, "the last line", LONG)
        worker.stop(LONG)  # sends what is left
    assert {one.trace_id.hex() for one in receiver.spans} == {TRACE}
    names = [one.name for one in receiver.spans]
    assert {name: names.count(name) for name in set(names)} == {
        "release.submit": 1,
        "evidence.attempt": len(LOCALES) + len(about(worker, "evidence.retry_wait")),
        "delivery.prepare": 1,
        "delivery.send": 1,
    }
    assert {one["authorization"] for one in receiver.headers} == {f"Bearer {CREDENTIAL}"}
    moved = about(worker, "evidence.approved", "evidence.retry_wait", "delivery.prepared", "delivery.acknowledged")
    assert len(moved) == len(names) - 1
    assert {(line["event_id"], line["trace_id"]) for line in moved} == {("traced", TRACE)}
    assert {line["attempt"] for line in about(worker, "evidence.approved")} == {1, 2}
    assert {line["code"].partition(".")[0] for line in about(worker, "evidence.retry_wait")} == {"evidence"}
    found = [text[:20] for text in (*secrets(stage), CREDENTIAL) if text in worker.log_text()]
    assert found == []
    assert CREDENTIAL not in str(receiver.spans)
    assert "CANARY" not in str(receiver.spans)
