"""The reference server, and a partition for a single test."""

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from protocol.shuffle.ids import ResultPartitionID
from tests.client.shuffle.reference_server import ReferenceServer

InThread = Callable[[Callable[[], object]], threading.Thread]


@pytest.fixture
def server() -> Iterator[ReferenceServer]:
    with ReferenceServer() as running:
        yield running
    assert running.violations == []


@pytest.fixture
def partition() -> ResultPartitionID:
    return ResultPartitionID.of(os.urandom(16))


@pytest.fixture
def in_thread() -> Iterator[InThread]:
    """Runs a function beside the test; its error fails the test."""
    threads: list[threading.Thread] = []
    failures: list[BaseException] = []

    def start(function: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                function()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run, name="a user's")
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("shuffle-")]
