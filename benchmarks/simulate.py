"""Queueing and fairness at a scale that no machine of ours has: a simulation with the service times that were measured.

    python -m benchmarks.simulate                       the table of docs/scale.md, from benchmarks/results.json
    python -m benchmarks.simulate --page                the same, written into the page
    python -m benchmarks.simulate --seconds 10 --order fifo

One database partition is simulated (`benchmarks/partition.py`); in the middle one site releases everything at once.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, Final

from benchmarks.partition import Costs, Order, Partition, Shape
from benchmarks.report import table

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results.json"
PAGE: Final = ROOT / "docs" / "scale.md"
BEGIN: Final = "<!-- simulation:begin -->\n"
END: Final = "<!-- simulation:end -->"
DAY_SECONDS: Final = 86_400.0
PEAK: Final = 4.0  # the busiest hour of a day, as a multiple of its mean
LOADED: Final = 0.6  # how much of the CPU of workers and database is planned to be used in that hour


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
