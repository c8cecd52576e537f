"""Three nodes in bad weather: 13 seeds here, any number by hand (``python -m tests.sim --nodes 3 --seeds 1-1000``)."""

import os
import subprocess
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.sim.cluster import FAULTS, ClusterSimulation, ClusterStorm
from tests.sim.simulation import Result
from tests.sim.sweep import run_nodes

ROOT = Path(__file__).parent.parent.parent
SEEDS = (*range(1, 13), 31)


@pytest.fixture(scope="module")
def sweep(processes: ProcessPoolExecutor) -> dict[int, Future[Result]]:
    return {seed: processes.submit(run_nodes, seed) for seed in SEEDS}


@pytest.mark.timeout(1800)
def test_every_promise_is_kept_by_several_nodes(sweep: dict[int, Future[Result]]) -> None:
    results = [sweep[seed].result() for seed in SEEDS]
    assert {} == {result.seed: result.violation for result in results if result.violation is not None}
    assert all(result.acknowledged > 0 for result in results)


@pytest.mark.timeout(1800)
def test_nodes_live_many_times(sweep: dict[int, Future[Result]]) -> None:
    assert 6 < max(sweep[seed].result().lives for seed in SEEDS)


def test_every_fault_of_nodes_is_among_these_seeds() -> None:
    weathers = [ClusterSimulation(seed).weather for seed in SEEDS]
    assert set(FAULTS) == {kind for weather in weathers for kind in weather.weights}
    assert all(hasattr(ClusterStorm, f"_{kind}") for kind in FAULTS)


def test_transactions_span_nodes() -> None:
    simulation = ClusterSimulation(1)
    places = {simulation.place_of(topic, partition) for topic, partition in simulation.transactional}
    assert {0, 1, 2} == places
    assert 1 < len({simulation.coordinator_of(each.name) for each in simulation.txn_producers})


@pytest.mark.timeout(1800)
def test_the_same_seed_has_the_same_trace(sweep: dict[int, Future[Result]]) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--nodes", "3", "--seed", "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"trace {sweep[2].result().hash}," in found.stdout
