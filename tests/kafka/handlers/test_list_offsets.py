"""ListOffsets: the ends of a partition, and offsets by time."""

from typing import Any

import pytest

from broker.kafka.handlers import list_offsets
from broker.kafka.handlers.list_offsets import (
    API,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST_TIERED,
    SINCE_VERSION,
)
from broker.network.work import INSPECTION
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from tests.kafka.handlers.kafka_client import Beside, Kafka, get, versions
from tests.loops import loop_over
from tests.waiting import wait_for

all_versions = loop_over("version", versions(API))
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


def ask(
    kafka: Kafka,
    topic: str,
    timestamp: int,
    *,
    partition: int = 0,
    version: int = API.max_version,
    epoch: int = -1,
    isolation_level: int = 0,
) -> Any:
    wanted = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": epoch}
    (answered,) = kafka.ask(
        ApiKey.LIST_OFFSETS,
        version,
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[{"name": topic, "partitions": [wanted]}],
    ).topics
    assert topic == answered.name
    (result,) = answered.partitions
    assert partition == result.partition_index
    return result


def found(result: Any) -> tuple[int, int]:
    """(offset, timestamp), of an answer without error."""
    assert result.error_code == ErrorCode.none
    return result.offset, result.timestamp


@all_versions
@pytest.mark.parametrize("isolation_level", [0, 1])
def test_the_ends_of_a_partition(kafka: Kafka, version: int, isolation_level: int) -> None:
    topic = kafka.topic()
    kafka.fill(topic, *range(1000, 1010))
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    log.trimming.delete_records(3)
    latest = ask(kafka, topic, LATEST, version=version, isolation_level=isolation_level)
    earliest = ask(kafka, topic, EARLIEST, version=version, isolation_level=isolation_level)
    assert ((10, -1), (3, -1)) == (found(latest), found(earliest))
    assert get(latest, "leader_epoch", 0) == log.leader_epoch


@all_versions
def test_an_empty_partition_begins_and_ends_at_zero(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    assert found(ask(kafka, topic, EARLIEST, version=version)) == (0, -1)
    assert found(ask(kafka, topic, LATEST, version=version)) == (0, -1)


@all_versions
@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [(0, (0, 1000)), (1000, (0, 1000)), (1001, (1, 2000)), (2000, (1, 2000)), (3000, (2, 3000)), (3001, (-1, -1))],
)
def test_the_first_record_at_or_after_a_time(
    kafka: Kafka, version: int, timestamp: int, expected: tuple[int, int]
) -> None:
    topic = kafka.topic()
    kafka.fill(topic, 1000, 2000, 3000)
    result = ask(kafka, topic, timestamp, version=version)
    assert expected == found(result)
    assert get(result, "leader_epoch", -1) == (-1 if expected[0] < 0 or version < 4 else 0)


def test_the_largest_timestamp_is_found_wherever_it_is(kafka: Kafka) -> None:
    topic = kafka.topic()
    assert found(ask(kafka, topic, MAX_TIMESTAMP)) == (-1, -1)
    kafka.fill(topic, 1000, 5000, 2000)
    assert found(ask(kafka, topic, MAX_TIMESTAMP)) == (1, 5000)


@all_versions
@pytest.mark.parametrize("special", [-3, -4, -5, -6])
def test_special_time_of_a_later_version_is_refused(kafka: Kafka, version: int, special: int) -> None:
    topic = kafka.topic()
    kafka.fill(topic, 1000)
    result = ask(kafka, topic, special, version=version)
    if special == MAX_TIMESTAMP and version >= 7:
        assert found(result) == (0, 1000)
    elif version >= SINCE_VERSION[special]:
        assert result.error_code == ErrorCode.none
    else:
        assert (ErrorCode.unsupported_version, -1, -1) == (result.error_code, result.offset, result.timestamp)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", range(8, API.max_version + 1))
def test_without_tiers_everything_is_local(kafka: Kafka, version: int, isolation_level: int) -> None:
    topic = kafka.topic()
    for end in range(3):
        kafka.fill(topic, 1000)
        log = kafka.inside.logs.get(topic, 0)
        assert log is not None
        log.trimming.delete_records(end)
        local = ask(kafka, topic, EARLIEST_LOCAL, version=version, isolation_level=isolation_level)
        assert (local.error_code, *found(local), local.leader_epoch) == (ErrorCode.none, end, -1, 0)
        for special in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            if version >= SINCE_VERSION[special]:
                other = ask(kafka, topic, special, version=version, isolation_level=isolation_level)
                assert (other.error_code, *found(other), other.leader_epoch) == (ErrorCode.none, -1, -1, -1)


