"""One simulated partition of a fleet: its sites, its worker processes with their places for calls, its database.

Every locale passes three servers: the process's CPU, the database's cores, the provider. Claims take batches by fair share
as the product's do (each row to the site with the fewest live leases), or first come first served for comparison.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from benchmarks.rounds import percentile

BULK: Final = "bulk"
CLAIM: Final = 0.4  # the claim's part of a locale's cost in the database; the settle has the rest
COMPANY_SECONDS: Final = 0.002  # how long an answer waits for others
LEAST_ROWS: Final = 3.0  # a statement costs the database no less than so many locales

Order = Literal["fair", "fifo"]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one locale costs, in seconds: CPU of a worker process, CPU of PostgreSQL; and one commit's wait for the disk."""

    worker: float
    database: float
    commit: float = 0.001


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One partition of a fleet: how much arrives, and what there is for it."""

    locales_per_second: float
    sites: int
    processes: int
    places: int
    database_cores: int
    provider_seconds: float
    batch: int = 50


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one run found: waits from due to settled less the provider's own time, in seconds, and how busy all were."""

    ordinary_p50: float
    ordinary_p99: float
    bulk_p50: float
    bulk_seconds: float
    worker_busy: float
    database_busy: float
    settled: int


@dataclass
class Process:
    """One worker process: free places for calls, its one busy CPU, and the answers that wait to be settled."""

    free: int
    cpu_free_at: float = 0.0
    busy: float = 0.0
    answered: list[tuple[str, float, float]] = field(default_factory=list)  # site, due since, provider's time
    is_claiming: bool = False
    is_settling: bool = False

    def use(self, now: float, seconds: float) -> float:
        """Use the CPU for so long, after whoever uses it now, and return when that is over."""
        self.cpu_free_at = max(self.cpu_free_at, now) + seconds
        self.busy += seconds
        return self.cpu_free_at


