"""A simulator that finds nothing is blind: every planted bug is found within 100 seeds."""

from concurrent.futures import Future, ProcessPoolExecutor

import pytest

from tests.sim.planted import PLANTED
from tests.sim.simulation import Result
from tests.sim.sweep import PLANTED_SEEDS, first_to_find, seeds_for


@pytest.fixture(scope="module")
def searches(processes: ProcessPoolExecutor) -> dict[str, Future[Result | None]]:
    """All at once: they run while the first test waits."""
    return {name: processes.submit(first_to_find, name, seeds_for(name)) for name in PLANTED}


@pytest.mark.timeout(1800)  # for a machine that has other things to do
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(searches: dict[str, Future[Result | None]], name: str) -> None:
    found = searches[name].result()
    assert found is not None, f"{PLANTED[name].what}: not found in {len(PLANTED_SEEDS)} seeds"


def test_broker_is_restored_after_a_planted_bug() -> None:
    for bug in PLANTED.values():
        right = vars(bug.owner)[bug.attribute]
        with bug.plant():
            assert vars(bug.owner)[bug.attribute] is not right
        assert vars(bug.owner)[bug.attribute] is right