@all_versions
def test_an_unknown_partition_is_said_to_be_so(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    for name, partition in ((topic, 1), (topic, -1), ("nowhere", 0)):
        result = ask(kafka, name, LATEST, partition=partition, version=version)
        assert result.error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", range(4, API.max_version + 1))
def test_leader_epoch_of_the_client_is_checked(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    log.set_leader_epochs([(3, 0)])
    errors = [ask(kafka, topic, LATEST, version=version, epoch=epoch).error_code for epoch in (-1, 2, 3, 4)]
    assert [
        ErrorCode.none,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.none,
        ErrorCode.unknown_leader_epoch,
    ] == errors


@all_versions
def test_a_partition_whose_disk_failed_says_so(kafka: Kafka, version: int) -> None:
    topic = kafka.topic()
    kafka.take_offline(topic)
    assert ask(kafka, topic, LATEST, version=version).error_code == ErrorCode.kafka_storage_error


def test_a_partition_named_twice_is_refused_both_times(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    wanted = [{"partition_index": index, "timestamp": LATEST} for index in (0, 0, 1)]
    (answered,) = kafka.ask(
        ApiKey.LIST_OFFSETS, 7, replica_id=-1, topics=[{"name": topic, "partitions": wanted}]
    ).topics
    assert [ErrorCode.invalid_request, ErrorCode.invalid_request, ErrorCode.none] == [
        result.error_code for result in answered.partitions
    ]


def test_requests_by_time_take_turns(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many partitions, each of which may take long, does not keep those behind it waiting until its end."""
    wide, narrow = kafka.topic(5), kafka.topic()
    for partition in range(5):
        kafka.fill(wide, 1000 + partition, partition=partition)
    channel = kafka.broker.server.sockets.planes[0].channel
    order: list[tuple[str, int]] = []
    answer = list_offsets._answer

    def noted(context: Any, version: int, topic: str, wanted: Any, *rest: Any) -> Any:
        if not order:  # the other request comes while this one has its turn
            wait_for(lambda: channel.in_lanes().get(INSPECTION) == 2)
        order.append((topic, wanted.partition_index))
        return answer(context, version, topic, wanted, *rest)

    monkeypatch.setattr(list_offsets, "_answer", noted)
    monkeypatch.setattr(list_offsets, "_TURN_S", 0)

    def request(topic: str, partitions: int) -> bytes:
        wanted = [{"partition_index": number, "timestamp": 0} for number in range(partitions)]
        fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": wanted}]}
        return control.encode_request(ApiKey.LIST_OFFSETS, 7, 7, "x", fields)

    with Beside(kafka) as first, Beside(kafka) as second:
        first.send(request(wide, 5))
        wait_for(lambda: channel.in_lanes().get(INSPECTION) == 1)
        second.send(request(narrow, 1))
        (topic,) = control.parse_response(ApiKey.LIST_OFFSETS, 7, first.frame())[1].topics
        second.frame()
    assert [(0, 1000 + number) for number in range(5)] == [found(one) for one in topic.partitions]
    assert order == [(wide, 0), (narrow, 0), *((wide, number) for number in range(1, 5))]


def test_offsets_of_tiers() -> None:
    """-4: the first on the local disk; -5: the last in the object store; -6: the first that is not there yet."""
    settings = {
        "log_segment_bytes": 300,
        "log_local_retention_bytes": 0,
        "log_flush_offset_checkpoint_interval_ms": 20,
        "remote_log_manager_task_interval_ms": 20,
    }
    with Kafka(objects="memory://", **settings) as kafka:
        topic, empty = kafka.topic(), kafka.topic()
        kafka.fill(topic, *range(1000, 1020))
        log = kafka.inside.logs.get(topic, 0)
        assert log is not None
        last = log.view.bases[-1]
        assert last > 5
        wait_for(lambda: ask(kafka, topic, EARLIEST_LOCAL).offset == last)
        assert (last - 1, -1) == found(ask(kafka, topic, LATEST_TIERED))
        assert (last, -1) == found(ask(kafka, topic, EARLIEST_PENDING_UPLOAD))
        assert (0, -1) == found(ask(kafka, topic, EARLIEST))
        assert (3, 1003) == found(ask(kafka, topic, 1003))
        assert (19, 1019) == found(ask(kafka, topic, MAX_TIMESTAMP))
        assert (-1, -1) == found(ask(kafka, empty, LATEST_TIERED))
        assert (0, -1) == found(ask(kafka, empty, EARLIEST_PENDING_UPLOAD))
        assert (0, -1) == found(ask(kafka, empty, EARLIEST_LOCAL))
