"""Metadata over the wire: what tools ask for besides topics and partitions."""

from collections.abc import Iterator

import pytest

from protocol.kafka.api_keys import ApiKey
from tests.kafka.handlers.kafka_client import Kafka

# 1 << the codes of Kafka's AclOperation.
TOPIC = 0b110111111000  # read, write, create, delete, alter, describe, describe configs, alter configs
CLUSTER = 0b1111110100000
NOT_ASKED = -(2**31)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        yield kafka


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("asked", [(True, True), (False, True), (True, False), (False, False)])
def test_whoever_asks_is_told_what_may_be_done(kafka: Kafka, version: int, asked: tuple[bool, bool]) -> None:
    topic = kafka.topic()
    answer = kafka.ask(
        ApiKey.METADATA,
        version,
        topics=[{"name": topic}, {"name": "nowhere"}],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=asked[0],
        include_topic_authorized_operations=asked[1],
    )
    assert answer.cluster_authorized_operations == (CLUSTER if asked[0] else NOT_ASKED)
    expected = TOPIC if asked[1] else NOT_ASKED
    assert [one.topic_authorized_operations for one in answer.topics] == [expected] * 2
