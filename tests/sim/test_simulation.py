"""The broker in bad weather: 120 seeds here, any number by hand (``python -m tests.sim --seeds 1-10000``).

A seed that fails: ``python -m tests.sim --seed N --verbose`` replays it, event by event.
"""

from concurrent.futures import Future, ProcessPoolExecutor

import pytest

from tests.sim.simulation import CASTS, Result, Simulation
from tests.sim.storm import FAULTS, LOSSES, Storm, draw_weather
from tests.sim.sweep import run_seed
from tests.sim.world import World

SEEDS = range(1, 121)
CHUNK = 20


@pytest.fixture(scope="module")
def sweep(processes: ProcessPoolExecutor) -> dict[int, Future[Result]]:
    """All at once: they run while the first test waits."""
    return {seed: processes.submit(run_seed, seed) for seed in SEEDS}


# Its result does not depend on other processes of the machine, but its duration does.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_every_promise_is_kept(sweep: dict[int, Future[Result]], first: int) -> None:
    results = [sweep[seed].result() for seed in range(first, first + CHUNK)]
    broken = {result.seed: result.violation for result in results if result.violation is not None}
    assert {} == broken
    # A simulation in which nothing happens keeps every promise, too.
    assert all(result.acknowledged > 0 for result in results)


def test_every_kind_of_fault_is_among_these_seeds() -> None:
    seasons = [draw_weather(World(seed).rng("weather")) for seed in SEEDS]
    kinds = {kind for weather in seasons for kind in weather.weights}
    assert set(FAULTS) == kinds
    assert all(hasattr(Storm, f"_{kind}") for kind in kinds)
    assert any(not weather.weights for weather in seasons), "none is without faults"


def test_every_loss_is_among_these_seeds() -> None:
    weathers = [simulation.weather for simulation in map(Simulation, SEEDS) if simulation.has("vault")]
    kinds = {kind for weather in weathers for kind in weather.weights}
    assert set(LOSSES) == set(LOSSES) & kinds
    assert all(hasattr(Storm, f"_{kind}") for kind in LOSSES)
    assert 8 <= len(weathers) <= 20


def test_every_cast_is_among_these_seeds() -> None:
    assert {Simulation(seed).cast for seed in SEEDS} == set(CASTS)


@pytest.mark.timeout(1800)
def test_the_broker_lives_many_times(sweep: dict[int, Future[Result]]) -> None:
    assert 5 < max(sweep[seed].result().lives for seed in range(1, 21))
