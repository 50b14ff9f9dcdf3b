"""What a change event waits for, since when, and what will happen when: one sentence, the same wherever it is shown.

"waiting for: fr-CA, human receipt; since 11:58 UTC; lease held by w-7 until 12:03 UTC; gives up at 22:40 UTC"

Facts in, words out. Times are by the database's clock; they are shown in UTC, and say so, with the day where it is not today.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from worker.domain.attempt import backoff_seconds
from worker.domain.hold import Closure, Pause
from worker.domain.review import NOT_YET
from worker.domain.turn import GIVE_UP_SECONDS, OUTCOME_UNKNOWN, UNKNOWN_CODES

SHOWN_LOCALES: Final = 3

LocaleState = Literal[
    "untranslated",  # no result has come
    "unasked",  # a result, but no evidence row: its event was not open when the result came
    "due",  # a worker may take it now
    "retrying",  # not due yet
    "leased",
    "failed",
    "lapsed",  # it was approved once, but nothing that the site's policy accepts stands now
    "approved",
]


@dataclass(frozen=True, kw_only=True)
class LocaleFacts:
    """One locale of an event as the rows say it. `need` is the receipt that its result asks for."""

    target_locale: str
    job_id: str
    state: LocaleState
    need: Literal["quality receipt", "human receipt", "independent or human receipt"] = "quality receipt"
    route: str | None = None  # who is asked
    request_id: str | None = None
    evidence_revision: str | None = None
    attempts: int = 0
    max_attempts: int = 0
    next_attempt_at: float | None = None
    lease_owner: str | None = None
    lease_expires_at: float | None = None
    code: str | None = None
    since: float | None = None  # when its row last changed
    awaited_since_at: float | None = None  # when its reviewer first said "accepted, not yet"
    gives_up_at: float | None = None  # when a reviewer that only says so is given up
    approval_id: str | None = None
    approval_expires_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class DeliveryFacts:
    """One delivery of an event as its row says it."""

    delivery_id: str
    event_id: str
    site_id: str
    source_id: str
    source_sequence: int
    status: str
    attempts: int
    max_attempts: int
    next_attempt_at: float
    lease_owner: str | None
    lease_expires_at: float | None
    code: str | None
    in_doubt: bool
    doubt_since_at: float | None
    sent_at: float | None
    lookups: int
    acknowledged_at: float | None
    created_at: float
    updated_at: float
    renewal_asked_at: float | None = None  # its approvals are being renewed; a successor takes its place, unsent


@dataclass(frozen=True, kw_only=True)
class EventFacts:
    """An event with its locales and the delivery that speaks for it, if there is one."""

    event_id: str
    state: str  # open | delivered | superseded | withdrawn
    superseded_by: str | None
    since: float
    now: float
    locales: tuple[LocaleFacts, ...]
    delivery: DeliveryFacts | None = None
    older_delivery_id: str | None = None  # an unsettled delivery of an older sequence of the source
    pauses: tuple[Pause, ...] = ()  # those that keep back its site, or a route that one of its locales waits for
    closures: tuple[Closure, ...] = ()  # open breakers of what it has to call next
    needs_permit: bool = False  # a guided site's delivery that no release run permits now


def waiting_sentence(facts: EventFacts) -> str:
    """Return the one sentence about an event: what it waits for, or how it ended."""
    day = _Day(facts.now)
    if facts.delivery is not None and facts.delivery.status == "succeeded":
        return f"published at {day.at(facts.delivery.acknowledged_at or facts.delivery.updated_at)}"
    if facts.delivery is not None and (facts.delivery.in_doubt or facts.delivery.status == "leased"):
        return "; ".join(_delivery_parts(facts.delivery, facts, day))
    if facts.state == "superseded":
        return f"superseded by {facts.superseded_by or 'a newer sequence at the CMS'} since {day.at(facts.since)}"
    if facts.state == "withdrawn":
        return f"withdrawn since {day.at(facts.since)}"
    if facts.delivery is not None:
        return "; ".join(_delivery_parts(facts.delivery, facts, day))
    open_locales = [one for one in facts.locales if one.state != "approved"]
    if not open_locales:
        return f"waiting for: its delivery to be prepared; since {day.at(_latest(facts))}; the next sweep does it"
    return "; ".join(_locale_parts(open_locales, _holds(facts, day), day))


def next_commands(facts: EventFacts) -> tuple[str, ...]:
    """Return the commands an operator may want next; none where the fleet goes on by itself."""
    delivery = facts.delivery
    if delivery is not None and delivery.code in UNKNOWN_CODES:
        return (f"locseal deliveries reconcile {delivery.delivery_id}",)
    if facts.state != "open":
        return ()
    if delivery is not None and delivery.status == "failed":
        return (f"locseal deliveries retry {facts.event_id}", f"locseal evidence renew {facts.event_id}")
    if delivery is not None:
        waits = ["locseal runs list"] if facts.needs_permit else []
        is_unsent = delivery.status in {"pending", "retry_wait"} and not delivery.in_doubt
        if is_unsent and any(one.state == "lapsed" for one in facts.locales):
            waits.append(f"locseal evidence renew {facts.event_id}")
        return tuple(waits)
    states = {one.state for one in facts.locales}
    commands = []
    if "failed" in states:
        commands.append(f"locseal evidence retry {facts.event_id}")
    if "lapsed" in states or "unasked" in states:
        commands.append(f"locseal evidence renew {facts.event_id}")
    if "untranslated" in states:
        commands.append("locseal submit FILE")
    return tuple(commands)


def delivery_sentence(delivery: DeliveryFacts, *, now: float) -> str:
    """Return the sentence about a delivery alone, where the rest of its event is not known."""
    facts = EventFacts(
        event_id=delivery.event_id, state="open", superseded_by=None, since=delivery.updated_at, now=now, locales=()
    )
    if delivery.status == "succeeded":
        return f"published at {_Day(now).at(delivery.acknowledged_at or delivery.updated_at)}"
    return "; ".join(_delivery_parts(delivery, facts, _Day(now)))


def gives_up_at(next_attempt_at: float, attempts: int, max_attempts: int) -> float:
    """Return when the last attempt is due if every one fails at once and nobody asks for a longer wait."""
    return next_attempt_at + sum(backoff_seconds(count) for count in range(attempts + 1, max_attempts))


@dataclass(frozen=True)
class _Day:
    """Writes times of the day it is, and others with their day."""

    now: float

    def at(self, seconds: float) -> str:
        shown, today = (datetime.fromtimestamp(value, UTC) for value in (seconds, self.now))
        return shown.strftime("%H:%M UTC" if shown.date() == today.date() else "%Y-%m-%d %H:%M UTC")


def _locale_parts(locales: Sequence[LocaleFacts], holds: Sequence[str], day: _Day) -> list[str]:
    groups: dict[str, list[LocaleFacts]] = {}
    for one in locales:
        groups.setdefault(_need(one), []).append(one)
    named = [f"{_names(one.target_locale for one in group)}, {need}" for need, group in groups.items()]
    parts = [f"waiting for: {' and '.join(named)}"]
    since = [one.since for one in locales if one.since is not None]
    if since:
        parts.append(f"since {day.at(min(since))}")
    leased = [one for one in locales if one.state == "leased" and one.lease_expires_at is not None]
    if leased:
        parts.append(_leases(leased, day))
    awaited = [one for one in locales if _is_awaited(one)]
    if awaited:
        first_said = min(one.awaited_since_at or day.now for one in awaited)
        asked = min(one.next_attempt_at or day.now for one in awaited)
        parts.append(
            f"accepted by the reviewer, not finished since {day.at(first_said)}; asked again at {day.at(asked)}"
        )
    later = [one for one in locales if one.state == "retrying" and one.next_attempt_at and not _is_awaited(one)]
    if later:
        first = min(later, key=lambda one: one.next_attempt_at or 0.0)
        tried = f" after {first.code} ({first.attempts} of {first.max_attempts})" if first.code else ""
        parts.append(f"next attempt at {day.at(first.next_attempt_at or 0.0)}{tried}")
    going_on = [one for one in locales if one.state in {"due", "retrying", "leased"}]
    if going_on and holds:
        parts += holds
    elif any(one.state == "due" for one in locales):
        parts.append("due now, as soon as a worker is free")
    if going_on and not holds:  # held back, it gives up no sooner than it is tried
        parts.append(f"gives up at {day.at(max(_gives_up(one, day.now) for one in going_on))}")
    failed = [one for one in locales if one.state == "failed"]
    if failed:
        codes = Counter(one.code or "a failure" for one in failed)
        parts.append(f"stopped by {' and '.join(sorted(codes))}, until an operator acts")
    return parts


def _is_awaited(one: LocaleFacts) -> bool:
    return one.state == "retrying" and one.code == NOT_YET and one.gives_up_at is not None


def _gives_up(one: LocaleFacts, now: float) -> float:
    if _is_awaited(one) and one.gives_up_at is not None:
        return one.gives_up_at
    start = one.lease_expires_at if one.state == "leased" else one.next_attempt_at
    return gives_up_at(max(start or now, now), one.attempts, one.max_attempts)


def _delivery_parts(delivery: DeliveryFacts, facts: EventFacts, day: _Day) -> list[str]:
    if delivery.status == "failed":
        return _failed_parts(delivery, day)
    parts = ["waiting for: " + ("the CMS's signed word" if delivery.in_doubt else "the CMS to accept the delivery")]
    if delivery.in_doubt and delivery.doubt_since_at is not None:
        parts.append(f"in doubt since {day.at(delivery.doubt_since_at)}")
    else:
        parts.append(f"since {day.at(delivery.created_at)}")
    if delivery.renewal_asked_at is not None and not delivery.in_doubt:
        parts.append(f"its approvals are being renewed since {day.at(delivery.renewal_asked_at)}")
    if delivery.status == "leased" and delivery.lease_expires_at is not None:
        parts.append(f"lease held by {delivery.lease_owner} until {day.at(delivery.lease_expires_at)}")
        return parts
    if facts.older_delivery_id is not None:
        parts.append(f"not before the older delivery {facts.older_delivery_id} is settled")
    elif facts.needs_permit:
        parts.append("not before a release run publishes it, since the site is guided")
    holds = _holds(facts, day, is_lookup=delivery.in_doubt)
    parts += holds
    verb = "look-up" if delivery.in_doubt else "attempt"
    if delivery.next_attempt_at > day.now:
        tried = f" after {delivery.code} ({delivery.attempts} of {delivery.max_attempts})" if delivery.code else ""
        parts.append(f"next {verb} at {day.at(delivery.next_attempt_at)}{tried}")
    elif facts.older_delivery_id is None and not facts.needs_permit and not holds:
        parts.append(f"next {verb} is due now, as soon as a worker is free")
    if delivery.in_doubt and delivery.attempts >= delivery.max_attempts and delivery.doubt_since_at is not None:
        parts.append(f"gives up at {day.at(delivery.doubt_since_at + GIVE_UP_SECONDS)}")
    elif not (delivery.in_doubt or facts.older_delivery_id or facts.needs_permit or holds):
        due = max(delivery.next_attempt_at, day.now)
        parts.append(f"gives up at {day.at(gives_up_at(due, delivery.attempts, delivery.max_attempts))}")
    return parts


def _holds(facts: EventFacts, day: _Day, *, is_lookup: bool = False) -> list[str]:
    """Return what keeps due work back; a pause does not keep a look-up back, which starts nothing new."""
    pauses = [] if is_lookup else [pause.said(day.at) for pause in facts.pauses]
    return pauses + list(dict.fromkeys(closure.said(day.at, day.now) for closure in facts.closures))


def _failed_parts(delivery: DeliveryFacts, day: _Day) -> list[str]:
    at = day.at(delivery.updated_at)
    if delivery.code in UNKNOWN_CODES:
        why = "outcome unknown" if delivery.code == OUTCOME_UNKNOWN else f"{delivery.code}, in doubt,"
        return [f"waiting for: an operator's word on what the CMS has; {why} since {at}"]
    return [f"the delivery failed with {delivery.code} at {at}; nothing happens until an operator acts"]


def _need(one: LocaleFacts) -> str:
    return {
        "untranslated": "a translation",
        "unasked": "an operator's renewal",
        "lapsed": "a renewed approval",
        "failed": f"{one.need} (failed)",
    }.get(one.state, one.need)


def _leases(leased: Sequence[LocaleFacts], day: _Day) -> str:
    owners = sorted({one.lease_owner or "?" for one in leased})
    until = day.at(max(one.lease_expires_at or 0.0 for one in leased))
    if len(owners) == 1:
        return f"lease held by {owners[0]} until {until}"
    return f"leases held by {owners[0]} and {len(owners) - 1} more until {until}"


def _names(locales: Iterable[str]) -> str:
    names = sorted(locales)
    if len(names) <= SHOWN_LOCALES:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN_LOCALES])} and {len(names) - SHOWN_LOCALES} more"


def _latest(facts: EventFacts) -> float:
    return max((one.since for one in facts.locales if one.since is not None), default=facts.since)
