"""A broker for the tests of a module, and a cluster as its client."""

import itertools
from collections.abc import Iterator

import pytest

from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster

_names = itertools.count()


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker(num_partitions=2) as broker:
        yield broker


@pytest.fixture
def cluster(running: Broker) -> Iterator[Cluster]:
    with Cluster(config(running)) as client:
        yield client


@pytest.fixture
def topic(running: Broker) -> str:
    """A topic of two partitions for a single test."""
    name = f"columns-{next(_names)}"
    running.server.kafka.logs.create_topic(name, 2, {})
    return name


def config(running: Broker, **settings: object) -> ClientConfig:
    """Names of settings are written with underscores in place of dots."""
    properties = {name.replace("_", "."): value for name, value in settings.items()}
    return ClientConfig.from_properties({"bootstrap.servers": running.bootstrap_servers} | properties)
