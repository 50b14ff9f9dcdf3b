"""What workers count and time, and how that stays bounded: which series there are, never more than so many of each kind.

Names that come from outside (an error code of a provider) or from the settings (a route) are kept up to a bound; what
comes later counts as `other`. A site is never a name of a series. Nothing here holds a count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

ATTEMPTS: Final = "attempts"  # by work, outcome and code
PROVIDER_CALLS: Final = "provider_calls"  # by route and outcome
PROVIDER_SECONDS: Final = "provider_seconds"  # by route and bucket
CMS_CALLS: Final = "cms_calls"  # by operation and outcome
CMS_SECONDS: Final = "cms_seconds"  # by operation and bucket

MOST_CODES: Final = 100
MOST_ROUTES: Final = 20
OTHER: Final = "other"

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
BOUNDS: Final = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
SUM: Final = "sum"  # the part of a histogram that holds the seconds of all its calls

# What attempts are made at, and how they end: as the row says, `lost` with a lease that was somebody else's by then.
EVIDENCE: Final = "evidence"
DELIVERY: Final = "delivery"
LOST: Final = "lost"
EXPIRED: Final = "expired"  # the lease ran out, and a sweep took it away


@dataclass(frozen=True, kw_only=True, order=True)
class Series:
    """One number that only ever grows. `part` is a code of attempts, a bucket of seconds, and empty elsewhere."""

    measure: str
    subject: str
    outcome: str = ""
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """How long calls took: how many took at most so many seconds (each bound with all below it), and their sum."""

    buckets: tuple[tuple[str, float], ...]
    seconds: float


def bucket_of(seconds: float) -> str:
    """Return the bound of the smallest bucket that a duration fits into."""
    return BOUNDS[bisect_left(BUCKETS, seconds)]


def histogram_of(parts: Mapping[str, float]) -> Histogram:
    """Return the histogram that the parts of a series make up; a part that is missing holds nothing."""
    heights = accumulate(parts.get(bound, 0.0) for bound in BOUNDS)
    return Histogram(buckets=tuple(zip(BOUNDS, heights, strict=True)), seconds=parts.get(SUM, 0.0))


def fold(counts: Mapping[Series, float], kept: Iterable[Series]) -> dict[Series, float]:
    """Return counts under names that are kept already or that there is room for; the rest is added up as `other`.

    `kept` are the series that have a row. The same counts and rows give the same answer, in the order of the series.
    """
    codes = {one.part for one in kept if one.measure == ATTEMPTS}
    routes = {one.subject for one in kept if one.measure in {PROVIDER_CALLS, PROVIDER_SECONDS}}
    folded: dict[Series, float] = {}
    for series, value in sorted(counts.items()):
        name = series
        if series.measure == ATTEMPTS:
            name = replace(series, part=_admitted(series.part, codes, MOST_CODES))
        elif series.measure in {PROVIDER_CALLS, PROVIDER_SECONDS}:
            name = replace(series, subject=_admitted(series.subject, routes, MOST_ROUTES))
        folded[name] = folded.get(name, 0.0) + value
    return folded


def _admitted(name: str, known: set[str], most: int) -> str:
    if name and name not in known and len(known - {OTHER}) >= most:
        return OTHER
    known.add(name)
    return name


def names_within(names: Collection[str], most: int) -> dict[str, str]:
    """Return what each name is shown as: itself for the first so many in order, `other` for the rest."""
    return {name: name if place < most else OTHER for place, name in enumerate(sorted(names))}
