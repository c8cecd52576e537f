"""A topic with a real log, whose threads are run by hand, and clients whose sockets are lists."""

from collections.abc import Iterator

import pytest

from tests.pulsar.subscriptions.stage import Stage
from tests.storage.conftest import storage as storage
from tests.storage.helpers import Storage


@pytest.fixture
def stage(storage: Storage) -> Iterator[Stage]:
    stage = Stage(storage)
    yield stage
    assert [] == stage.errors
