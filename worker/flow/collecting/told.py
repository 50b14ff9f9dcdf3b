"""What became of each claimed row, counted, logged and told as a span. Not a step; decides nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import structlog

from worker.domain.measure import EVIDENCE, LOST
from worker.domain.review import LEASE_LOST, STORE_REFUSED, Abandoned
from worker.domain.trace import TraceContext, attempt_span
from worker.flow.collecting.answered import Answered
from worker.flow.services import Services
from worker.flow.tracing.kept import event_traces
from worker.store.settlements import Settled

log = structlog.get_logger(__name__)


def tell_settled(services: Services, answered: Sequence[Answered], settled: Settled, codes: Mapping[str, str]) -> None:
    """Tell what became of each row; a lease that was lost is another worker's story from here on."""
    traces = event_traces(services, (one.row.key.event_id for one in answered))
    for one in answered:
        key = one.row.key
        if key.request_id in settled.approved:
            _tell(services, one, traces, "approved", None)
        elif key.request_id in settled.failed or key.request_id in settled.released:
            state = settled.failed.get(key.request_id, "released")
            _tell(services, one, traces, state, codes.get(key.request_id, STORE_REFUSED))
        else:
            code = one.ending.code if isinstance(one.ending, Abandoned) else LEASE_LOST
            _tell(services, one, traces, "not_settled", code)


def _tell(services: Services, one: Answered, traces: Mapping[str, TraceContext], state: str, code: str | None) -> None:
    key, attempt = one.row.key, one.row.claim.attempt
    outcome = {"approved": "succeeded", "not_settled": LOST}.get(state, state)
    services.meters.attempts(EVIDENCE, outcome, code)
    ids: dict[str, str | int] = {"request_id": key.request_id, "event_id": key.event_id, "attempt": attempt}
    trace = traces.get(key.event_id)
    said = ids | ({} if code is None else {"code": code}) | ({} if trace is None else {"trace_id": trace.trace_id})
    (log.info if code is None else log.warning)(f"evidence.{state}", **said)
    if trace is None:
        return
    ended_at = time.time()
    about: Mapping[str, str | int] = {f"locseal.{name}": value for name, value in ids.items()}
    span = attempt_span(
        "evidence.attempt",
        trace,
        key.request_id,
        attempt,
        started_at=ended_at - (services.monotonic() - one.guard.began),
        ended_at=ended_at,
        is_counted=state not in {"released", "not_settled"},
        code=code,
        attributes={**about, "locseal.outcome": outcome, "locseal.provider": one.row.provider},
    )
    services.traces.tell(span)
