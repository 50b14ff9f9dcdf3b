"""Field case 75: whom an outage sent away does not come back in one crowd."""

from __future__ import annotations

import random
from collections import Counter

from worker.domain.attempt import spread_wait

ROWS = 200


def waits(attempts: int, asked: float | None = None) -> list[float]:
    """Return the waits of 200 rows that failed in the same moment."""
    chance = random.Random(75)
    return [spread_wait(attempts, jitter=chance.random() / 2, retry_after_seconds=asked) for _ in range(ROWS)]


def test_75_after_an_outage_of_a_minute_no_second_holds_a_quarter() -> None:
    """Rows that were away for 60 s are at their fourth wait, of 40 to 60 s: no second gets 25 % of them."""
    assert sum(min(waits(number)) for number in (1, 2, 3)) < 60 < sum(min(waits(number)) for number in (1, 2, 3, 4))
    crowd = Counter(int(wait) for wait in waits(4))
    assert max(crowd.values()) < ROWS * 0.25
    assert all(40 <= wait <= 60 for wait in waits(4))


def test_75_nobody_comes_earlier_than_asked() -> None:
    """A Retry-After of 10 s is spread over the fifth that may be added, and never cut."""
    told = waits(1, 10.0)
    assert all(10 <= wait <= 12 for wait in told)
    assert len(set(told)) == ROWS
