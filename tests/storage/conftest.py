"""The storage under test, on the real disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.helpers import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    (tmp_path / "data").mkdir()
    storage = Storage(tmp_path / "data")
    yield storage
    storage.kill()
