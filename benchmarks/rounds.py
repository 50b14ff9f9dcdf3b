"""One turn of one side, and what is kept of many: medians, spread and percentiles. Timings are never judged here."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from benchmarks.servers import Servers, Spent
from benchmarks.sides import Ours, Side, Watch
from benchmarks.work import Work, make_work
from config.settings import Settings

WARM_UPS: Final = 4
AnySide = TypeVar("AnySide", bound=Side)


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


def ready(servers: Servers, kind: type[AnySide], **options: Any) -> tuple[AnySide, Watch]:
    """Return a side that stands still after a little work, so that nothing is imported, connected or prepared later.

    A side that an earlier part started with the same options goes on; all end with the servers.
    """
    if servers.is_tiny and issubclass(kind, Ours):
        options |= {"processes": 1, "has_beat": False}
    key = (kind, json.dumps(options, sort_keys=True))
    if key not in servers.kept:
        side = kind(servers, **options)
        side.start()
        servers.kept[key] = (side, side.watch())
    side, watch = servers.kept[key]
    warm_up(side, watch)
    return side, watch


def warm_up(side: Side, watch: Watch) -> None:
    """Let a side do a little work, in several helpings so that each of its processes gets some, and stop it."""
    for _ in range(1 if side.servers.is_tiny else WARM_UPS):
        work = fresh_work(side.servers, 8, 6)
        side.seed(work.events)
        for event in work.events:
            side.send(event)
        side.resume()
        watch.wait(work.event_ids)
        side.pause()


def calls_setting(calls: int) -> dict[str, str]:
    """Return the settings of a process with so many open calls; none where that is the default."""
    fields = Settings.model_fields
    wanted = {"concurrent_calls": calls, "batch_rows": max(fields["batch_rows"].default, min(calls, 500))}
    return {name.upper(): str(value) for name, value in wanted.items() if fields[name].default != value}


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which a part of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(part * len(ordered) + 0.5) - 1))]


def summary(values: Iterable[float]) -> dict[str, float]:
    """Return median, smallest, largest and number of some values."""
    kept = list(values)
    return {"median": statistics.median(kept), "min": min(kept), "max": max(kept), "n": len(kept)}
