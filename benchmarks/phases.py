"""Part `phases`: where a locale's time goes, step by step, in one process on PostgreSQL without Celery.

The product's steps run here with their checkpoints kept: CPU of this process, CPU of PostgreSQL and wall time from each
checkpoint to the next. The calls overlap the collector's work, so their CPU counts where it falls.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from typing import Any

from benchmarks.answers import Answers
from benchmarks.our_services import services_on
from benchmarks.rounds import fresh_work
from benchmarks.servers import Servers, cpu_seconds
from benchmarks.sides import Kept, Ours
from benchmarks.stub_provider import StubProvider
from worker.flow.collect_evidence import collect_evidence
from worker.flow.prepare_delivery import prepare_delivery


class Marks:
    """Adds up what was used since the mark before, under the name of the mark that ends it."""

    def __init__(self, postgres: int) -> None:
        self._postgres = postgres
        self.used: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        self.begin()

    def begin(self) -> None:
        """Begin to count from now on."""
        self._last = self._read()

    def __call__(self, name: str) -> None:
        """Count what was used up to here."""
        now = self._read()
        self.used[name] = [a + b - c for a, b, c in zip(self.used[name], now, self._last, strict=True)]
        self._last = self._read()

    def _read(self) -> list[float]:
        return [time.perf_counter(), time.process_time(), cpu_seconds(self._postgres)]


def phases(servers: Servers, *, rounds: int, events: int, locales: int) -> dict[str, Any]:
    """Return wall, CPU and PostgreSQL CPU in microseconds a locale between the checkpoints of the steps."""
    side = Ours(servers, processes=0)
    marks = Marks(servers.postgres.process.pid)
    services = replace(
        services_on(side.engine, servers.keys, Kept()),
        providers={"default": StubProvider(Answers(servers.answers))},
        checkpoint=marks,
    )
    count = 0
    for number in range(rounds + 1):
        work = fresh_work(servers, events, locales)
        side.seed(work.events)
        ready: list[str] = []
        if number == 1:  # the first round only warmed up
            marks.used.clear()
            count = 0
        marks.begin()
        collect_evidence(services, work.event_ids[0], ready=ready.append)
        marks("collect.end")
        for event_id in ready:
            prepare_delivery(services, event_id)
            marks("prepare.end")
        side.check(work)
        count += len(work.request_ids)
    names = ("wall_us", "cpu_us", "postgres_cpu_us")
    return {
        name: {label: 1e6 * value / count for label, value in zip(names, used, strict=True)}
        for name, used in marks.used.items()
    }
