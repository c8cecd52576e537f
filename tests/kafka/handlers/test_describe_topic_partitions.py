"""DescribeTopicPartitions: ids of topics, and pages."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka

TOPICS = {"a": 3, "b": 1, "c": 4}
ALL = [(name, number) for name, count in TOPICS.items() for number in range(count)]


@pytest.fixture
def kafka() -> Iterator[Kafka]:
    with Kafka(node_id=5) as kafka:
        for name, partitions in TOPICS.items():
            kafka.inside.logs.create_topic(name, partitions, {})
        yield kafka


def ask(kafka: Kafka, *names: str, limit: int = 2000, cursor: Any = None) -> Any:
    topics = [{"name": name} for name in names]
    return kafka.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics, response_partition_limit=limit, cursor=cursor)


def found(response: Any) -> list[tuple[str, int]]:
    return [(topic.name, partition.partition_index) for topic in response.topics for partition in topic.partitions]


def test_recreated_topic_has_another_id(kafka: Kafka) -> None:
    (before,) = ask(kafka, "a").topics
    assert before.topic_id not in (None, UUID(int=0))
    assert before.topic_id == ask(kafka, "a").topics[0].topic_id
    kafka.inside.logs.delete_topic("a")
    kafka.inside.logs.create_topic("a", 3, {})
    (after,) = ask(kafka, "a").topics
    assert before.topic_id != after.topic_id


def test_this_node_has_every_partition(kafka: Kafka) -> None:
    (topic,) = ask(kafka, "b").topics
    (partition,) = topic.partitions
    assert (5, [5], [5]) == (partition.leader_id, list(partition.replica_nodes), list(partition.isr_nodes))
    assert topic.topic_authorized_operations == 0b110111111000, "all that Kafka has for a topic"


def test_missing_topic_is_unknown(kafka: Kafka) -> None:
    missing, there = ask(kafka, "b", "Missing").topics
    assert (ErrorCode.unknown_topic_or_partition, "Missing", ()) == (
        missing.error_code,
        missing.name,
        tuple(missing.partitions),
    )
    assert (ErrorCode.none, "b") == (there.error_code, there.name)


def test_without_names_all_are_told(kafka: Kafka) -> None:
    response = ask(kafka)
    assert (ALL, None) == (found(response), response.next_cursor)


@pytest.mark.parametrize("limit", [-1, 1, 2, 3, 4, 7, 8, 9])
def test_pages_make_up_the_whole(kafka: Kafka, limit: int) -> None:
    pages = []
    cursor = None
    while True:
        response = ask(kafka, limit=limit, cursor=cursor)
        pages.append(found(response))
        if response.next_cursor is None:
            break
        cursor = {
            "topic_name": response.next_cursor.topic_name,
            "partition_index": response.next_cursor.partition_index,
        }
    assert ALL == [one for page in pages for one in page]
    assert all(len(page) == max(1, limit) for page in pages[:-1])


def test_a_cursor_may_stand_where_nothing_is(kafka: Kafka) -> None:
    assert [] == found(ask(kafka, cursor={"topic_name": "z", "partition_index": 0}))
    assert ALL[4:] == found(ask(kafka, cursor={"topic_name": "bb", "partition_index": 9}))
    assert ALL[4:] == found(ask(kafka, cursor={"topic_name": "b", "partition_index": 2**31 - 1}))
    assert ALL[3:] == found(ask(kafka, cursor={"topic_name": "b", "partition_index": -5}))
