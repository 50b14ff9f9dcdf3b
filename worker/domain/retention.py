"""What may be removed once it is old, and what an operator's legal hold keeps. Values and rules; nothing is read here.

Whatever an audit needs stays for ever: signed documents, events, plans, results, approvals and their receipts, sent and
published deliveries with every answer about them, the operators' words, public keys, and each attempt that a row counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from worker.domain.errors import Invalid
from worker.domain.hold import LONGEST_REASON
from worker.domain.identifier import is_time, is_token

DAY_SECONDS: Final = 86_400.0
LEAST_AGE_SECONDS: Final = 7 * DAY_SECONDS  # the fleet itself looks back at most three days

REJECTIONS: Final = "rejections"
COMMANDS: Final = "commands"
RELEASES: Final = "releases"
REQUESTS: Final = "requests"
HISTORY: Final = "history"
DELIVERIES: Final = "deliveries"
TRACES: Final = "traces"
KINDS: Final = {
    REJECTIONS: "messages that intake refused; any hold in force keeps them all, since they belong to no site",
    COMMANDS: "commands of release runs whose step succeeded; the run's record keeps what became of it",
    RELEASES: "ends of attempts that were handed back and not counted, of ended events",
    REQUESTS: "evidence that was never given, of superseded and withdrawn events",
    HISTORY: "evidence rows of replaced results that were never approved, of ended events",
    DELIVERIES: "deliveries that were signed and never sent, of ended events",
    TRACES: "the trace contexts of ended events",
}
STATES: Final = ("delivered", "superseded", "withdrawn")

HoldScope = Literal["site", "event"]


@dataclass(frozen=True, kw_only=True)
class LegalHold:
    """An operator's word that nothing of a site or an event is removed. In by `hold place`, out by `hold release`."""

    hold_id: str
    scope: HoldScope
    name: str
    reason: str
    owner: str
    placed_at: float
    released_at: float | None = None
    released_by: str | None = None
    release_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What one pruning removes: these kinds of rows, of events in these states that ended before a time."""

    before_at: float
    kinds: tuple[str, ...] = tuple(sorted(KINDS))
    states: tuple[str, ...] = STATES
    site_id: str | None = None

    def has(self, *kinds: str) -> bool:
        """Tell whether any of these kinds is to be removed."""
        return not set(kinds).isdisjoint(self.kinds)


def retention(
    *,
    older_than_seconds: float,
    now: float,
    kinds: Iterable[str] = (),
    states: Iterable[str] = (),
    site_id: str | None = None,
) -> Retention:
    """Return what is to be removed; without kinds or states, all of them. Raises `Invalid` (`prune.*.invalid`)."""
    if not is_time(older_than_seconds) or older_than_seconds < LEAST_AGE_SECONDS:
        days = LEAST_AGE_SECONDS / DAY_SECONDS
        raise Invalid("prune.age.invalid", f"only what ended at least {days:g} days ago may go", path="older_than")
    asked, ended = tuple(sorted(set(kinds))) or tuple(sorted(KINDS)), tuple(sorted(set(states))) or STATES
    if not set(asked) <= KINDS.keys():
        raise Invalid("prune.kind.invalid", f"the kinds are {', '.join(KINDS)}", path="kind")
    if not set(ended) <= set(STATES):
        raise Invalid("prune.state.invalid", f"the states are {', '.join(STATES)}", path="state")
    if site_id is not None and not is_token(site_id):
        raise Invalid("prune.site.invalid", "a site is named by its token", path="site")
    return Retention(before_at=now - older_than_seconds, kinds=asked, states=ended, site_id=site_id)


def check_hold_words(reason: str, owner: str) -> str:
    """Return a reason that may be kept, without the spaces around it; raise `Invalid` (`hold.*.invalid`)."""
    said = reason.strip()
    if not said or len(said) > LONGEST_REASON or not said.isprintable():
        raise Invalid(
            "hold.reason.invalid", f"say why, in one line of at most {LONGEST_REASON} characters", path="reason"
        )
    if not is_token(owner):
        raise Invalid("hold.owner.invalid", "the owner is a token: letters, digits and _.:-", path="owner")
    return said
