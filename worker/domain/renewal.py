"""Which locales of an unpublished event are asked about again, under a new evidence revision. Decisions only.

    renew      an operator's word: whatever is not covered for long enough, approvals that were revoked among it
    expiring   by itself: approvals that end soon or have ended; never one that was revoked, nor after a failed renewal
    retry      an operator's word: questions that failed

A locale that is being asked about already is left alone, whichever it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RenewalKind = Literal["renew", "expiring", "retry"]


@dataclass(frozen=True, kw_only=True)
class GivenApproval:
    """One approval that was given for the current result of a locale's job. Times in seconds."""

    approved_at: float
    expires_at: float
    is_revoked: bool
    is_accepted: bool  # the site's policy as it is now accepts the one it was given under


@dataclass(frozen=True, kw_only=True)
class LocaleStanding:
    """One locale of an event as it stands, and all that decides whether it is asked about again.

    `row_*` are of the newest evidence row of this event for the current result. Times in seconds.
    """

    has_result: bool
    is_asked: bool  # a row of the job waits or is leased, for whatever event
    row_status: str | None = None
    row_created_at: float = 0.0
    row_renewed_at: float | None = None
    approvals: tuple[GivenApproval, ...] = ()

    def covered_until(self, now: float, *, given_since: float = 0.0) -> float:
        """Return until when approvals cover it, `now` where none does."""
        return max(
            (
                one.expires_at
                for one in self.approvals
                if one.is_accepted and not one.is_revoked and one.approved_at >= given_since
            ),
            default=now,
        )


def is_reopened(kind: RenewalKind, locale: LocaleStanding, *, now: float, within_seconds: float, every: bool) -> bool:
    """Tell whether a locale is asked about again.

    `within_seconds` is how long an approval must still last to be left as it is; `every` renews whatever it lasts.
    """
    if not locale.has_result or locale.is_asked:
        return False
    if kind == "retry":
        return locale.row_status == "failed" and locale.covered_until(now, given_since=_since(locale)) <= now
    ends_soon = locale.covered_until(now) <= now + within_seconds
    if kind == "renew":
        was_settled = bool(locale.approvals) or locale.row_status != "failed"  # what only ever failed is retried
        return was_settled and (ends_soon or every)
    newest = max(locale.approvals, key=lambda one: (one.approved_at, one.expires_at), default=None)
    if newest is None or newest.is_revoked or newest.expires_at > now + within_seconds:
        return False
    has_failed = locale.row_status == "failed" and locale.row_created_at > newest.approved_at
    return ends_soon and not has_failed


def _since(locale: LocaleStanding) -> float:
    return locale.row_renewed_at or 0.0
