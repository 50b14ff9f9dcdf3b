"""The waits of the fleet: the exact formula, the random share on top, and what another side asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.domain.attempt import backoff_seconds, due_after, spread_wait


def test_the_formula_doubles_up_to_an_hour() -> None:
    """5, 10, 20, ... and at most 3600 seconds; the waits of 20 attempts sum up to 37,515 seconds and the last hour."""
    assert [backoff_seconds(n) for n in range(1, 12)] == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600]
    assert sum(backoff_seconds(n) for n in range(1, 20)) == 37_515


@pytest.mark.parametrize(
    ("not_before", "due"), [(None, 1005.0), (900.0, 1005.0), (1005.5, 1005.5), (4600.0, 4600.0), (9e9, 4600.0)]
)
def test_not_before_only_lengthens_up_to_an_hour(not_before: float | None, due: float) -> None:
    """A time before the formula's is no shortening, and a far one is cut."""
    assert due_after(1, 1000.0, not_before) == due


@pytest.mark.parametrize(
    ("jitter", "asked", "wait"),
    [
        (0.0, None, 5.0),
        (0.5, None, 7.5),
        (0.0, 7.0, 7.0),
        (0.5, 7.0, 8.4),
        (0.5, 0.0, 7.5),
        (0.0, 120.0, 120.0),
        (0.5, 120.0, 144.0),
        (0.5, 999_999.0, 3600.0),
    ],
)
def test_what_was_asked_for_is_spread_by_a_fifth_at_most(jitter: float, asked: float | None, wait: float) -> None:
    """The formula gets up to half on top, a Retry-After up to a fifth, and no wait is longer than an hour."""
    assert spread_wait(1, jitter=jitter, retry_after_seconds=asked) == pytest.approx(wait)


@given(count=st.integers(0, 500), jitter=st.floats(0, 0.5), asked=st.none() | st.floats(0, 1e6))
def test_a_wait_is_never_shorter_than_asked_nor_longer_than_an_hour(
    count: int, jitter: float, asked: float | None
) -> None:
    """Jitter only adds."""
    wait = spread_wait(count, jitter=jitter, retry_after_seconds=asked)
    assert 5.0 <= wait <= 3600.0
    assert wait >= min(3600.0, asked or 0.0)
    assert wait >= spread_wait(count, jitter=0.0)


@given(draws=st.lists(st.floats(0, 0.5), min_size=1))
def test_rows_told_the_same_wait_are_spread(draws: list[float]) -> None:
    """Between the wait that was asked for and a fifth more lies everything that chance draws."""
    waits = [spread_wait(1, jitter=jitter, retry_after_seconds=100.0) for jitter in draws]
    assert all(100.0 <= wait <= 120.0 for wait in waits)
    assert len(set(waits)) == len({100.0 * (1 + 0.4 * jitter) for jitter in draws})
