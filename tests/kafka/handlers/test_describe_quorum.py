"""DescribeQuorum: one voter, which leads and is never behind."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.handlers.describe_quorum import API
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(node_id=5) as kafka:
        yield kafka


def ask(kafka: Kafka, version: int, topic: str = "__cluster_metadata", partition: int = 0) -> tuple[Any, Any]:
    topics = [{"topic_name": topic, "partitions": [{"partition_index": partition}]}]
    answer = kafka.ask(API.key, version, topics=topics)
    assert answer.error_code == ErrorCode.none
    ((shown,),) = [one.partitions for one in answer.topics]
    return answer, shown


@all_versions
def test_this_node_is_the_quorum(kafka: Kafka, version: int) -> None:
    answer, before = ask(kafka, version)
    kafka.topic()
    answer, shown = ask(kafka, version)
    assert (shown.error_code, shown.leader_id) == (ErrorCode.none, 5)
    (voter,) = shown.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (5, shown.high_watermark)
    assert shown.high_watermark > before.high_watermark
    assert shown.observers == ()
    if version >= 2:
        (node,) = answer.nodes
        assert (node.node_id, node.listeners[0].port) == (5, kafka.address[1])


@all_versions
@pytest.mark.parametrize(("topic", "partition"), [("t", 0), ("__cluster_metadata", 1)])
def test_nothing_else_has_a_quorum(kafka: Kafka, version: int, topic: str, partition: int) -> None:
    _, shown = ask(kafka, version, topic, partition)
    assert (shown.error_code, shown.current_voters) == (ErrorCode.unknown_topic_or_partition, ())
