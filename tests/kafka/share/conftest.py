"""A stage for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.share.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.storage.stop()
