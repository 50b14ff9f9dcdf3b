"""Series stay within their bounds, whatever comes from outside; buckets add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.domain.measure import (
    ATTEMPTS,
    BOUNDS,
    BUCKETS,
    MOST_CODES,
    MOST_ROUTES,
    OTHER,
    PROVIDER_CALLS,
    PROVIDER_SECONDS,
    SUM,
    Series,
    bucket_of,
    fold,
    histogram_of,
    names_within,
)


def attempt(code: str) -> Series:
    return Series(measure=ATTEMPTS, subject="evidence", outcome="failed", part=code)


def test_a_bucket_holds_what_took_at_most_its_bound() -> None:
    """A bound belongs to its own bucket, and what is longer than all of them to the last."""
    assert [bucket_of(bound) for bound in BUCKETS] == list(BOUNDS[:-1])
    assert (bucket_of(0.0), bucket_of(0.0051), bucket_of(60.001)) == ("0.005", "0.01", "+Inf")


def test_a_histogram_counts_each_bound_with_all_below_it() -> None:
    """Three calls: cumulative counts, the last of them all calls; and the sum of their seconds."""
    shape = histogram_of({"0.01": 2.0, "5": 1.0, SUM: 4.5})
    assert dict(shape.buckets)["0.005"] == 0.0
    assert dict(shape.buckets)["2.5"] == 2.0
    assert dict(shape.buckets)["+Inf"] == 3.0
    assert shape.seconds == 4.5


def test_codes_beyond_the_bound_count_as_other() -> None:
    """The first so many codes are kept; what follows is added up under `other`, and what has a row keeps it."""
    kept = [attempt(f"evidence.code-{n:03}") for n in range(MOST_CODES)]
    new = {attempt("evidence.one"): 1.0, attempt("evidence.two"): 2.0, kept[7]: 5.0, attempt(""): 1.0}
    assert fold(new, kept) == {attempt(OTHER): 3.0, kept[7]: 5.0, attempt(""): 1.0}


def test_routes_beyond_the_bound_count_as_other_in_both_measures() -> None:
    """A route's calls and its seconds go under the same name."""
    kept = [Series(measure=PROVIDER_CALLS, subject=f"route-{n}", outcome="answered") for n in range(MOST_ROUTES)]
    new = {
        Series(measure=PROVIDER_CALLS, subject="late", outcome="answered"): 1.0,
        Series(measure=PROVIDER_SECONDS, subject="late", part=SUM): 0.5,
        Series(measure=PROVIDER_SECONDS, subject="route-3", part=SUM): 0.25,
    }
    assert {one.subject: value for one, value in fold(new, kept).items()} == {OTHER: 0.5, "route-3": 0.25}


@given(st.dictionaries(st.text(min_size=1, max_size=8).map(attempt), st.floats(0, 1e6), max_size=300))
def test_folding_loses_nothing_and_stays_within_the_bound(counts: dict[Series, float]) -> None:
    """The sum is the same, and there are never more codes than the bound and `other`."""
    folded = fold(counts, ())
    assert abs(sum(folded.values()) - sum(counts.values())) < 1e-3
    assert len(folded) <= MOST_CODES + 1


def test_names_beyond_a_number_are_shown_as_other() -> None:
    """In order of the names, so that the same ones are shown each time."""
    assert names_within(["c", "a", "b"], 2) == {"a": "a", "b": "b", "c": OTHER}
