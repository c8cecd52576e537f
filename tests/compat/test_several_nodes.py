"""Each client against three nodes of one cluster, whichever it asks first. ``make compat-nodes`` runs all of tests/compat so."""

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.clients import CLIENTS, each_client, skip_if_missing, writable
from tests.compat.clients.librdkafka import settings
from tests.compat.clients.record import Client
from tests.compat.conftest import new_name
from tests.process.nodes import COUNT, Nodes


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes")) as running:
        yield running
        assert 0 == running.stop()
        assert [] == running.errors


@each_client
def test_a_client_writes_and_reads_through_any_node(client: Client, cluster: Nodes) -> None:
    skip_if_missing(client)
    address = list(cluster.nodes().values())[CLIENTS.index(client) % COUNT]
    name = new_name("any")
    admin = AdminClient(settings(address))
    admin.create_topics([NewTopic(name, COUNT, COUNT)])[name].result(30)
    records = {partition: writable(client) for partition in range(COUNT)}
    for partition in records:
        client.produce(address, name, partition, records[partition], "none", -1)
    assert records == client.consume(address, name, sum(map(len, records.values())))
