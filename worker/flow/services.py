"""What a step may reach: the database, the clock, and the ports to the outside. Values and protocols only, no logic.

Every step takes `services` first. `worker.bootstrap` builds the real one; tests build one around a real database and
loopback servers. Adapters satisfy the protocols by shape; they import nothing from here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from sqlalchemy import Engine

from worker.domain.delivery import CmsAnswer, Lookup
from worker.domain.evidence import EvidenceRequest, NotYet
from worker.domain.limits import FleetLimits
from worker.domain.policy import EvidenceLeases, RoutePolicy, SitePolicy
from worker.domain.quarantine import Quarantine
from worker.domain.receipt import ReceiptBinding, VerifiedReceipt
from worker.domain.signature import SignedDocument, TrustSet
from worker.domain.stall import WorkKind
from worker.flow.collecting.slot import Collecting
from worker.flow.meters import Meters
from worker.flow.publishing.pacing import Pacing
from worker.flow.tracing.port import NoTraces, Traces

K = TypeVar("K")
T = TypeVar("T")


class ReviewProvider(Protocol):
    """One review route. One call per attempt, never retried inside."""

    async def review(self, request: EvidenceRequest, *, deadline_seconds: float) -> object | NotYet:
        """Return the parsed answer (judged by `domain.evidence`), or `NotYet`; raise `ProviderFailure`."""
        ...


class ReceiptVerifier(Protocol):
    """Tells whether a receipt proves exactly one binding."""

    async def verify(self, receipt: str, binding: ReceiptBinding, *, deadline_seconds: float) -> VerifiedReceipt:
        """Return the proof's facts; raise `Blocked` (`release.<purpose>.receipt.rejected`) or a retryable failure."""
        ...


class Cms(Protocol):
    """One CMS endpoint. `has_lookup` and `is_idempotent` are what its configuration promises."""

    has_lookup: bool
    is_idempotent: bool

    async def publish(self, delivery: SignedDocument, *, delivery_id: str, deadline_seconds: float) -> CmsAnswer:
        """Send the stored bytes once and classify the answer; never raises for an answer of the other side."""
        ...

    async def look_up(self, lookup: Lookup, *, deadline_seconds: float) -> CmsAnswer:
        """Ask what became of a delivery; an unsigned answer is no answer."""
        ...


class Keys(Protocol):
    """The only holder of private keys, and the trust sets by purpose. Both follow the files without a restart."""

    def sign(self, purpose: str, document: Mapping[str, Any]) -> SignedDocument:
        """Sign the canonical bytes with the active key of a purpose and verify at once; raise `Blocked`."""
        ...

    def trust(self, purpose: str) -> TrustSet:
        """Return the current trust set of a purpose."""
        ...


class Queue(Protocol):
    """The only sender of messages. A wake may be lost; the sweeper makes it good."""

    def wake(self, message: str, **ids: str) -> bool:
        """Send one message of `domain.messages` by name; return whether the broker took it. Never raises."""
        ...


class Calls(Protocol):
    """Runs the calls of this process to the outside, many at once, off the calling thread."""

    def start(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the process's call loop."""
        ...

    def start_all(
        self, calls: Sequence[tuple[K, Coroutine[Any, Any, T]]], ended: Callable[[Sequence[tuple[K, T | None]]], None]
    ) -> None:
        """Start many at once; `ended` is told, on the loop's thread, of those that ended together. None: failed."""
        ...


class Policies(Protocol):
    """The policy of each site, re-read without a restart."""

    def for_site(self, site_id: str) -> SitePolicy:
        """Return the site's policy (the default policy where none is named)."""
        ...

    def for_provider(self, route: str) -> RoutePolicy:
        """Return what the fleet keeps to towards a review route."""
        ...

    def evidence_leases(self) -> EvidenceLeases:
        """Return how long a lease on an evidence row lasts, by site."""
        ...

    def limits(self) -> FleetLimits:
        """Return the bounds on open calls to review providers."""
        ...


def database_clock() -> float | None:
    """Say that the database's own clock is asked; the default of `Services.now`."""
    return None


def no_checkpoint(_name: str) -> None:
    """Do nothing; tests put a crash here."""


def no_claim_watched(_kind: WorkKind) -> None:
    """Do nothing; a worker's watch for stalls listens here."""


def no_jitter() -> float:
    """Return no extra wait; the fleet's own is random up to one half."""
    return 0.0


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """How long each outside call may take, in seconds, in total and not per read."""

    provider_seconds: float = 60.0
    verifier_seconds: float = 10.0
    signer_seconds: float = 5.0
    send_seconds: float = 30.0
    lookup_seconds: float = 15.0
    margin_seconds: float = 5.0

    @property
    def longest_review_seconds(self) -> float:
        """Return how long one locale may take from its claim to its settle: a call, two verifiers, a signature."""
        return self.provider_seconds + 2 * self.verifier_seconds + self.signer_seconds + self.margin_seconds


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything a step may use. Frozen; safe to share between threads."""

    engine: Engine
    worker_id: str  # this process incarnation, never a bare host name
    policies: Policies
    providers: Mapping[str, ReviewProvider]  # by route name of the policy
    verifiers: Mapping[str, ReceiptVerifier]  # by purpose: quality, human, independent
    cms: Callable[[str], Cms]  # by site id
    keys: Keys
    queue: Queue
    calls: Calls
    deadlines: Deadlines
    batch_rows: int = 50  # most rows one claim takes
    concurrent_calls: int = 50  # most provider calls in flight in this process
    keep_rejected_bodies: bool = False
    quarantine: Quarantine = field(default_factory=Quarantine)  # how many leases of a row may run out
    now: Callable[[], float | None] = database_clock  # a fixed time for tests and tools
    monotonic: Callable[[], float] = time.monotonic  # this process's own clock, for the operation guard alone
    jitter: Callable[[], float] = no_jitter  # fraction of the back-off added on top, 0 to 0.5
    checkpoint: Callable[[str], None] = no_checkpoint
    draining: Callable[[], bool] = lambda: False  # true once the process was asked to stop
    cut: Callable[[], bool] = lambda: False  # true once the time of what it has in hand is over, too
    claimed: Callable[[WorkKind], None] = no_claim_watched  # told whenever a claim came to its end, whatever it found
    collecting: Collecting = field(default_factory=Collecting)  # one collector at a time in this process
    pacing: Pacing = field(default_factory=Pacing)  # one wait a site for the rate of its CMS
    meters: Meters = field(default_factory=Meters)  # what this process counts and times, for graphs
    traces: Traces = field(default_factory=NoTraces)  # takes the spans of what was done
