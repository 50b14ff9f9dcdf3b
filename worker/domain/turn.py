"""What may be done next with a delivery, and what an answer of the CMS makes of it (SPEC section 7). Decisions only.

A delivery is *in doubt* from the claim that is about to send it until a verified answer or a definite refusal. In
doubt, asking comes before every other check; sending again needs a signed `absent`, or a CMS that promises to be
idempotent on the delivery id. The store reads a `Standing` under the lock of the source and carries out what this
module says; nothing here knows a clock, a table or a request.

    Over    succeeded or failed: nothing to do
    Wait    not now, and for what
    Ask     look up what became of it                     -> Settlement, or Absent: the same bytes may go again
    Send    send the stored bytes once                    -> Settlement
    Close   end it without sending
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from worker.domain.attempt import spread_wait
from worker.domain.delivery import AdvanceStatus, CmsAnswer
from worker.domain.errors import Blocked
from worker.domain.quarantine import DELIVERY_QUARANTINED

OUTCOME_UNKNOWN: Final = "cms.outcome_unknown"
UNKNOWN_CODES: Final = (OUTCOME_UNKNOWN, DELIVERY_QUARANTINED)  # failed, and only reconciling says what the CMS has
APPROVAL_EXPIRED: Final = "cms.delivery.approval_expired"
EXHAUSTED: Final = "cms.delivery.attempts_exhausted"
RECONCILED_ABSENT: Final = "cms.delivery.absent"
SUPERSEDED: Final = "superseded"
WITHDRAWN: Final = "withdrawn"
RESULT_REPLACED: Final = "cms.delivery.result_replaced"
RENEWED: Final = "cms.delivery.renewed"
GIVES_WAY: Final = frozenset({RESULT_REPLACED, RENEWED})  # closed by us for a successor: the event goes on without it
SEND_WINDOW_MISSED: Final = "cms.send_window_missed"
WORKER_DRAINING: Final = "cms.worker_draining"
CUT_OFF: Final = "cms.cut_off"
ABSENT_TOO_EARLY: Final = "cms.lookup.absent_too_early"

ABSENT_SLACK_SECONDS: Final = 30.0  # beyond the send deadline; before that an absent may still be overtaken
GIVE_UP_SECONDS: Final = 86_400.0  # how long look-ups go on once no attempt is left


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A valid, unleased delivery as it stands under the lock of its source, and all that decides what may follow."""

    status: str
    code: str | None
    attempts: int
    max_attempts: int
    next_attempt_at: float
    in_doubt: bool
    event_state: str
    is_older_unsettled: bool  # an older delivery of the source is leased, in doubt or of unknown outcome
    is_permitted: bool  # the site publishes by itself, or a release run permits this delivery now
    approvals_code: str | None  # why the approvals do not outlast the send, or None
    now: float
    is_paused: bool = False  # by an operator: nothing new is sent


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a CMS's configuration promises for a delivery whose outcome is unknown."""

    has_lookup: bool
    is_idempotent: bool


@dataclass(frozen=True, kw_only=True)
class Over:
    """The delivery has ended: succeeded, or failed with a code."""

    status: str
    code: str | None


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing may be done now.

    Another holds the lease, it is not due, an older delivery is unsettled, a pause, the CMS's open breaker or a limit on
    calls to it keeps it back, or no release run permits it. `seconds` is when a rate allows the next call, where one
    keeps it back; `first` is the event of a delivery that should try a closed CMS in its place.
    """

    reason: Literal["leased", "due", "older", "pause", "breaker", "limit", "permit"]
    seconds: float | None = None
    first: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Look the delivery up."""


@dataclass(frozen=True, kw_only=True)
class Send:
    """Send the stored bytes. `was_in_doubt` tells that an earlier send may have arrived."""

    was_in_doubt: bool


@dataclass(frozen=True, kw_only=True)
class Close:
    """End the delivery as failed; it stays in doubt where the outcome stays unknown."""

    code: str

    @property
    def in_doubt(self) -> bool:
        """Tell whether the bytes may be live all the same."""
        return self.code == OUTCOME_UNKNOWN


Turn = Over | Wait | Ask | Send | Close


def standing_status(status: str, code: str | None) -> AdvanceStatus:
    """Return where an event stands by its delivery's state; `delivery_ready` while that is open.

    Raises `Blocked("cms.delivery.failed")` where it failed for another reason than the event's own end.
    """
    if status == "succeeded":
        return "delivered"
    if status != "failed":
        return "delivery_ready"
    if code == SUPERSEDED:
        return "superseded"
    if code == WITHDRAWN:
        return "withdrawn"
    remedy = "locseal deliveries reconcile" if code in UNKNOWN_CODES else "locseal deliveries retry"
    raise Blocked("cms.delivery.failed", f"the delivery failed with {code}; see {remedy}")


def next_turn(standing: Standing, promise: Promise) -> Turn:
    """Return what a worker may do now."""
    if standing.status in {"succeeded", "failed"}:
        return Over(status=standing.status, code=standing.code)
    if standing.next_attempt_at > standing.now:
        return Wait(reason="due")
    if not standing.in_doubt:
        return obstacle(standing) or Send(was_in_doubt=False)
    if promise.has_lookup:
        return Ask()
    if not promise.is_idempotent:
        return Close(code=OUTCOME_UNKNOWN)
    hindrance = obstacle(standing)
    if isinstance(hindrance, Close):  # it must not go again, and nobody can say what became of it
        return Close(code=OUTCOME_UNKNOWN)
    return hindrance or Send(was_in_doubt=True)


