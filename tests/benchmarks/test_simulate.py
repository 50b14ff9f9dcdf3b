"""The simulation of large fleets loses nothing, repeats itself, and shows what fair share is for."""

from __future__ import annotations

import pytest

from benchmarks.partition import Costs, Found, Order, Partition, Shape
from benchmarks.simulate import sized

COSTS = Costs(worker=0.001, database=0.0004)
SHAPE = Shape(locales_per_second=100, sites=8, processes=2, places=60, database_cores=2, provider_seconds=0.5, batch=20)


def simulated(order: Order, *, seed: int = 3) -> Found:
    return Partition(SHAPE, COSTS, order, seed).run(4.0, 800)


def test_every_locale_is_settled() -> None:
    """What arrived is settled, the burst too, under either order."""
    assert {simulated("fair").settled, simulated("fifo").settled} == {1200}


def test_a_run_can_be_repeated() -> None:
    """The same seed gives the same run, another one another."""
    assert simulated("fair") == simulated("fair")
    assert simulated("fair") != simulated("fair", seed=4)


def test_fair_share_spares_the_other_sites() -> None:
    """Beside one site's burst the others wait a fraction of what they wait in a plain queue."""
    assert simulated("fair").ordinary_p99 < simulated("fifo").ordinary_p99 / 2


def test_a_fleet_is_sized_for_its_busiest_hour() -> None:
    """Ten times the work needs about ten times the processes, and neither workers nor database are planned full."""
    small, large = (sized(day, COSTS, provider_seconds=2, database_cores=8) for day in (1e8, 1e9))
    peaks = [partitions * shape.locales_per_second for partitions, shape in (small, large)]
    assert peaks[1] == pytest.approx(10 * peaks[0])
    assert 8 <= large[0] * large[1].processes / (small[0] * small[1].processes) <= 12
    for partitions, shape in (small, large):
        assert partitions >= 1
        assert shape.locales_per_second * COSTS.worker / shape.processes <= 0.6
        assert shape.locales_per_second * COSTS.database / shape.database_cores <= 0.6
