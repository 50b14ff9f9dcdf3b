"""What keeps work back that is due: an operator's pause, or a breaker that is open. Facts, and the words for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from worker.domain.errors import Invalid
from worker.domain.identifier import is_time, is_token

LONGEST_REASON: Final = 200  # characters

Scope = Literal["all", "site", "provider"]


@dataclass(frozen=True, kw_only=True)
class Pause:
    """An operator's word that new work of a scope stops. `name` is the site or the route, empty for all.

    In by `locseal pause`, out by `locseal resume` or once `until_at` has passed; moved by operators alone.
    """

    scope: Scope
    name: str
    owner: str
    reason: str
    until_at: float | None = None

    def said(self, at: Callable[[float], str]) -> str:
        """Return it in words; `at` writes a time."""
        until = "" if self.until_at is None else f" until {at(self.until_at)}"
        return f"paused by {self.owner}{until}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Closure:
    """A breaker that is open: calls to a provider or to a site's CMS stop until its time, then one call tries it."""

    kind: str  # provider | cms
    name: str
    until_at: float

    def said(self, at: Callable[[float], str], now: float) -> str:
        """Return it in words; `at` writes a time."""
        side = "CMS" if self.kind == "cms" else "provider"
        if self.until_at <= now:
            return f"{side} closed until one call has tried it"
        return f"{side} closed until {at(self.until_at)}"


def check_pause(pause: Pause) -> Pause:
    """Return a pause that may be stored; raise `Invalid` (`pause.*.invalid`) for any other."""
    if (pause.scope == "all") != (pause.name == "") or not (pause.name == "" or is_token(pause.name)):
        raise Invalid("pause.name.invalid", "name one site or one provider by its token, or none for all", path="name")
    if not is_token(pause.owner):
        raise Invalid("pause.owner.invalid", "the owner is a token: letters, digits and _.:-", path="owner")
    reason = pause.reason
    if not reason.strip() or len(reason) > LONGEST_REASON or not reason.isprintable():
        raise Invalid(
            "pause.reason.invalid", f"say why, in one line of at most {LONGEST_REASON} characters", path="reason"
        )
    if pause.until_at is not None and not is_time(pause.until_at):
        raise Invalid("pause.until.invalid", "the end of the pause is no time", path="until")
    return pause
