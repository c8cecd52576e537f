"""OffsetForLeaderEpoch: how a consumer finds out that its log was cut under it."""

from typing import Any

from broker.kafka.handlers.offset_for_leader_epoch import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


def ask(kafka: Kafka, topic: str, epoch: int, version: int, current: int = -1, partition: int = 0) -> Any:
    wanted = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    (answered,) = kafka.ask(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=[{"topic": topic, "partitions": [wanted]}]
    ).topics
    assert topic == answered.topic
    (result,) = answered.partitions
    assert partition == result.partition
    return result


@all_versions
def test_present_epoch_ends_at_the_log_end(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    kafka.fill(topic, 1, 2, 3)
    result = ask(kafka, topic, 0, version)
    assert (ErrorCode.none, 0, 3) == (result.error_code, result.leader_epoch, result.end_offset)


@all_versions
def test_future_epoch_has_no_end(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    kafka.fill(topic, 1)
    result = ask(kafka, topic, 9, version)
    assert (ErrorCode.none, -1, -1) == (result.error_code, result.leader_epoch, result.end_offset)


@all_versions
def test_leader_epoch_of_the_client_is_checked(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    log.set_leader_epochs([(3, 0)])
    errors = [ask(kafka, topic, 3, version, current=current).error_code for current in (-1, 2, 3, 4)]
    assert [
        ErrorCode.none,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.none,
        ErrorCode.unknown_leader_epoch,
    ] == errors
    assert ask(kafka, topic, 3, version, current=2).end_offset == -1


@all_versions
def test_an_unknown_partition_is_said_to_be_so(kafka: Kafka, version: int) -> None:
    for topic, partition in (("nowhere", 0), (kafka.topic(), 1)):
        result = ask(kafka, topic, 0, version, partition=partition)
        assert (ErrorCode.unknown_topic_or_partition, -1) == (result.error_code, result.end_offset)


@all_versions
def test_a_partition_whose_disk_failed_says_so(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    kafka.take_offline(topic)
    assert ask(kafka, topic, 0, version).error_code == ErrorCode.kafka_storage_error