class Partition:
    """The simulated partition. Time is in seconds from the beginning."""

    def __init__(self, shape: Shape, costs: Costs, order: Order, seed: int) -> None:
        """Begin with nothing due."""
        self.shape, self.costs, self.order = shape, costs, order
        self.random = random.Random(seed)  # noqa: S311 - chance that can be repeated
        self.processes = [Process(free=shape.places) for _ in range(shape.processes)]
        self.due: dict[str, deque[float]] = {}
        self.waiting: deque[str] = deque()  # the sites of the due rows in their order, for `fifo`
        self.live: dict[str, int] = {}
        self.database_free_at = 0.0
        self.database_busy = 0.0
        self.waits: dict[bool, list[float]] = {False: [], True: []}  # by "of the bulk site"
        self.last_bulk = 0.0
        self.events: list[tuple[float, int, str, tuple[Any, ...]]] = []
        self._count = 0
        self._turn = 0

    def run(self, seconds: float, bulk: int) -> Found:
        """Let locales arrive for so long, `bulk` of one site in the middle, and work until all are settled."""
        for at, site in self._arrivals(seconds):
            self._at(at, "arrive", site, 1)
        self._at(seconds / 2, "arrive", BULK, bulk)
        while self.events:
            now, _, what, given = heapq.heappop(self.events)
            getattr(self, f"_{what}")(now, *given)
        ordinary, ofbulk = self.waits[False], self.waits[True] or [0.0]
        span = max(seconds, self.last_bulk)
        return Found(
            ordinary_p50=percentile(ordinary, 0.5),
            ordinary_p99=percentile(ordinary, 0.99),
            bulk_p50=percentile(ofbulk, 0.5),
            bulk_seconds=max(0.0, self.last_bulk - seconds / 2),
            worker_busy=sum(one.busy for one in self.processes) / span / len(self.processes),
            database_busy=self.database_busy / span,
            settled=len(ordinary) + len(self.waits[True]),
        )

    def _arrivals(self, seconds: float) -> Iterator[tuple[float, str]]:
        """Yield (time, site): Poisson in all, sites by a Zipf law, since few sites make most of the work."""
        shares = [1 / (place + 1) for place in range(self.shape.sites)]
        names = [f"site-{place}" for place in range(self.shape.sites)]
        number = int(self.shape.locales_per_second * seconds)
        chosen = self.random.choices(names, shares, k=number)
        times = sorted(self.random.random() * seconds for _ in range(number))
        yield from zip(times, chosen, strict=True)

    def _at(self, when: float, what: str, *given: Any) -> None:
        self._count += 1
        heapq.heappush(self.events, (when, self._count, what, given))

    def _arrive(self, now: float, site: str, number: int) -> None:
        """Rows fall due, and one process is woken, as by one message."""
        self.due.setdefault(site, deque()).extend([now] * number)
        self.waiting.extend([site] * number)
        self._turn = (self._turn + 1) % len(self.processes)
        self._claim(now, self.processes[self._turn])

    def _claim(self, now: float, process: Process) -> None:
        """Take a batch where there are rows and places; a process that is behind looks when it has caught up."""
        number = min(self.shape.batch, process.free, len(self.waiting))
        if process.is_claiming or not number:
            return
        process.is_claiming = True
        if process.cpu_free_at > now:
            self._at(process.cpu_free_at, "take", process)
        else:
            self._take(now, process)

    def _take(self, now: float, process: Process) -> None:
        rows = [*self._pick(min(self.shape.batch, process.free, len(self.waiting)))]
        process.free -= len(rows)
        self._at(self._database(now, CLAIM * len(rows)) if rows else now, "taken", process, rows)

    def _taken(self, now: float, process: Process, rows: Sequence[tuple[str, float]]) -> None:
        process.is_claiming = False
        for site, since in rows:
            called_at = process.use(now, self.costs.worker / 2)
            taken = self.random.lognormvariate(math.log(self.shape.provider_seconds), 0.5)
            self._at(called_at + taken, "answer", process, (site, since, taken))
        if len(rows) == self.shape.batch:
            self._claim(now, process)

    def _answer(self, now: float, process: Process, row: tuple[str, float, float]) -> None:
        process.answered.append(row)
        if not process.is_settling:
            process.is_settling = True
            self._at(now + COMPANY_SECONDS, "settle", process)

    def _pick(self, number: int) -> Iterator[tuple[str, float]]:
        """Yield rows as a claim takes them and count their leases."""
        if self.order == "fifo":
            for _ in range(number):
                yield self._lease(self.waiting.popleft())
            return
        ranked = [(self.live.get(site, 0), rows[0], site) for site, rows in self.due.items()]
        heapq.heapify(ranked)
        for _ in range(number):
            leases, _, site = heapq.heappop(ranked)
            self.waiting.pop()  # only their number counts here
            yield self._lease(site)
            if site in self.due:
                heapq.heappush(ranked, (leases + 1, self.due[site][0], site))

    def _lease(self, site: str) -> tuple[str, float]:
        since = self.due[site].popleft()
        if not self.due[site]:
            del self.due[site]
        self.live[site] = self.live.get(site, 0) + 1
        return site, since

    def _settle(self, now: float, process: Process) -> None:
        rows, process.answered = process.answered, []
        self._at(process.use(now, len(rows) * self.costs.worker / 2), "signed", process, rows)

    def _signed(self, now: float, process: Process, rows: Sequence[tuple[str, float, float]]) -> None:
        self._at(self._database(now, (1 - CLAIM) * len(rows)), "settled", process, rows)

    def _settled(self, now: float, process: Process, rows: Sequence[tuple[str, float, float]]) -> None:
        process.free += len(rows)
        process.is_settling = bool(process.answered)
        if process.is_settling:
            self._at(now, "settle", process)
        for site, since, taken in rows:
            self.live[site] -= 1
            self.waits[site == BULK].append(now - since - taken)
            if site == BULK:
                self.last_bulk = now
        self._claim(now, process)

    def _database(self, now: float, locales: float) -> float:
        """Return when the database has done a statement's share for so many locales; its cores are one faster server.

        However few rows a statement has, it costs as much as a few: small batches are dearer.
        """
        seconds = max(locales, LEAST_ROWS) * self.costs.database / self.shape.database_cores
        self.database_free_at = max(self.database_free_at, now) + seconds
        self.database_busy += seconds
        return self.database_free_at + self.costs.commit
