"""OffsetFetch over the wire: one group before version 8, any number since."""

from collections.abc import Sequence
from typing import Any

import pytest

from broker.kafka.handlers.offset_fetch import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import commit, new_group
from tests.kafka.handlers.kafka_client import Beside, Kafka, get, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


def fetch(kafka: Kafka, version: int, group: str, *wanted: tuple[str, Sequence[int]], everything: bool = False) -> Any:
    """The group's answer: topics and an error code."""
    topics = None if everything else [{"name": name, "partition_indexes": indexes} for name, indexes in wanted]
    if version < 8:
        return kafka.ask(ApiKey.OFFSET_FETCH, version, group_id=group, topics=topics)
    (answer,) = kafka.ask(ApiKey.OFFSET_FETCH, version, groups=[{"group_id": group, "topics": topics}]).groups
    assert answer.group_id == group
    return answer


def offsets(kafka: Kafka, answer: Any) -> dict[tuple[str | None, int], tuple[int, int, str | None]]:
    assert get(answer, "error_code", ErrorCode.none) == ErrorCode.none
    committed = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            assert partition.error_code == ErrorCode.none
            epoch = get(partition, "committed_leader_epoch", "not told")
            committed[kafka.name_of(topic), partition.partition_index] = (
                partition.committed_offset,
                epoch,
                partition.metadata,
            )
    return committed


@all_versions
def test_committed_offsets_are_returned_and_minus_one_otherwise(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic(partitions=2)
    commit(kafka, group, topic, 7, partition={"committed_leader_epoch": 3, "committed_metadata": "so far"})
    epochs = (3, -1) if version >= 5 else ("not told", "not told")
    other = "nowhere" if version < 10 else kafka.topic()
    assert offsets(kafka, fetch(kafka, version, group, (topic, [0, 1]), (other, [9]))) == {
        (topic, 0): (7, epochs[0], "so far"),
        (topic, 1): (-1, epochs[1], ""),
        (other, 9): (-1, epochs[1], ""),
    }


@all_versions
def test_of_an_unknown_group_nothing_is_committed(kafka: Kafka, version: int) -> None:
    answer = fetch(kafka, version, new_group(), (kafka.topic(), [0]))
    assert [one[0] for one in offsets(kafka, answer).values()] == [-1]


@pytest.mark.parametrize("version", range(2, API.max_version + 1))
def test_null_asks_for_everything(kafka: Kafka, version: int) -> None:
    group, topic, other = new_group(), kafka.topic(partitions=3), kafka.topic()
    commit(kafka, group, topic, 7, 8)
    commit(kafka, group, other, 9)
    committed = offsets(kafka, fetch(kafka, version, group, everything=True))
    assert {key: value[0] for key, value in committed.items()} == {(topic, 0): 7, (topic, 1): 8, (other, 0): 9}
    assert offsets(kafka, fetch(kafka, version, new_group(), everything=True)) == {}


@all_versions
def test_nothing_asks_for_nothing(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic()
    commit(kafka, group, topic, 7)
    assert offsets(kafka, fetch(kafka, version, group)) == {}


def test_version_8_asks_for_several_groups(kafka: Kafka) -> None:
    first, second, topic = new_group(), new_group(), kafka.topic()
    commit(kafka, first, topic, 7)
    commit(kafka, second, topic, 8)
    wanted = [
        {"group_id": second, "topics": [{"name": topic, "partition_indexes": [0]}]},
        {"group_id": first, "topics": None},
    ]
    answer = kafka.ask(ApiKey.OFFSET_FETCH, 8, groups=wanted)
    assert [(group.group_id, [value[0] for value in offsets(kafka, group).values()]) for group in answer.groups] == [
        (second, [8]),
        (first, [7]),
    ]


@all_versions
def test_error_at_a_stop_is_where_versions_allow(version: int) -> None:
    with Kafka() as stopping, Beside(stopping) as kafka:
        stopping.inside.groups.shut_down()
        answer = fetch(kafka, version, "g", ("orders", [0, 1]))
    if version >= 2:
        assert (answer.error_code, answer.topics) == (ErrorCode.coordinator_not_available, ())
    else:
        (topic,) = answer.topics
        assert [partition.error_code for partition in topic.partitions] == [ErrorCode.coordinator_not_available] * 2
