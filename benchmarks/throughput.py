"""Part `throughput`: W(R, L) with the queue filled first, two worker processes a side; and what a locale costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.peers import (
    BareLoop,
    LockstepLoop,
    PerEventPrefork,
    PerEventThreads,
    PerLocalePrefork,
    PerLocaleThreads,
)
from benchmarks.rounds import Turn, fresh_work, ready, summary, take_turn
from benchmarks.servers import Servers
from benchmarks.sides import Ours, Side

SIDES: tuple[type[Side], ...] = (
    Ours,
    PerLocaleThreads,
    PerLocalePrefork,
    PerEventThreads,
    PerEventPrefork,
    BareLoop,
    LockstepLoop,
)


def throughput(
    servers: Servers,
    *,
    rounds: int,
    events: int,
    locales: int,
    delays: Sequence[float],
    sides: Sequence[type[Side]] = SIDES,
    is_http: bool = False,
    processes: int = 2,
) -> dict[str, Any]:
    """Return the figures of each side for each provider's delay; the sides take turns within every round."""
    stub_url = servers.start_stub() if is_http else ""
    running = [ready(servers, kind, processes=processes, stub_url=stub_url) for kind in sides]
    found: dict[str, Any] = {}
    for delay in delays:
        turns: dict[str, list[Turn]] = {side.name: [] for side, _ in running}
        for number in range(rounds):
            work = fresh_work(servers, events, locales, delay)
            for side, watch in running if number % 2 == 0 else reversed(running):
                turns[side.name].append(take_turn(side, watch, work))
        found[f"{delay * 1000:g} ms"] = {name: figures(taken) for name, taken in turns.items()}
    return found


def figures(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return what some turns of one side say: the rate with its spread, and the cost of a locale as medians."""

    def each(name: str) -> float:
        return float(statistics.median(getattr(turn.spent, name) / turn.locales for turn in turns))

    return {
        "rate": summary(turn.rate for turn in turns),
        "cpu_ms": statistics.median(1000 * turn.cpu / turn.locales for turn in turns),
        "postgres_cpu_ms": 1000 * each("postgres_cpu"),
        "redis_cpu_ms": 1000 * each("redis_cpu"),
        **{name: each(name) for name in ("statements", "commits", "wal_bytes", "messages")},
    }
