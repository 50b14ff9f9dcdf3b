"""Traces made real: finished spans go to an OpenTelemetry collector over OTLP/HTTP, in the background.

The only place that knows OpenTelemetry. Spans carry ids, codes and counts, never content. A collector that is away
costs spans and nothing else: they wait in a bounded queue of this process, and what does not fit is dropped.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator

from worker.domain.trace import Span, TraceContext, parse_traceparent

EXPORT_SECONDS: Final = 5.0  # of one request to the collector
NANOSECONDS: Final = 1_000_000_000

_caller: ContextVar[TraceContext | None] = ContextVar("caller", default=None)


class _ChosenIds(IdGenerator):
    """Gives the next span of a thread the ids that were chosen for it: they follow from what the span is about."""

    def __init__(self) -> None:
        self._next = threading.local()

    def choose(self, context: TraceContext) -> None:
        """Choose the ids of the next span that this thread starts."""
        self._next.context = context

    def generate_span_id(self) -> int:
        """Return the chosen span id."""
        return int(self._next.context.span_id, 16)

    def generate_trace_id(self) -> int:
        """Return the chosen trace id, for a span without a parent."""
        return int(self._next.context.trace_id, 16)


class OtelTraces:
    """Satisfies `flow.tracing.port.Traces`. Safe to share between threads; made after a fork, never before."""

    is_on: Final = True

    def __init__(self, exporter: SpanExporter, *, worker_id: str, is_waiting: bool = False) -> None:
        """Send spans to an exporter; `is_waiting` sends each at once, in the thread that tells it."""
        self._ids = _ChosenIds()
        named = {"service.name": "locseal", "service.instance.id": worker_id}
        self._provider = TracerProvider(resource=Resource.create(named), id_generator=self._ids, shutdown_on_exit=False)
        processor = SimpleSpanProcessor(exporter) if is_waiting else BatchSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("locseal")

    @contextmanager
    def arriving(self, traceparent: object) -> Iterator[None]:
        """Let `caller` be what a message came with, while it is worked at; anything malformed counts as nothing."""
        before = _caller.set(parse_traceparent(traceparent))
        try:
            yield
        finally:
            _caller.reset(before)

    def caller(self) -> TraceContext | None:
        """Return the trace that the message being worked at came with, or None."""
        return _caller.get()

    def tell(self, span: Span) -> None:
        """Take one finished span."""
        self._ids.choose(span.context)
        parent = api.set_span_in_context(api.INVALID_SPAN if span.parent is None else _remote(span.parent))
        following = [TraceContext(trace_id=span.context.trace_id, span_id=one) for one in span.links]
        started = self._tracer.start_span(
            span.name,
            context=parent,
            attributes=dict(span.attributes),
            links=[api.Link(_remote(one).get_span_context()) for one in following],
            start_time=int(span.started_at * NANOSECONDS),
        )
        if span.code is not None:
            started.set_attribute("locseal.code", span.code)
            started.set_status(api.StatusCode.ERROR, span.code)
        started.end(int(span.ended_at * NANOSECONDS))

    def close(self) -> None:
        """Send what is left, as far as the collector answers in time, and end. Idempotent."""
        self._provider.shutdown()


def otlp_traces(
    endpoint: str, *, worker_id: str, headers: Mapping[str, str] | None = None, ca_file: str | None = None
) -> OtelTraces:
    """Return traces that go to an OTLP/HTTP collector, with these headers. Opens nothing yet."""
    exporter = OTLPSpanExporter(
        endpoint=endpoint, headers=dict(headers or {}), timeout=EXPORT_SECONDS, certificate_file=ca_file
    )
    return OtelTraces(exporter, worker_id=worker_id)


def _remote(context: TraceContext) -> api.Span:
    flags = api.TraceFlags(api.TraceFlags.SAMPLED if context.is_sampled else api.TraceFlags.DEFAULT)
    return api.NonRecordingSpan(
        api.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=flags)
    )
