"""The pytest fixtures that come with the package. Loaded by pytest itself (entry point ``pytest11``), so a test only names one:

def test_orders_arrive(broker):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker.client.embedded import Broker


@pytest.fixture
def broker() -> "Iterator[Broker]":
    """A broker of this test's own: empty, on a free port, gone with its data when the test ends."""
    from broker.client.embedded import Broker

    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def session_broker() -> "Iterator[Broker]":
    """One broker for the whole session: for tests that make topics of their own names and so can share it."""
    from broker.client.embedded import Broker

    with Broker() as running:
        yield running
