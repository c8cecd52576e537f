"""DeleteRecords: the front of a partition goes."""

from typing import Any

import pytest

from broker.kafka.handlers.delete_records import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


def delete(kafka: Kafka, topic: str, offset: int, partition: int = 0, version: int = API.max_version) -> Any:
    wanted = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
    (answered,) = kafka.ask(ApiKey.DELETE_RECORDS, version, topics=wanted, timeout=5000).topics
    assert topic == answered.name
    (result,) = answered.partitions
    assert partition == result.partition_index
    return result


def start(kafka: Kafka, topic: str) -> int:
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    return log.log_start_offset


@all_versions
def test_everything_before_the_offset_is_gone(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    kafka.fill(topic, *range(10))
    result = delete(kafka, topic, 4, version=version)
    assert (ErrorCode.none, 4) == (result.error_code, result.low_watermark)
    assert start(kafka, topic) == 4


@all_versions
def test_minus_one_is_everything(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    kafka.fill(topic, *range(10))
    result = delete(kafka, topic, -1, version=version)
    assert (ErrorCode.none, 10) == (result.error_code, result.low_watermark)


def test_an_offset_that_is_gone_already_changes_nothing(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.fill(topic, *range(10))
    delete(kafka, topic, 6)
    result = delete(kafka, topic, 2)
    assert (ErrorCode.none, 6) == (result.error_code, result.low_watermark)


@all_versions
@pytest.mark.parametrize("offset", [11, -2])
def test_offset_outside_the_log_is_refused(kafka: Kafka, version: int, offset: int) -> None:
    topic = kafka.topic()
    kafka.fill(topic, *range(10))
    result = delete(kafka, topic, offset, version=version)
    assert (ErrorCode.offset_out_of_range, -1) == (result.error_code, result.low_watermark)
    assert start(kafka, topic) == 0


@all_versions
def test_an_unknown_partition_is_said_to_be_so(kafka: Kafka, version: int) -> None:
    for topic, partition in (("nowhere", 0), (kafka.topic(), 1)):
        result = delete(kafka, topic, 0, partition, version=version)
        assert (ErrorCode.unknown_topic_or_partition, -1) == (result.error_code, result.low_watermark)


def test_compacted_only_topic_keeps_its_records(kafka: Kafka) -> None:
    topic = kafka.topic(cleanup_policy="compact")
    kafka.fill(topic, 1)
    assert delete(kafka, topic, -1).error_code == ErrorCode.policy_violation
    both = kafka.topic(cleanup_policy="compact,delete")
    kafka.fill(both, 1)
    assert delete(kafka, both, -1).error_code == ErrorCode.none


def test_a_partition_whose_disk_failed_says_so(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.take_offline(topic)
    assert delete(kafka, topic, 0).error_code == ErrorCode.kafka_storage_error
