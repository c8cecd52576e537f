"""The same seed is the same simulation: in one process, after others, and in another one with other hashes.

In processes of their own: in this one, other tests may have left threads that use the modules that a simulation changes.
"""

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.sim.sweep import run_seed

ROOT = Path(__file__).parent.parent.parent
SEEDS = (3, 2, 12, 95, 60)  # with groups, shuffle, transactions, consumer groups, a vault


def trace_in_another_process(seed: int, hash_seed: int) -> str:
    found = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.split("trace ")[1].split(",")[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_seed_has_the_same_trace_everywhere(processes: ProcessPoolExecutor, seed: int) -> None:
    again = {result.hash for result in processes.map(run_seed, [seed, seed, seed])}
    assert again == {trace_in_another_process(seed, hash_seed) for hash_seed in (1, 3)}


def test_other_seeds_have_other_traces(processes: ProcessPoolExecutor) -> None:
    assert 5 == len({result.hash for result in processes.map(run_seed, range(5), [200] * 5)})


def test_a_longer_run_begins_as_the_shorter_one(processes: ProcessPoolExecutor) -> None:
    # The storm ends when the clients' first act does; up to there, nothing depends on how long it will be.
    shorter, longer = processes.map(run_seed, [8, 8], [300, 600])
    assert shorter.acknowledged <= longer.acknowledged
