"""The same seed is the same simulation: in this process, after others, and in another one with other hashes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.simulation import simulate

ROOT = Path(__file__).parent.parent.parent


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


@pytest.mark.parametrize("seed", [3, 11])
def test_the_same_seed_has_the_same_trace_everywhere(seed: int) -> None:
    first = simulate(seed)
    assert first.hash == simulate(seed).hash
    assert {first.hash} == {trace_in_another_process(seed, hash_seed) for hash_seed in (1, 2)}


def test_other_seeds_have_other_traces() -> None:
    assert 5 == len({simulate(seed, 200).hash for seed in range(5)})


def test_a_longer_run_begins_as_the_shorter_one() -> None:
    # The storm ends when the clients' first act does; up to there, nothing depends on how long it will be.
    assert simulate(7, 300).acknowledged <= simulate(7, 600).acknowledged
