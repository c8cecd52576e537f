"""Processes for the simulations, shared by the tests of this folder."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.sim import sweep


@pytest.fixture(scope="session")
def processes() -> Iterator[ProcessPoolExecutor]:
    with sweep.pool() as executor:
        yield executor
