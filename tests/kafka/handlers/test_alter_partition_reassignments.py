"""AlterPartitionReassignments: a partition may stay where it is."""

from collections.abc import Iterator

import pytest

from broker.kafka.handlers.alter_partition_reassignments import API
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(node_id=5) as kafka:
        yield kafka


@pytest.mark.parametrize("version", versions(API))
@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (0, [5], ErrorCode.none),
        (0, None, ErrorCode.no_reassignment_in_progress),
        (0, [5, 6], ErrorCode.invalid_replica_assignment),
        (0, [6], ErrorCode.invalid_replica_assignment),
        (0, [], ErrorCode.invalid_replica_assignment),
        (0, [5, 5], ErrorCode.invalid_replica_assignment),
        (2, [5], ErrorCode.unknown_topic_or_partition),
        (-1, None, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_what_becomes_of_a_reassignment(
    kafka: Kafka, version: int, partition: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    topic = kafka.topic(partitions=2)
    topics = [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
    answer = kafka.ask(API.key, version, timeout=1000, topics=topics, allow_replication_factor_change=True)
    assert answer.error_code == ErrorCode.none
    ((shown,),) = [response.partitions for response in answer.responses]
    assert (shown.partition_index, shown.error_code) == (partition, code)
    assert bool(shown.error_message) is (code != ErrorCode.none)


def test_request_has_a_bound_on_partitions(kafka: Kafka) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": n, "replicas": None} for n in range(10_000)]}]
    answer = kafka.ask(API.key, 1, timeout=1000, topics=topics, allow_replication_factor_change=True)
    assert (answer.error_code, answer.responses) == (ErrorCode.invalid_request, ())
