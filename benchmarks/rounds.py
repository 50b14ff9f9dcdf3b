"""One turn of one side, and what is kept of many: medians, spread and percentiles. Timings are never judged here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.servers import Servers, Spent
from benchmarks.sides import Side, Watch
from benchmarks.work import Work, make_work


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What one turn took. Seconds; `spent` is what the servers did meanwhile, `cpu` what the side's processes used."""

    seconds: float
    locales: int
    cpu: float
    spent: Spent

    @property
    def rate(self) -> float:
        """Return locales per second."""
        return self.locales / self.seconds


def fresh_work(servers: Servers, events: int, locales: int, delay_seconds: float = 0.0) -> Work:
    """Return new work that every stub knows the answers to."""
    work = make_work(servers.keys, events, locales, delay_seconds=delay_seconds)
    servers.publish_answers(work)
    return work


def take_turn(side: Side, watch: Watch, work: Work) -> Turn:
    """Fill the database and the queue while the side stands still, let it go, and wait for its last delivery."""
    side.seed(work.events)
    before, cpu = side.servers.spent(side.database), side.cpu_seconds()
    for event in work.events:
        side.send(event)
    began = time.perf_counter()
    side.resume()
    ended = watch.wait(work.event_ids)
    side.pause()
    turn = Turn(
        seconds=ended - began,
        locales=len(work.request_ids),
        cpu=side.cpu_seconds() - cpu,
        spent=side.servers.spent(side.database) - before,
    )
    side.check(work)
    return turn


def warm_up(side: Side, watch: Watch) -> None:
    """Start a side, let it do a little work so that nothing is imported, connected or prepared later, and pause it."""
    side.start()
    work = fresh_work(side.servers, 4, 6)
    side.seed(work.events)
    for event in work.events:
        side.send(event)
    watch.wait(work.event_ids)
    side.pause()


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which a part of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(part * len(ordered) + 0.5) - 1))]


def summary(values: Iterable[float]) -> dict[str, float]:
    """Return median, smallest, largest and number of some values."""
    kept = list(values)
    return {"median": statistics.median(kept), "min": min(kept), "max": max(kept), "n": len(kept)}
