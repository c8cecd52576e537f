from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.groups.office import Office


@pytest.fixture
def new_office(tmp_path: Path) -> Iterator[Callable[..., Office]]:
    """An office with other settings; its catalogue is closed after the test."""
    offices = []

    def make(**settings: Any) -> Office:
        offices.append(Office(tmp_path, **settings))
        return offices[-1]

    yield make
    for office in offices:
        office.catalogue.close()


@pytest.fixture
def office(new_office: Callable[..., Office]) -> Office:
    return new_office()
