"""Where spans go. A port: the steps know no library of traces. Off, it costs one comparison."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final, Protocol

from worker.domain.trace import Span, TraceContext


class Traces(Protocol):
    """Takes finished spans. Safe to share between threads; never raises and never waits."""

    @property
    def is_on(self) -> bool:
        """Tell whether anybody takes spans; where not, nothing is read or written for them."""
        ...

    def arriving(self, traceparent: object) -> AbstractContextManager[None]:
        """Let `caller` be what a message came with, while it is worked at; anything malformed counts as nothing."""
        ...

    def caller(self) -> TraceContext | None:
        """Return the trace that the message being worked at came with, or None."""
        ...

    def tell(self, span: Span) -> None:
        """Take one finished span."""
        ...

    def close(self) -> None:
        """Send what is left, as far as that goes in time, and end. Idempotent."""
        ...


class NoTraces:
    """Traces are off."""

    is_on: Final = False

    def arriving(self, traceparent: object) -> AbstractContextManager[None]:
        """Do nothing."""
        del traceparent
        return nullcontext()

    def caller(self) -> None:
        """Return None."""

    def tell(self, span: Span) -> None:
        """Drop it."""

    def close(self) -> None:
        """Do nothing."""
