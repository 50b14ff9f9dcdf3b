"""W3C trace context as values, and span ids that follow from what they are about."""

from __future__ import annotations

import pytest

from worker.domain.trace import TraceContext, attempt_span, begin_trace, parse_traceparent, span_id_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_traceparent_is_read_and_written() -> None:
    """Trace, span and whether it is sampled; written as it was read."""
    sampled = parse_traceparent(f"00-{TRACE}-{SPAN}-01")
    assert sampled == TraceContext(trace_id=TRACE, span_id=SPAN, is_sampled=True)
    assert sampled is not None
    assert sampled.traceparent() == f"00-{TRACE}-{SPAN}-01"
    assert parse_traceparent(f"00-{TRACE}-{SPAN}-00") == TraceContext(trace_id=TRACE, span_id=SPAN, is_sampled=False)


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "",
        f"00-{TRACE}-{SPAN}",
        f"01-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01-more",
        [f"00-{TRACE}-{SPAN}-01"],
    ],
)
def test_anything_else_is_no_traceparent(value: object) -> None:
    """Another version, zeros, capitals, more or less than it must hold."""
    assert parse_traceparent(value) is None


def test_a_trace_goes_on_from_its_caller() -> None:
    """In the caller's trace under a span of its own, sampled as it is; without one in a new trace, sampled."""
    caller = TraceContext(trace_id=TRACE, span_id=SPAN, is_sampled=False)
    begun = begin_trace(caller)
    assert (begun.trace_id, begun.is_sampled) == (TRACE, False)
    assert begun.span_id != SPAN
    alone, other = begin_trace(None), begin_trace(None)
    assert alone.is_sampled
    assert alone.trace_id != other.trace_id
    assert parse_traceparent(alone.traceparent()) == alone


def test_attempts_link_to_the_one_before() -> None:
    """The second one's link is the first one's span, whoever made it; what is not counted has a span of its own."""
    event = begin_trace(None)

    def span(attempt: int, *, is_counted: bool = True) -> object:
        made = attempt_span(
            "x", event, "row", attempt, started_at=2.0, ended_at=1.0, is_counted=is_counted, attributes={}
        )
        assert (made.context.trace_id, made.parent, made.ended_at) == (event.trace_id, event, 2.0)
        return made.context.span_id, made.links

    assert span(1) == (span_id_of("row", 1), ())
    assert span(2) == (span_id_of("row", 2), (span_id_of("row", 1),))
    own, links = span(2, is_counted=False)  # type: ignore[misc]
    assert (own == span_id_of("row", 2), links) == (False, (span_id_of("row", 1),))
