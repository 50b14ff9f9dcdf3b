"""`locseal breakers list` as people call it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cli.conftest import Home
from worker.domain.breaker import CMS, PROVIDER, News, Permit
from worker.domain.policy import Breaker
from worker.store.breakers import Told, grant, tell
from worker.store.engine import writing


def fail(home: Home, kind: str, name: str, *, open_seconds: float, times: int = 1) -> None:
    """Let a side fail; one fault opens its breaker."""
    policy = Breaker(opens_after_failures=1, open_seconds=open_seconds)
    news = News(kind=kind, name=name, worker_id="w-7", faults=times, code="evidence.provider.timeout")  # type: ignore[arg-type]
    writing(home.engine, lambda conn: tell(conn, [Told(news=news, policy=policy)], now=None))


def test_open_breakers_are_listed_with_why_and_until_when(locseal: Callable[..., Any], home: Home) -> None:
    """One waits, one may be tried, one is being tried; a closed one is not there."""
    assert locseal("breakers", "list").out == "no breaker is open\n"
    fail(home, PROVIDER, "lawyers", open_seconds=3600, times=3)
    fail(home, PROVIDER, "lab", open_seconds=0.0001)
    fail(home, CMS, "site-1", open_seconds=0.0001)
    permit = Permit(token="t", generation=1)
    writing(home.engine, lambda conn: grant(conn, CMS, "site-1", permit, seconds=3600, now=None))
    listed = locseal("breakers", "list", "--json").json["breakers"]
    assert [(one["kind"], one["name"], one["state"]) for one in listed] == [
        ("cms", "site-1", "probed"),
        ("provider", "lab", "to_be_probed"),
        ("provider", "lawyers", "closed_until"),
    ]
    assert (listed[2]["reason"], listed[2]["opened_by"], listed[2]["failures"]) == (
        "evidence.provider.timeout",
        "w-7",
        3,
    )
    shown = locseal("breakers", "list").out
    for words in ("nobody calls before then", "the next due call tries it", "one call is trying it now"):
        assert words in shown
