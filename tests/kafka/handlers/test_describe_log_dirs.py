"""DescribeLogDirs: what the partitions take on disk."""

import os
from typing import Any

from broker.kafka.handlers.describe_log_dirs import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


def describe(kafka: Kafka, topics: dict[str, list[int]] | None, version: int = API.max_version) -> Any:
    wanted = None if topics is None else [{"topic": name, "partitions": p} for name, p in topics.items()]
    response = kafka.ask(ApiKey.DESCRIBE_LOG_DIRS, version, topics=wanted)
    if version >= 3:
        assert response.error_code == ErrorCode.none
    (directory,) = response.results
    return directory


def sizes(directory: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }


@all_versions
def test_the_size_is_that_of_the_segment_files(kafka: Kafka, version: int) -> None:
    topic = kafka.topic(partitions=2)
    kafka.fill(topic, 1, 2, 3, partition=1)
    directory = describe(kafka, {topic: [0, 1]}, version)
    assert directory.error_code == ErrorCode.none
    written = os.path.getsize(os.path.join(kafka.broker.data_dir, f"{topic}-1", f"{0:020d}.log"))
    assert written > 0
    assert {(topic, 0): 0, (topic, 1): written} == sizes(directory)
    assert not any(p.is_future_key or p.offset_lag for t in directory.topics for p in t.partitions)


@all_versions
def test_the_directory_is_named_in_full(kafka: Kafka, version: int) -> None:
    assert os.path.abspath(kafka.broker.data_dir) == describe(kafka, {}, version).log_dir


@all_versions
def test_no_list_means_all_topics(kafka: Kafka, version: int) -> None:
    topic = kafka.topic(partitions=3)
    described = sizes(describe(kafka, None, version))
    assert {(topic, 0), (topic, 1), (topic, 2)} <= described.keys()


@all_versions
def test_an_empty_list_means_none(kafka: Kafka, version: int) -> None:
    kafka.topic()
    assert describe(kafka, {}, version).topics == ()


@all_versions
def test_what_is_not_there_is_left_out(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    assert {(topic, 0): 0} == sizes(describe(kafka, {topic: [0, 7], "nowhere": [0]}, version))


def test_a_partition_whose_disk_failed_is_left_out(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    kafka.take_offline(topic, 0)
    assert {(topic, 1): 0} == sizes(describe(kafka, {topic: [0, 1]}))


def test_volume_size_is_the_systems(kafka: Kafka) -> None:
    directory = describe(kafka, None, version=4)
    volume = os.statvfs(kafka.broker.data_dir)
    assert directory.total_bytes == volume.f_frsize * volume.f_blocks
    assert 0 < directory.usable_bytes <= directory.total_bytes