def obstacle(standing: Standing) -> Close | Wait | None:
    """Return what forbids a send of a delivery that is certainly not live, or None."""
    if standing.event_state == "superseded":
        return Close(code=SUPERSEDED)
    if standing.event_state == "withdrawn":
        return Close(code=WITHDRAWN)
    if standing.approvals_code is not None:
        return Close(code=standing.approvals_code)
    if standing.attempts >= standing.max_attempts:
        return Close(code=EXHAUSTED)
    if standing.is_older_unsettled:
        return Wait(reason="older")
    if standing.is_paused:
        return Wait(reason="pause")
    return None if standing.is_permitted else Wait(reason="permit")


@dataclass(frozen=True, kw_only=True)
class Settlement:
    """How a lease on a delivery ends. `wait_seconds` counts from the settle; `event_state` is set where not None."""

    status: Literal["succeeded", "retry_wait", "failed"]
    code: str | None
    in_doubt: bool
    wait_seconds: float = 0.0
    event_state: Literal["delivered", "superseded"] | None = None
    retry_after_seconds: float | None = None  # what the CMS asked for
    is_attempt_returned: bool = False  # no call was begun, so no attempt is counted


ACCEPTED: Final = Settlement(status="succeeded", code=None, in_doubt=False, event_state="delivered")
UNKNOWN: Final = Settlement(status="failed", code=OUTCOME_UNKNOWN, in_doubt=True)


def after_send(
    answer: CmsAnswer, *, was_in_doubt: bool, attempts: int, max_attempts: int, promise: Promise, jitter: float
) -> Settlement:
    """Return how a send ends. `attempts` counts this one; `was_in_doubt` is the doubt before it."""
    if answer.outcome == "accepted":
        return ACCEPTED
    if answer.outcome == "stale" and not was_in_doubt:
        return Settlement(status="failed", code=SUPERSEDED, in_doubt=False, event_state="superseded")
    if answer.outcome == "refused" and not was_in_doubt:  # it says nothing about an earlier send
        return Settlement(status="failed", code=answer.code, in_doubt=False)
    if answer.outcome != "unavailable":  # stale or refused in doubt, unverifiable, or an absent that nobody asked for
        return UNKNOWN
    in_doubt = answer.sent or was_in_doubt
    exhausted = attempts >= max_attempts
    if in_doubt and not promise.has_lookup and (exhausted or not promise.is_idempotent):
        return UNKNOWN
    if exhausted and not in_doubt:
        return Settlement(
            status="failed", code=answer.code, in_doubt=False, retry_after_seconds=answer.retry_after_seconds
        )
    return Settlement(
        status="retry_wait",
        code=answer.code,
        in_doubt=in_doubt,
        wait_seconds=spread_wait(attempts, jitter=jitter, retry_after_seconds=answer.retry_after_seconds),
        retry_after_seconds=answer.retry_after_seconds,
    )


def after_failed_probe(settlement: Settlement, *, is_send: bool) -> Settlement:
    """Return how a call that tried a closed CMS in vain ends: the breaker says when to go on, and no send is counted."""
    if settlement.status != "retry_wait":
        return settlement
    return replace(settlement, wait_seconds=0.0, is_attempt_returned=is_send)


def not_sent(code: str, *, was_in_doubt: bool) -> Settlement:
    """Return how a lease ends under which no send was begun: due again at once, and no attempt is counted."""
    return Settlement(status="retry_wait", code=code, in_doubt=was_in_doubt, is_attempt_returned=True)


def not_asked(code: str) -> Settlement:
    """Return how a lease ends under which no look-up was begun: due again at once; a look-up is no attempt."""
    return Settlement(status="retry_wait", code=code, in_doubt=True)


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A signed word that counts: the CMS does not have the bytes and will not take them from an earlier request."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A look-up under a lease: when it was asked, and of what. Times in seconds by the database's clock."""

    asked_at: float
    sent_at: float
    doubt_since_at: float
    attempts: int
    max_attempts: int
    lookups: int  # this one included
    send_seconds: float

    @property
    def absent_counts_after(self) -> float:
        """Return the time after which an `absent` promises something about the last send."""
        return self.sent_at + self.send_seconds + ABSENT_SLACK_SECONDS


def after_lookup(answer: CmsAnswer, asked: Asked, *, jitter: float) -> Settlement | Absent:
    """Return how a look-up ends, or `Absent` where the same bytes may now be sent again or the delivery be closed."""
    if answer.outcome == "accepted":
        return ACCEPTED
    if answer.outcome == "unverifiable":
        return UNKNOWN
    wait = spread_wait(asked.lookups, jitter=jitter, retry_after_seconds=answer.retry_after_seconds)
    code = answer.code
    if answer.outcome == "absent":
        too_early = asked.absent_counts_after - asked.asked_at
        if too_early < 0:
            return Absent()
        wait, code = max(wait, too_early + 1.0), ABSENT_TOO_EARLY
    if asked.attempts >= asked.max_attempts:
        left = asked.doubt_since_at + GIVE_UP_SECONDS - asked.asked_at
        if left <= 0:
            return UNKNOWN
        wait = min(wait, left)
    return Settlement(
        status="retry_wait",
        code=code,
        in_doubt=True,
        wait_seconds=wait,
        retry_after_seconds=answer.retry_after_seconds,
    )


def after_absent(standing: Standing, *, jitter: float) -> Settlement | Send:
    """Return what follows a signed absent that counts, checked under the lock again: sending, closing or waiting."""
    hindrance = obstacle(standing)
    if hindrance is None:
        return Send(was_in_doubt=False)
    if isinstance(hindrance, Close):
        return Settlement(status="failed", code=hindrance.code, in_doubt=False)
    return Settlement(
        status="retry_wait",
        code=f"cms.delivery.waits_for_{hindrance.reason}",
        in_doubt=False,
        wait_seconds=spread_wait(1, jitter=jitter),
    )
