"""A circuit breaker: when calls to one other side stop for the whole fleet, and who may try it again. Decisions only.

    closed --(faults in a row reach the bound, or a Retry-After)--> open
    open   --(its time came: one permit, to one claim)-----------> open, probed
    probed --(the holder's call was answered)--------------------> closed, for everyone
    probed --(the holder met the fault again)--------------------> open, twice as long up to the bound
    probed --(the permit ran out, or its holder never called)----> open; the next claim gets the permit

A refusal is an answer: it shows that the other side is up. Times are in seconds by the database's clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from worker.domain.policy import Breaker

PROVIDER: Final = "provider"
CMS: Final = "cms"

# What a call that reached nobody, or met a server's own fault, is called by our adapters.
_OUTAGE: Final = re.compile(
    r"(evidence\.provider|cms\.delivery|cms\.lookup)\.(timeout|unreachable|tls|connection_lost"
    r"|status_5[0-9][0-9])"
)
UNDECLARED: Final = "evidence.unavailable"


@dataclass(frozen=True, kw_only=True)
class Permit:
    """The right to try a side whose breaker is open: the token of the probing lease, at one generation."""

    token: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class BreakerState:
    """One breaker as it is stored. `generation` counts how often it opened or closed; a permit counts at one only."""

    is_open: bool = False
    generation: int = 0
    failures: int = 0  # in a row, while closed
    pause_seconds: float = 0.0  # of the present opening
    open_until_at: float | None = None
    reason: str | None = None  # the code that opened it
    opened_by: str | None = None  # the worker that did
    probe_token: str | None = None
    probe_expires_at: float | None = None

    def may_probe(self, now: float) -> bool:
        """Tell whether a permit may be given: its time came, and nobody holds a live one."""
        is_time = self.is_open and (self.open_until_at or 0.0) <= now
        return is_time and (self.probe_token is None or (self.probe_expires_at or 0.0) <= now)


@dataclass(frozen=True, kw_only=True)
class News:
    """What calls to one side showed. `probe` is how the permit's holder fared, where one of them held a permit.

    `faults` and `answers` count calls; a call that never began is in neither.
    """

    kind: Literal["provider", "cms"]
    name: str  # the review route, or the site whose CMS it is
    worker_id: str
    faults: int = 0
    answers: int = 0
    code: str = ""
    retry_after_seconds: float | None = None
    permit: Permit | None = None
    probe: Literal["answered", "fault", "unused"] = "unused"


def is_outage(code: str, *, retryable: bool) -> bool:
    """Tell whether a failure is a fault of the transport or of the other side's server, and no refusal."""
    return retryable and (code == UNDECLARED or _OUTAGE.fullmatch(code) is not None)


def after(state: BreakerState, news: News, policy: Breaker, *, now: float) -> BreakerState:
    """Return the breaker as it stands after the news; the same value where nothing changes."""
    if state.is_open:
        return _while_open(state, news, policy, now)
    failures = (0 if news.answers else state.failures) + news.faults
    if news.retry_after_seconds is None and failures < policy.opens_after_failures:
        return replace(state, failures=failures)
    return _opened(state, news, policy.open_seconds, now)


def _while_open(state: BreakerState, news: News, policy: Breaker, now: float) -> BreakerState:
    permit = news.permit
    if permit is not None and (permit.token, permit.generation) == (state.probe_token, state.generation):
        if news.probe == "answered":
            return BreakerState(generation=state.generation + 1)
        if news.probe == "fault":
            longest = max(policy.longest_open_seconds, policy.open_seconds)
            return _opened(state, news, min(max(2 * state.pause_seconds, policy.open_seconds), longest), now)
        return replace(state, probe_token=None, probe_expires_at=None)
    if news.retry_after_seconds is None:
        return state  # calls that were under way when it opened change nothing
    return replace(state, open_until_at=max(state.open_until_at or 0.0, now + news.retry_after_seconds))


def _opened(state: BreakerState, news: News, pause_seconds: float, now: float) -> BreakerState:
    return BreakerState(
        is_open=True,
        generation=state.generation + 1,
        failures=state.failures + news.faults,
        pause_seconds=pause_seconds,
        open_until_at=now + max(pause_seconds, news.retry_after_seconds or 0.0),
        reason=news.code or state.reason,
        opened_by=news.worker_id,
    )
