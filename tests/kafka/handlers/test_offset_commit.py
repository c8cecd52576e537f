"""OffsetCommit over the wire, in every version."""

from collections.abc import Iterator

import pytest

from broker.kafka.handlers.offset_commit import API
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import ask_join, commit, join, new_group, stable
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(offset_metadata_max_bytes=10) as kafka:
        yield kafka


def stored(kafka: Kafka, group: str) -> list[tuple[str, int, int, int, str | None]]:
    return sorted(row[1:6] for row in kafka.inside.catalogue.load_offsets() if row.group == group)


@all_versions
def test_commit_is_in_the_catalogue_when_answered(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic(partitions=2)
    given = {"committed_leader_epoch": 4, "committed_metadata": "so far"}
    assert commit(kafka, group, topic, 7, 2**62, version=version, partition=given) == [ErrorCode.none] * 2
    epoch = 4 if version >= 6 else -1
    assert stored(kafka, group) == [(topic, 0, 7, epoch, "so far"), (topic, 1, 2**62, epoch, "so far")]


@all_versions
def test_no_metadata_is_empty_metadata(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic()
    commit(kafka, group, topic, 7, version=version, partition={"committed_metadata": None})
    assert stored(kafka, group) == [(topic, 0, 7, -1, "")]


@all_versions
def test_each_partition_has_its_own_error(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic(partitions=1)
    assert commit(kafka, group, topic, 1, 2, version=version) == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    nowhere = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    assert commit(kafka, group, "nowhere", 1, version=version) == [nowhere]
    long = {"committed_metadata": "12345678901"}
    assert commit(kafka, group, topic, 1, version=version, partition=long) == [ErrorCode.offset_metadata_too_large]


@all_versions
def test_a_member_commits_in_its_generation(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic()
    member_id = stable(kafka, group)

    def error_for(member_id: str, generation: int) -> ErrorCode:
        (error,) = commit(
            kafka, group, topic, 1, version=version, member_id=member_id, generation_id_or_member_epoch=generation
        )
        return ErrorCode(error)

    assert error_for(member_id, 1) == ErrorCode.none
    assert error_for(member_id, 2) == ErrorCode.illegal_generation
    assert error_for("who-1", 1) == ErrorCode.unknown_member_id
    assert error_for("", -1) == ErrorCode.unknown_member_id


def test_commit_for_missing_partitions_makes_no_group(kafka: Kafka) -> None:
    group = new_group()
    commit(kafka, group, "nowhere", 1)
    assert group not in {one.group_id for one in kafka.inside.groups.list()[1]}


def test_unsynced_member_does_not_commit(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic()
    member_id = join(kafka, group).member_id
    answer = commit(kafka, group, topic, 1, member_id=member_id, generation_id_or_member_epoch=1)
    assert answer == [ErrorCode.rebalance_in_progress]


@pytest.mark.parametrize("version", range(7, API.max_version + 1))
def test_a_static_member_is_fenced_by_its_successor(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic()
    old = stable(kafka, group, group_instance_id="pod-0")
    ask_join(kafka, group, group_instance_id="pod-0")
    answer = commit(
        kafka,
        group,
        topic,
        1,
        version=version,
        member_id=old,
        generation_id_or_member_epoch=1,
        group_instance_id="pod-0",
    )
    assert answer == [ErrorCode.fenced_instance_id]


@pytest.mark.parametrize("version", range(API.min_version, 5))
def test_old_client_may_set_the_retention_of_offsets(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic(partitions=2)
    commit(kafka, group, topic, 7, version=version, retention_time=0)
    kafka.inside.groups.expiration.sweep()
    assert kafka.inside.groups.offsets.fetch(group, None) == (ErrorCode.none, [])
    commit(kafka, group, topic, 7, version=version, retention_time=-1)
    kafka.inside.groups.expiration.sweep()
    assert kafka.inside.groups.offsets.fetch(group, None)[1] != []


def test_long_request_is_answered_by_a_handler(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic(partitions=2)
    assert (
        commit(kafka, group, topic, *range(5_000))
        == [ErrorCode.none] * 2 + [ErrorCode.unknown_topic_or_partition] * 4_998
    )


def test_offsets_go_with_their_topic(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic()
    commit(kafka, group, topic, 7)
    kafka.inside.logs.delete_topic(topic)
    assert kafka.inside.groups.offsets.fetch(group, None) == (ErrorCode.none, [])
