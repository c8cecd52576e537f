"""Every request of the client with each version of each API: the real broker, with ranges that the client sees reduced."""

from typing import Any

import pytest

from broker.client import Broker
from broker.client.kafka import EARLIEST, LATEST, Cluster, OffsetAndMetadata
from broker.client.kafka.connection import Connection
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from tests.client.kafka.conftest import config
from tests.client.kafka.logs import values

# The lowest version that Kafka 4 serves, or (transactions) that this client needs.
LOWEST = {
    ApiKey.METADATA: 4,
    ApiKey.LIST_OFFSETS: 2,
    ApiKey.OFFSET_FETCH: 2,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.INIT_PRODUCER_ID: 0,
    ApiKey.ADD_PARTITIONS_TO_TXN: 0,
    ApiKey.ADD_OFFSETS_TO_TXN: 0,
    ApiKey.TXN_OFFSET_COMMIT: 0,
    ApiKey.END_TXN: 0,
    ApiKey.LIST_TRANSACTIONS: 0,
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 4,
}


class Older(Cluster):
    """A cluster without versions more than ``steps`` above the lowest."""

    steps = 0

    def dial(self, *arguments: Any) -> Connection:
        connection = super().dial(*arguments)
        for key, lowest in LOWEST.items():
            least, most = connection.ranges[key]
            connection.ranges[key] = (least, min(most, lowest + self.steps))
        return connection


@pytest.mark.parametrize("steps", range(10))
def test_everything_with_each_version(running: Broker, topic: str, steps: int) -> None:
    group, name = f"{topic}-group", f"{topic}-writer"
    with Older(config(running)) as cluster:
        cluster.steps = steps
        assert (0, 1) == cluster.make_topics([topic])[topic].partitions
        assert topic in cluster.topics()
        cluster.commit(group, {(topic, 0): OffsetAndMetadata(3, "three"), (topic, 1): 4})
        assert {(topic, 0): OffsetAndMetadata(3, "three")} == cluster.committed(group, [(topic, 0)])
        with cluster.producer(transactional_id=name) as producer:
            producer.begin()
            producer.send(topic, 0, build_batch([(None, b"v", [], 0)]), 1)
            producer.commit_offsets(group, {(topic, 0): 5})
            producer.flush()
            assert [name] == [transaction.transactional_id for transaction in cluster.list_transactions(name)]
            producer.commit()
        assert {(topic, 0): 5, (topic, 1): 4} == {
            key: commit.offset for key, commit in cluster.committed(group).items()
        }
        assert {(topic, 0): 2} == cluster.offsets({(topic, 0): LATEST}, "read_committed")
        assert {(topic, 0): 0} == cluster.offsets({(topic, 0): EARLIEST})
        with cluster.fetcher(topic, 0, 0, 2, isolation="read_committed") as fetcher:
            assert [b"v"] == [value for fetched in fetcher for value in values(fetched.data, fetched.aborted)]
