"""Many simulations, on all processors of the machine."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from tests.sim.planted import PLANTED
from tests.sim.simulation import DEFAULT_STEPS, Result, Simulation, simulate
from tests.sim.storm import FAULTS


@contextmanager
def pool() -> Iterator[ProcessPoolExecutor]:
    # Spawned, not forked: the parent may have threads (pytest-timeout's, another test's).
    with ProcessPoolExecutor(os.cpu_count() or 1, multiprocessing.get_context("spawn")) as executor:
        yield executor


def run_seed(seed: int, steps: int = DEFAULT_STEPS) -> Result:
    return simulate(seed, steps)


def first_to_find(name: str, seeds: Iterable[int], steps: int = DEFAULT_STEPS) -> Result | None:
    """The first of ``seeds`` that finds the planted bug of that name."""
    bug = PLANTED[name]
    for seed in seeds:
        simulation = Simulation(seed, steps)
        if bug.scene and not simulation.has(bug.scene):
            continue
        simulation.weather.weights.update({fault: FAULTS[fault] for fault in bug.faults})
        with bug.plant():
            result = simulation.run()
        if result.violation is not None:
            return result
    return None
