"""A storage with an object store, on the real disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.tier.helpers import TieredStorage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[TieredStorage]:
    (tmp_path / "data").mkdir()
    storage = TieredStorage(tmp_path / "data")
    yield storage
    storage.kill()
