"""Many simulations, on all processors of the machine."""

import json
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.sim import cluster
from tests.sim.cluster import CLUSTER_STEPS, ClusterSimulation
from tests.sim.planted import PLANTED, Bug
from tests.sim.simulation import DEFAULT_STEPS, Result, Simulation, simulate
from tests.sim.storm import FAULTS, LOSSES

# The seed that found each planted bug when they were last recorded (`python -m tests.sim --record`). It only says where to begin,
# which saves the tests the seeds before it. A change of the broker may make another seed the first.
FOUND_BY = Path(__file__).with_name("found_by.json")
PLANTED_SEEDS = range(1, 101)


@contextmanager
def pool() -> Iterator[ProcessPoolExecutor]:
    # Spawned, not forked: the parent may have threads (pytest-timeout's, another test's).
    executor = ProcessPoolExecutor(os.cpu_count() or 1, multiprocessing.get_context("spawn"))
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)  # after a failure nobody waits for the others


def run_seed(seed: int, steps: int = DEFAULT_STEPS) -> Result:
    return simulate(seed, steps)


def run_nodes(seed: int) -> Result:
    return ClusterSimulation(seed).run()


def first_to_find(name: str, seeds: Iterable[int]) -> Result | None:
    """The first of ``seeds`` that finds the planted bug of that name."""
    bug = PLANTED[name]
    for seed in seeds:
        simulation = _simulation_for(bug, seed)
        if simulation is None:
            continue
        with bug.plant():
            result = simulation.run()
        if result.violation is not None:
            return result
    return None


def _simulation_for(bug: Bug, seed: int) -> Simulation | ClusterSimulation | None:
    """None: nothing of it could be seen."""
    if bug.scene == "nodes":
        several = ClusterSimulation(seed, bug.steps or CLUSTER_STEPS)
        several.weather.weights.update({fault: cluster.FAULTS[fault] for fault in bug.faults})
        return several
    simulation = Simulation(seed, bug.steps or DEFAULT_STEPS, vault=bug.scene == "vault" or None)
    if bug.scene and not simulation.has(bug.scene):
        return None
    simulation.weather.weights.update({fault: {**FAULTS, **LOSSES}[fault] for fault in bug.faults})
    return simulation


def seeds_for(name: str) -> list[int]:
    """All of :data:`PLANTED_SEEDS`, first the one that found that bug the last time."""
    found_by = json.loads(FOUND_BY.read_text()).get(name)
    return sorted(PLANTED_SEEDS, key=lambda seed: (seed != found_by, seed))


def record() -> dict[str, int | None]:
    """Search for every planted bug as the tests do, and write down the seeds that found them. None: no seed did."""
    with pool() as processes:
        searches = {name: processes.submit(first_to_find, name, seeds_for(name)) for name in PLANTED}
        results = {name: search.result() for name, search in searches.items()}
    seeds = {name: result.seed if result is not None else None for name, result in results.items()}
    recorded = {name: seed for name, seed in sorted(seeds.items()) if seed is not None}
    FOUND_BY.write_text(json.dumps(recorded, indent=1) + "\n")
    return seeds
