from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.transactions.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "data")
    yield house
    house.close()
