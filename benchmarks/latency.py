"""Part `latency`: one event of L locales on an idle fleet, from its message to its stored delivery."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from benchmarks.peers import PerEventPrefork, PerEventThreads, PerLocalePrefork, PerLocaleThreads
from benchmarks.rounds import fresh_work, percentile, ready
from benchmarks.servers import Servers
from benchmarks.sides import Ours, Side, Watch
from benchmarks.work import Event

SIDES: tuple[type[Side], ...] = (Ours, PerLocaleThreads, PerLocalePrefork, PerEventThreads, PerEventPrefork)
TURNS = 4  # how often each side has its turn; the events are shared out among them


def latency(
    servers: Servers,
    *,
    events: dict[float, int],
    locales: int,
    idle_events: int,
    idle_seconds: float = 2.0,
    processes: int = 2,
    sides: Sequence[type[Side]] = SIDES,
) -> dict[str, Any]:
    """Return p50, p99 and extremes in milliseconds, by provider's delay and side; and ours after idleness.

    `events` says how many events are timed for each delay in seconds. The rows of an event are there before its message
    is sent, which is where the time begins; it ends when PostgreSQL has committed the delivery.
    """
    running = [ready(servers, kind, processes=processes) for kind in sides]
    found: dict[str, Any] = {}
    for delay, number in events.items():
        taken: dict[str, list[float]] = {side.name: [] for side, _ in running}
        turns = min(TURNS, number)
        for _turn in range(turns):
            work = fresh_work(servers, number // turns, locales, delay)
            for side, watch in running:
                side.resume()
                taken[side.name] += [time_one(side, watch, event) for event in work.events]
                side.pause()
                side.check(work)
        found[f"{delay * 1000:g} ms"] = {name: figures(times) for name, times in taken.items()}
    if idle_events:
        side, watch = running[0]
        found["after idleness"] = {side.name: idle(side, watch, idle_events, locales, idle_seconds)}
    return found


def idle(side: Side, watch: Watch, events: int, locales: int, seconds: float) -> dict[str, float]:
    """Return the figures of events that each come after some seconds in which nothing happened."""
    work = fresh_work(side.servers, events, locales)
    side.resume()
    times = []
    for event in work.events:
        time.sleep(seconds)
        times.append(time_one(side, watch, event))
    side.pause()
    return figures(times)


def time_one(side: Side, watch: Watch, event: Event) -> float:
    """Return the seconds from one event's message to its delivery."""
    side.seed([event])
    began = time.perf_counter()
    side.send(event)
    return watch.wait([event.change.event_id]) - began


def figures(seconds: Sequence[float]) -> dict[str, float]:
    """Return what some latencies say, in milliseconds."""
    return {
        "p50": 1000 * percentile(seconds, 0.5),
        "p99": 1000 * percentile(seconds, 0.99),
        "min": 1000 * min(seconds),
        "max": 1000 * max(seconds),
        "n": len(seconds),
    }
