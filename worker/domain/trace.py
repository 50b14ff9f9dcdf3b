"""Traces as values: W3C trace context, and the spans of an event, whose ids follow from what they are about.

An attempt's span has the same id whoever computes it, so the span of the next attempt can link to it without anything
being stored. Nothing here sends anything.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


@dataclass(frozen=True, kw_only=True)
class TraceContext:
    """One span as others refer to it: which trace, which span in it, and whether it is recorded at all."""

    trace_id: str  # 32 hex digits
    span_id: str  # 16 hex digits
    is_sampled: bool = True

    def traceparent(self) -> str:
        """Return it as the header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


@dataclass(frozen=True, kw_only=True)
class Span:
    """One finished piece of work on an event. Times are seconds since the epoch, by this process's own clock.

    `links` are ids of earlier spans of the same trace that it follows: the attempts before it.
    """

    name: str
    context: TraceContext
    parent: TraceContext | None
    started_at: float
    ended_at: float
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    code: str | None = None  # why it failed


def parse_traceparent(value: object) -> TraceContext | None:
    """Return the context in a `traceparent`, or None where it is not one of version 00 with a trace and a span."""
    found = _TRACEPARENT.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[1], 16) == 0 or int(found[2], 16) == 0:
        return None
    return TraceContext(trace_id=found[1], span_id=found[2], is_sampled=bool(int(found[3], 16) & 1))


def begin_trace(caller: TraceContext | None) -> TraceContext:
    """Return the first span of an event: in the caller's trace where it sent one, else in a new one."""
    trace_id = secrets.token_hex(16) if caller is None else caller.trace_id
    is_sampled = caller is None or caller.is_sampled
    return TraceContext(trace_id=trace_id, span_id=secrets.token_hex(8), is_sampled=is_sampled)


def span_id_of(*about: str | int) -> str:
    """Return the id of the span about something; the same for the same."""
    return hashlib.sha256("\n".join(str(part) for part in about).encode()).hexdigest()[:16]


def attempt_span(
    name: str,
    event: TraceContext,
    subject_id: str,
    attempt: int,
    *,
    started_at: float,
    ended_at: float,
    is_counted: bool = True,
    code: str | None = None,
    attributes: Mapping[str, str | int | float | bool],
) -> Span:
    """Return the span of one attempt, a child of its event's first span that links to the attempt before.

    One that is not counted (handed back, a look-up) has an id of its own, and links to the last one that was.
    """
    own = (subject_id, attempt) if is_counted else (subject_id, attempt, secrets.token_hex(8))
    before = (span_id_of(subject_id, attempt - 1),) if attempt > 1 else ()
    return Span(
        name=name,
        context=TraceContext(trace_id=event.trace_id, span_id=span_id_of(*own), is_sampled=event.is_sampled),
        parent=event,
        started_at=started_at,
        ended_at=max(started_at, ended_at),
        attributes=attributes,
        links=before,
        code=code,
    )
