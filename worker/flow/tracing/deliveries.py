"""What became of a visit to a delivery, counted, logged and told as a span. Not a step; decides nothing."""

from __future__ import annotations

import time

import structlog

from worker.domain.trace import attempt_span
from worker.domain.turn import Close, Settlement
from worker.flow.services import Services
from worker.flow.tracing.kept import event_traces, tell_step
from worker.store.sends import SendLease

log = structlog.get_logger(__name__)


def tell_prepared(services: Services, event_id: str, delivery_id: str, *, began: float) -> None:
    """Tell that a delivery was signed and stored; `began` is monotonic time. One statement where traces are on."""
    trace_id = tell_step(services, event_id, "delivery.prepare", began=began, delivery_id=delivery_id)
    said = {} if trace_id is None else {"trace_id": trace_id}
    log.info("delivery.prepared", delivery_id=delivery_id, event_id=event_id, **said)


def tell_closed(delivery_id: str, event_id: str, close: Close) -> None:
    """Tell that a delivery was closed before it was sent."""
    log.warning("delivery.closed", delivery_id=delivery_id, event_id=event_id, code=close.code)


def tell_visit(services: Services, lease: SendLease, end: Settlement | None, *, is_lookup: bool, began: float) -> None:
    """Tell how a send or a look-up ended; `end` is None where the lease was somebody else's by then.

    `began` is this process's monotonic time from before the lease was taken. One statement where traces are on.
    """
    services.meters.visit(end)
    trace = event_traces(services, [lease.event_id]).get(lease.event_id)
    state, code = _state(end), None if end is None else end.code
    ids: dict[str, str | int] = {
        "delivery_id": lease.delivery_id,
        "event_id": lease.event_id,
        "attempt": lease.attempts,
    }
    is_sound = end is not None and end.code is None
    said = ids | ({} if code is None else {"code": code}) | ({} if trace is None else {"trace_id": trace.trace_id})
    (log.info if is_sound else log.warning)(f"delivery.{state}", is_lookup=is_lookup, **said)
    if trace is None:
        return
    ended_at = time.time()
    span = attempt_span(
        "delivery.look_up" if is_lookup else "delivery.send",
        trace,
        lease.delivery_id,
        lease.attempts,
        started_at=ended_at - (services.monotonic() - began),
        ended_at=ended_at,
        is_counted=not is_lookup and end is not None and not end.is_attempt_returned,
        code=None if is_sound else code or "cms.lease_lost",
        attributes={**{f"locseal.{name}": value for name, value in ids.items()}, "locseal.outcome": state},
    )
    services.traces.tell(span)


def _state(end: Settlement | None) -> str:
    if end is None:
        return "not_settled"
    if end.status == "succeeded":
        return "acknowledged"
    return "in_doubt" if end.in_doubt and end.status == "retry_wait" else end.status
