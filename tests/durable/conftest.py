"""What tests here are given by name: real engines, and places and brokers on them that are gone at the end of a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.server import BrokerServer
from tests.durable.durable_broker import durable_postgres
from tests.durable.postgres import PostgresServer, shared_server
from tests.durable.s3_server import S3Server, shared_seaweed
from tests.durable.servers import Place

# Of a test, s. Most take some 20 s, and many times that on a machine that has other things to do: each starts many processes.
_TIMEOUT_S = 900


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """The test's own, to be killed."""
    with durable_postgres() as server:
        yield server


@pytest.fixture
def seaweed() -> S3Server:
    """SeaweedFS, for all tests."""
    return shared_seaweed()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """In a PostgreSQL for all tests."""
    return Place(shared_server(), tmp_path)


@pytest.fixture
def running() -> Iterator[list[BrokerServer]]:
    """Brokers that are stopped in the end."""
    servers: list[BrokerServer] = []
    yield servers
    for server in servers:
        server.stop()
