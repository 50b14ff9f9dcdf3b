"""Traces: one for each event, a span for each attempt, kept in the database; nothing at all where they are off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import Engine

from tests.audited import Story, story_services
from tests.builders import Keyring
from tests.evidence_builders import ScriptedProvider, failing, with_provider
from tests.fake_cms import FakeCms
from tests.fakes import counting
from tests.otlp_receiver import Receiver
from worker.adapters.calls import CallLoop
from worker.adapters.traces import OtelTraces, otlp_traces
from worker.domain.errors import ProviderFailure
from worker.domain.trace import span_id_of
from worker.flow.collect_evidence import collect_evidence
from worker.flow.tracing.port import NoTraces
from worker.store.engine import writing
from worker.store.schema import event_traces

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
CALLER = f"00-{TRACE}-{PARENT}-01"
MARKER = "CANARY"


class Recorder:
    """Takes spans in memory, as one process of a fleet."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.traces = OtelTraces(self._exporter, worker_id="w-1", is_waiting=True)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """Return the finished spans, oldest first."""
        return [one for one in self._exporter.get_finished_spans() if name in {None, one.name}]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """One process that takes spans."""
    made = Recorder()
    yield made
    made.traces.close()


@pytest.fixture
def story(engine: Engine, keys: Keyring, calls: CallLoop, recorder: Recorder) -> Story:
    """A fleet of one process with traces on, in which nothing has happened yet."""
    services = replace(story_services(engine, keys, calls), traces=recorder.traces)
    return Story(services=services, keys=keys, cms=FakeCms(keys=keys))


def hexed(span: ReadableSpan) -> tuple[str, str]:
    """Return trace and span id."""
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def whole_release(story: Story, traceparent: object = CALLER) -> None:
    """Take an event of one locale from a message with a trace to its publication: a failure, a torn send, a look-up."""
    with story.services.traces.arriving(traceparent):
        story.submit(target_locales=["de"], source_text=f"{MARKER} text.")
    outage = failing(ProviderFailure("evidence.provider.timeout", retryable=True))
    collect_evidence(with_provider(story.step(), ScriptedProvider(outage)), "event-1", ready=lambda _: None)
    story.now += 60.0
    story.collect("event-1")
    story.publish("event-1", "lost")
    story.now += 120.0
    story.publish("event-1", "accept")


def test_one_trace_from_the_producer_to_the_publication(story: Story, recorder: Recorder) -> None:
    """Every span is of the producer's trace; attempts hang from the event's first span and link to the one before."""
    whole_release(story)
    spans = recorder.spans()
    assert [one.name for one in spans] == [
        "release.submit",
        "evidence.attempt",
        "evidence.attempt",
        "delivery.prepare",
        "delivery.send",
        "delivery.look_up",
    ]
    assert {hexed(one)[0] for one in spans} == {TRACE}
    assert len({hexed(one)[1] for one in spans}) == len(spans)
    root = spans[0]
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == PARENT
    for one in spans[1:]:
        assert one.parent is not None
        assert f"{one.parent.span_id:016x}" == hexed(root)[1]
        assert one.end_time is not None
        assert one.start_time is not None
        assert one.start_time <= one.end_time
    first, second = recorder.spans("evidence.attempt")
    assert (first.attributes or {})["locseal.code"] == "evidence.provider.timeout"
    assert [(one.attributes or {})["locseal.attempt"] for one in (first, second)] == [1, 2]
    assert [f"{link.context.span_id:016x}" for link in second.links] == [hexed(first)[1]]
    assert not first.status.is_ok
    assert second.status.is_ok or second.status.description is None


def test_another_process_goes_on_with_the_trace(story: Story, recorder: Recorder) -> None:
    """What a sweep wakes in a process that never saw the message is of the same trace, and links across processes."""
    with story.services.traces.arriving(CALLER):
        story.submit(target_locales=["de"])
    outage = failing(ProviderFailure("evidence.provider.timeout", retryable=True))
    collect_evidence(with_provider(story.step(), ScriptedProvider(outage)), "event-1", ready=lambda _: None)
    other = Recorder()
    story.services = replace(story.services, traces=other.traces)
    story.now += 60.0
    story.collect("event-1")
    story.publish("event-1")
    assert [one.name for one in other.spans()] == ["evidence.attempt", "delivery.prepare", "delivery.send"]
    assert {hexed(one)[0] for one in other.spans()} == {TRACE}
    (link,) = other.spans("evidence.attempt")[0].links
    assert f"{link.context.span_id:016x}" == hexed(recorder.spans("evidence.attempt")[0])[1]
    request_id = str((other.spans("evidence.attempt")[0].attributes or {})["locseal.request_id"])
    assert f"{link.context.span_id:016x}" == span_id_of(request_id, 1)
    other.traces.close()


def test_without_a_caller_an_event_begins_a_trace(story: Story, recorder: Recorder, rows: Any) -> None:
    """Malformed headers count as none; each event has a trace of its own, and a repeat of its submission keeps it."""
    with story.services.traces.arriving("00-nonsense"):
        story.submit(target_locales=["de"])
    (kept,) = rows(event_traces)
    with story.services.traces.arriving(CALLER):
        story.submit(target_locales=["de"])  # the very same document
        story.submit(event_id="event-2", source_id="other", target_locales=["de"])
    assert {row["event_id"]: row["traceparent"][3:35] == TRACE for row in rows(event_traces)} == {
        "event-1": False,
        "event-2": True,
    }
    assert kept in rows(event_traces)
    assert [one.name for one in recorder.spans()] == ["release.submit"] * 2
    assert recorder.spans()[0].parent is None


def test_a_caller_that_is_not_sampled_is_not_recorded(story: Story, recorder: Recorder, rows: Any) -> None:
    """Whoever began the trace decided; the context is kept all the same."""
    whole_release(story, f"00-{TRACE}-{PARENT}-00")
    assert recorder.spans() == []
    assert [row["traceparent"][-2:] for row in rows(event_traces)] == ["00"]


def test_spans_hold_no_content(story: Story, recorder: Recorder) -> None:
    """Ids, codes and counts alone."""
    whole_release(story)
    said = " ".join(str(one.to_json()) for one in recorder.spans())
    assert MARKER not in said
    names = {name for one in recorder.spans() for name in one.attributes or {}}
    assert names == {
        f"locseal.{name}"
        for name in ("event_id", "request_id", "delivery_id", "attempt", "outcome", "provider", "code")
    }


def test_off_costs_no_statement_and_on_one_for_each_batch(story: Story, recorder: Recorder, rows: Any) -> None:
    """Off, nothing is written or read; on, intake, settle, prepare and send cost one more each."""

    def cost(event_id: str, source_id: str) -> int:
        with counting(story.services.engine) as counted:
            story.submit(event_id=event_id, source_id=source_id, target_locales=["de", "ja"])
            story.collect(event_id)
            story.publish(event_id)
        return len(counted.statements)

    cost("warm", "warm")
    on = cost("on", "on")
    steps = len(recorder.spans()) // 2
    story.services = replace(story.services, traces=NoTraces())
    off = cost("off", "off")
    batches = on - off
    assert steps == 5  # a submission, two attempts, a preparation, a send
    assert batches <= 4 + 1  # the two answers may come in two batches
    assert "off" not in {row["event_id"] for row in rows(event_traces)}


def test_spans_reach_a_collector(story: Story) -> None:
    """Over OTLP/HTTP with its credential; what is left is sent when the process ends. One that is away costs nothing."""
    with Receiver() as receiver:
        traces = otlp_traces(receiver.url, worker_id="w-9", headers={"Authorization": "Bearer t-1"})
        story.services = replace(story.services, traces=traces)
        whole_release(story)
        traces.close()
        traces.close()
    assert [one.name for one in receiver.spans][:2] == ["release.submit", "evidence.attempt"]
    assert len(receiver.spans) == 6
    assert {one.trace_id.hex() for one in receiver.spans} == {TRACE}
    assert {one["authorization"] for one in receiver.headers} == {"Bearer t-1"}


def test_work_goes_on_without_the_table_of_traces(story: Story, engine: Engine, recorder: Recorder) -> None:
    """Where traces cannot be read, nothing but spans is lost."""
    story.submit(target_locales=["de"])
    writing(engine, lambda conn: conn.execute(event_traces.delete()))
    story.collect("event-1")
    story.publish("event-1")
    assert [one.name for one in recorder.spans()] == ["release.submit"]
    assert story.ids["event-1"].startswith("delivery-")
