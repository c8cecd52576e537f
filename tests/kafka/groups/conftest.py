from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.groups.classic_group_driver import ClassicGroupDriver
from tests.kafka.groups.group_harness import GroupHarness


@pytest.fixture
def new_harness(tmp_path: Path) -> Iterator[Callable[..., GroupHarness]]:
    """Makes a harness with other settings. Its catalogue is closed after the test."""
    harnesses = []

    def make(**settings: Any) -> GroupHarness:
        harnesses.append(GroupHarness(tmp_path, **settings))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.catalogue.close()


@pytest.fixture
def harness(new_harness: Callable[..., GroupHarness]) -> GroupHarness:
    return new_harness()


@pytest.fixture
def group() -> ClassicGroupDriver:
    return ClassicGroupDriver()
