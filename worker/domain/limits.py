"""How many calls to review providers the whole fleet may have open, and begin in a second. Values and rules only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

UNBOUNDED: Final = 1_000_000_000
ROUNDING: Final = 1e-6  # of a call; times are floats of the size of 10**9


@dataclass(frozen=True, kw_only=True)
class FleetLimits:
    """Most open calls: of each route named, of each site named (None: no bound), and of every other site.

    `rates` are the most calls that begin in a second, by route; `site_rates` and `other_sites_rate` those of each site.
    """

    routes: Mapping[str, int] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    sites: Mapping[str, int | None] = field(default_factory=dict)
    other_sites: int | None = None
    site_rates: Mapping[str, float | None] = field(default_factory=dict)
    other_sites_rate: float | None = None

    @property
    def is_any(self) -> bool:
        """Tell whether there is any bound to keep."""
        return bool(self.routes) or self.has_rates or self.other_sites is not None or any(self.sites.values())

    @property
    def has_rates(self) -> bool:
        """Tell whether any of the bounds is one on calls in a second."""
        return bool(self.rates) or self.other_sites_rate is not None or any(self.site_rates.values())

    def rate_of_site(self, site_id: str) -> float | None:
        """Return the most calls that begin for a site in a second, or None."""
        return self.site_rates.get(site_id, self.other_sites_rate)

    def of_site(self, site_id: str) -> int | None:
        """Return the bound of a site, or None."""
        return self.sites.get(site_id, self.other_sites)


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many further calls each route and site has room for; what is not named has no bound of its own."""

    routes: Mapping[str, int] = field(default_factory=dict)
    sites: Mapping[str, int] = field(default_factory=dict)
    other_sites: int = UNBOUNDED


def calls_allowed(rate: float, next_call_at: float, now: float) -> int:
    """Return how many calls may begin now: a second's worth at most is saved up, and at least one call."""
    return max(0, int((now - _since(rate, next_call_at, now)) * rate + ROUNDING))


def next_call_after(rate: float, next_call_at: float, now: float, calls: int) -> float:
    """Return the `next_call_at` of a rate once so many calls began now."""
    return _since(rate, next_call_at, now) + calls / rate


def refilled_at(rate: float, next_call_at: float) -> float:
    """Return from when on a rate allows one more call."""
    return next_call_at + (1.0 - ROUNDING) / rate


def _since(rate: float, next_call_at: float, now: float) -> float:
    return max(next_call_at, now - max(1.0, 1.0 / rate))


def room_left(limits: FleetLimits, open_calls: Iterable[tuple[str | None, str | None, int]]) -> Room:
    """Return the room under the limits; `open_calls` are (site, route, number of live leases)."""
    routes = dict(limits.routes)
    live: dict[str, int] = {}
    for site_id, route, count in open_calls:
        if route in routes:
            routes[route] -= count
        if site_id is not None:
            live[site_id] = live.get(site_id, 0) + count
    sites: dict[str, int] = {}
    for site_id in limits.sites.keys() | live.keys():
        bound = limits.of_site(site_id)
        sites[site_id] = UNBOUNDED if bound is None else max(0, bound - live.get(site_id, 0))
    other = UNBOUNDED if limits.other_sites is None else limits.other_sites
    return Room(routes={name: max(0, free) for name, free in routes.items()}, sites=sites, other_sites=other)
