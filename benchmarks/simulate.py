"""Queueing and fairness at a scale that no machine of ours has: a simulation with the service times that were measured.

    python -m benchmarks.simulate                       the table of docs/scale.md, from benchmarks/results.json
    python -m benchmarks.simulate --page                the same, written into the page
    python -m benchmarks.simulate --seconds 10 --order fifo

One database partition is simulated, second by second of arrivals: its sites, its worker processes with their places for
calls, and the three servers that every locale passes: the process's CPU, the database's cores, the provider. Claims take
batches by fair share as the product's do (each row to the site with the fewest live leases) or first come first served,
for comparison. In the middle one site releases everything at once.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.report import table
from benchmarks.rounds import percentile

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results.json"
PAGE: Final = ROOT / "docs" / "scale.md"
BEGIN: Final = "<!-- simulation:begin -->\n"
END: Final = "<!-- simulation:end -->"
DAY_SECONDS: Final = 86_400.0
PEAK: Final = 4.0  # the busiest hour of a day, as a multiple of its mean
LOADED: Final = 0.6  # how much of the CPU of workers and database is planned to be used in that hour
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


def sized(locales_a_day: float, costs: Costs, *, provider_seconds: float, database_cores: int) -> tuple[int, Shape]:
    """Return how many partitions a day's work needs, and the shape of one, for its busiest hour."""
    peak = PEAK * locales_a_day / DAY_SECONDS
    partitions = max(1, math.ceil(peak * costs.database / (LOADED * database_cores)))
    mine = peak / partitions
    by_cpu = mine * costs.worker / LOADED
    places = 500
    by_calls = mine * provider_seconds * 1.3 / places  # lognormal answers, and a margin
    shape = Shape(
        locales_per_second=mine,
        sites=min(1000, max(10, int(locales_a_day / partitions / 10_000))),
        processes=max(2, math.ceil(by_cpu), math.ceil(by_calls)),
        places=places,
        database_cores=database_cores,
        provider_seconds=provider_seconds,
    )
    return partitions, shape


def measured(kept: dict[str, Any]) -> Costs:
    """Return the costs of a locale that `make bench` found (throughput, provider at once)."""
    ours = kept["throughput"]["figures"]["0 ms"]["locseal"]
    return Costs(worker=ours["cpu_ms"] / 1000, database=ours["postgres_cpu_ms"] / 1000)


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals")
    parser.add_argument("--most", type=int, default=120_000, help="locales of one run at most; the seconds give way")
    parser.add_argument("--order", choices=["fair", "fifo", "both"], default="both")
    parser.add_argument("--provider-seconds", type=float, default=2.0)
    parser.add_argument("--database-cores", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="write the table into docs/scale.md")
    chosen = parser.parse_args()
    text = table_of(measured(json.loads(RESULTS.read_text())), chosen)
    print(text)
    if chosen.page:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{text}\n{END}{rest.partition(END)[2]}")


def table_of(costs: Costs, chosen: argparse.Namespace) -> str:
    """Return what the simulation says for three sizes of fleet, as a Markdown table."""
    orders: tuple[Order, ...] = ("fair", "fifo") if chosen.order == "both" else (chosen.order,)
    rows = []
    for day in (1e6, 1e8, 1e9):
        partitions, shape = sized(
            day, costs, provider_seconds=chosen.provider_seconds, database_cores=chosen.database_cores
        )
        seconds = min(chosen.seconds, chosen.most / shape.locales_per_second)
        bulk = int(shape.locales_per_second * seconds / 2)
        for order in orders:
            found = Partition(shape, costs, order, chosen.seed).run(seconds, bulk)
            rows.append(
                (
                    f"{day:.0e}".replace("e+0", "e"),
                    f"{partitions} x {shape.processes}",
                    f"{shape.locales_per_second:.0f}",
                    order,
                    f"{found.worker_busy:.0%} / {found.database_busy:.0%}",
                    f"{1000 * found.ordinary_p50:.0f} / {1000 * found.ordinary_p99:.0f}",
                    f"{bulk:,} in {found.bulk_seconds:.1f} s",
                )
            )
    head = (
        "locales a day",
        "partitions x processes",
        "locales/s of one at peak",
        "order",
        "workers / database busy",
        "wait of other sites, p50 / p99 ms",
        "one site's burst",
    )
    return table(head, rows)


if __name__ == "__main__":
    main()
