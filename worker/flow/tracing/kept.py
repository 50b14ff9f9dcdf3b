"""The traces of events as steps begin and read them: nothing at all where traces are off. Not a step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from sqlalchemy import Connection

from worker.domain.errors import Unavailable
from worker.domain.trace import Span, TraceContext, begin_trace, span_id_of
from worker.flow.services import Services
from worker.store.engine import reading
from worker.store.event_traces import keep_trace, traces_of

NONE: Final[Mapping[str, TraceContext]] = MappingProxyType({})


def begin_event_trace(services: Services, conn: Connection, event_id: str) -> TraceContext | None:
    """Begin the trace of an event in the transaction of its intake; None where traces are off or it has one."""
    if not services.traces.is_on:
        return None
    context = begin_trace(services.traces.caller())
    return context if keep_trace(conn, event_id, context, now=services.now()) else None


def tell_event(services: Services, context: TraceContext | None, name: str, event_id: str, *, began: float) -> None:
    """Tell of the first span of an event, once its transaction is committed. `began` is monotonic time."""
    if context is None:
        return
    ended_at = time.time()
    services.traces.tell(
        Span(
            name=name,
            context=context,
            parent=services.traces.caller(),
            started_at=ended_at - (services.monotonic() - began),
            ended_at=ended_at,
            attributes={"locseal.event_id": event_id},
        )
    )


def event_traces(services: Services, event_ids: Iterable[str]) -> Mapping[str, TraceContext]:
    """Return the traces of some events: one statement where traces are on, none where they are off.

    Without an answer from the database there are none: no work waits for its trace.
    """
    if not services.traces.is_on:
        return NONE
    try:
        with reading(services.engine) as conn:
            return traces_of(conn, event_ids)
    except Unavailable:
        return NONE


def tell_step(services: Services, event_id: str, name: str, *, began: float, **ids: str) -> str | None:
    """Tell of a step that moved an event on; return the id of its trace, or None. `began` is monotonic time."""
    trace = event_traces(services, [event_id]).get(event_id)
    if trace is None:
        return None
    ended_at = time.time()
    about = {"event_id": event_id, **ids}
    services.traces.tell(
        Span(
            name=name,
            context=TraceContext(
                trace_id=trace.trace_id, span_id=span_id_of(name, *about.values()), is_sampled=trace.is_sampled
            ),
            parent=trace,
            started_at=ended_at - (services.monotonic() - began),
            ended_at=ended_at,
            attributes={f"locseal.{key}": value for key, value in about.items()},
        )
    )
    return trace.trace_id
