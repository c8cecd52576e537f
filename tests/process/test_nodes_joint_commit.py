"""What several producers wrote at several nodes is committed by one decision, as Spark's sink does with a batch of its tasks."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.transaction import end_together
from protocol.kafka.records.records import build_batch
from tests.client.kafka.logs import values
from tests.process.broker_process import PATIENCE_S
from tests.process.nodes import Nodes

TOPIC, GROUP, PARTITIONS, TASKS = "t", "spark-query", 6, 9


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    nodes = Nodes(tmp_path)
    nodes.start()
    admin = AdminClient({"bootstrap.servers": nodes.address})
    [made] = admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values()
    made.result(PATIENCE_S)
    with Cluster(ClientConfig.from_properties({"bootstrap.servers": nodes.address})) as made_cluster:
        yield made_cluster
    assert 0 == nodes.stop()


def committed(cluster: Cluster) -> list[int]:
    found = []
    for partition in range(PARTITIONS):
        end = cluster.offsets({(TOPIC, partition): -1}, "read_committed")[TOPIC, partition]
        with cluster.fetcher(TOPIC, partition, 0, end, isolation="read_committed") as fetcher:
            found += [int(value or b"") for fetched in fetcher for value in values(fetched.data, fetched.aborted)]
    return sorted(found)


def of_batches(numbers: Iterable[int]) -> list[int]:
    return [batch for batch in numbers for _ in range(TASKS * PARTITIONS)]


def test_a_batch_of_tasks_is_committed_with_its_number_or_not_at_all(cluster: Cluster) -> None:
    for batch in range(4):
        members = []
        for task in range(TASKS):
            with cluster.producer(transactional_id=f"{GROUP}/{task}/0") as producer:
                producer.begin()
                for partition in range(PARTITIONS):
                    producer.send(TOPIC, partition, build_batch([(None, b"%d" % batch, [], 0)]), 1)
                if not task:
                    producer.commit_offsets(GROUP, {(TOPIC, 0): batch})
                members.append(producer.hand_over())
        assert of_batches(range(0, batch, 2)) == committed(cluster)  # nothing of this one
        end_together(cluster.routing, members, committed=not batch % 2)
    assert of_batches((0, 2)) == committed(cluster)
    assert 2 == cluster.committed(GROUP, stable=True)[TOPIC, 0].offset
