"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets over the wire, and DeleteGroups of share groups.

Tests of broker/kafka/handlers/describe_share_group_offsets.py, alter_share_group_offsets.py and delete_share_group_offsets.py.
"""

from typing import Any

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import new_group, stable
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.handlers.share_members import ShareMember, describe

NONE = ErrorCode.none


def filled(kafka: Kafka, records: int, partitions: int = 1) -> str:
    topic = kafka.topic(partitions)
    kafka.fill(topic, *range(1, records + 1))
    return topic


def offsets(kafka: Kafka, group: str, topics: Any = None, version: int = 1) -> dict[tuple[str, int], Any]:
    """What is answered for each partition."""
    asked = None if topics is None else [{"topic_name": name, "partitions": some} for name, some in topics.items()]
    answer = kafka.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version, groups=[{"group_id": group, "topics": asked}])
    (described,) = answer.groups
    assert (described.group_id, described.error_code) == (group, NONE)
    return {
        (topic.topic_name, partition.partition_index): partition
        for topic in described.topics
        for partition in topic.partitions
    }


def starts(kafka: Kafka, group: str) -> dict[tuple[str, int], tuple[int, int]]:
    return {key: (one.start_offset, one.lag) for key, one in offsets(kafka, group).items()}


def alter(kafka: Kafka, group: str, topic: str, **starts: int) -> Any:
    partitions = [{"partition_index": int(name[1:]), "start_offset": offset} for name, offset in starts.items()]
    return kafka.ask(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        0,
        group_id=group,
        topics=[{"topic_name": topic, "partitions": partitions}],
    )


def errors(answer: Any) -> dict[int, ErrorCode]:
    assert answer.error_code == NONE
    return {
        partition.partition_index: partition.error_code for topic in answer.responses for partition in topic.partitions
    }


def delete(kafka: Kafka, group: str, *topics: str) -> Any:
    return kafka.ask(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, group_id=group, topics=[{"topic_name": topic} for topic in topics]
    )


def left(kafka: Kafka, *topics: str) -> str:
    """A group whose only member has left."""
    group = new_group()
    ShareMember(kafka, group, *topics).join().leave()
    return group


# Describe -----------------------------------------------------------------------------------------------------------


def test_group_begins_at_the_end_at_first_join(kafka: Kafka) -> None:
    topic = filled(kafka, 5, partitions=2)
    group = left(kafka, topic)
    assert starts(kafka, group) == {(topic, 0): (5, 0), (topic, 1): (0, 0)}
    kafka.fill(topic, 6, 7)
    assert starts(kafka, group) == {(topic, 0): (5, 2), (topic, 1): (0, 0)}


def test_where_a_group_begins_can_be_set(kafka: Kafka) -> None:
    topic, group = filled(kafka, 5), new_group()
    kafka.inside.groups.configs.alter(group, lambda own, usual: {"share.auto.offset.reset": "earliest"})
    ShareMember(kafka, group, topic).join()
    assert starts(kafka, group) == {(topic, 0): (0, 5)}


def test_records_between_join_and_first_fetch_are_delivered(kafka: Kafka) -> None:
    topic, group = kafka.topic(), new_group()
    ShareMember(kafka, group, topic).join()
    kafka.fill(topic, 1)
    assert starts(kafka, group) == {(topic, 0): (0, 1)}


@pytest.mark.parametrize("version", [0, 1])
def test_untouched_partitions_have_no_offset(kafka: Kafka, version: int) -> None:
    known, other = kafka.topic(), kafka.topic()
    group = left(kafka, known)
    answers = offsets(kafka, group, {known: [0, 7], other: [0], "no-such-topic": [0]}, version)
    assert {key: (one.start_offset, one.error_code) for key, one in answers.items()} == {
        (known, 0): (0, NONE),
        (known, 7): (-1, NONE),
        (other, 0): (-1, NONE),
        ("no-such-topic", 0): (-1, NONE),
    }


def test_missing_group_has_no_offsets(kafka: Kafka) -> None:
    assert offsets(kafka, new_group()) == {}


# Alter --------------------------------------------------------------------------------------------------------------


def test_altered_offset_is_where_the_group_begins(kafka: Kafka) -> None:
    topic = filled(kafka, 5)
    group = left(kafka, topic)
    assert errors(alter(kafka, group, topic, p0=2)) == {0: NONE}
    assert starts(kafka, group) == {(topic, 0): (2, 3)}


def test_setting_an_offset_makes_the_group(kafka: Kafka) -> None:
    topic, group = filled(kafka, 5), new_group()
    assert errors(alter(kafka, group, topic, p0=3)) == {0: NONE}
    (described,) = describe(kafka, group)
    assert (described.error_code, described.group_state, described.group_epoch) == (NONE, "Empty", 1)
    member = ShareMember(kafka, group, topic).join()
    assert member.epoch == 2
    assert starts(kafka, group) == {(topic, 0): (3, 2)}


def test_group_unable_to_fetch_is_not_made(kafka: Kafka) -> None:
    group = "g" * 256
    assert alter(kafka, group, filled(kafka, 10), p0=4).error_code == ErrorCode.invalid_request
    assert kafka.inside.groups.type_of(group) is None


def test_an_offset_beyond_the_log_becomes_its_end(kafka: Kafka) -> None:
    topic, group = filled(kafka, 5, partitions=2), new_group()
    assert errors(alter(kafka, group, topic, p0=99, p1=-5)) == {0: NONE, 1: NONE}
    assert starts(kafka, group) == {(topic, 0): (5, 0), (topic, 1): (0, 0)}


def test_missing_partitions_are_refused_and_make_no_group(kafka: Kafka) -> None:
    group = new_group()
    answer = alter(kafka, group, kafka.topic(), p1=0)
    assert errors(answer) == {1: ErrorCode.unknown_topic_or_partition}
    assert errors(alter(kafka, group, "no-such-topic", p0=0)) == {0: ErrorCode.unknown_topic_or_partition}
    assert describe(kafka, group)[0].error_code == ErrorCode.group_id_not_found


def test_a_group_with_members_is_left_alone(kafka: Kafka) -> None:
    topic, group = filled(kafka, 5), new_group()
    ShareMember(kafka, group, topic).join()
    for answer in (alter(kafka, group, topic, p0=0), delete(kafka, group, topic)):
        assert answer.error_code == ErrorCode.non_empty_group
        assert answer.error_message == "Stop the members of the group first."
    assert starts(kafka, group) == {(topic, 0): (5, 0)}


def test_groups_of_other_protocols_are_not_found(kafka: Kafka) -> None:
    topic, group = kafka.topic(), new_group()
    stable(kafka, group)
    assert alter(kafka, group, topic, p0=0).error_code == ErrorCode.group_id_not_found
    assert delete(kafka, group, topic).error_code == ErrorCode.group_id_not_found
    assert describe(kafka, group)[0].error_code == ErrorCode.group_id_not_found


# Delete -------------------------------------------------------------------------------------------------------------


def test_forgotten_topic_begins_anew(kafka: Kafka) -> None:
    topic, other = filled(kafka, 5), filled(kafka, 3)
    group = left(kafka, topic, other)
    kafka.fill(topic, 6)
    (response,) = delete(kafka, group, topic).responses
    assert (response.topic_name, response.error_code) == (topic, NONE)
    assert starts(kafka, group) == {(other, 0): (3, 0)}
    ShareMember(kafka, group, topic).join()
    assert starts(kafka, group) == {(topic, 0): (6, 0), (other, 0): (3, 0)}


def test_topics_without_offsets_are_named(kafka: Kafka) -> None:
    known, other = kafka.topic(), kafka.topic()
    group = left(kafka, known)
    answer = delete(kafka, group, other, "no-such-topic", known)
    assert {response.topic_name: response.error_code for response in answer.responses} == {
        other: ErrorCode.unknown_topic_or_partition,
        "no-such-topic": ErrorCode.unknown_topic_or_partition,
        known: NONE,
    }


def test_deleted_group_is_forgotten_completely(kafka: Kafka) -> None:
    topic = filled(kafka, 5)
    group = left(kafka, topic)
    answer = kafka.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group])
    assert [result.error_code for result in answer.results] == [NONE]
    assert describe(kafka, group)[0].error_code == ErrorCode.group_id_not_found
    assert offsets(kafka, group) == {}
    kafka.fill(topic, 6)
    member = ShareMember(kafka, group, topic).join()
    assert member.epoch == 1
    assert starts(kafka, group) == {(topic, 0): (6, 0)}


def test_a_group_with_members_is_not_deleted(kafka: Kafka) -> None:
    group = new_group()
    ShareMember(kafka, group, kafka.topic()).join()
    answer = kafka.ask(ApiKey.DELETE_GROUPS, 2, groups_names=[group])
    assert [result.error_code for result in answer.results] == [ErrorCode.non_empty_group]


def test_deleted_topic_is_forgotten_by_all_groups(kafka: Kafka) -> None:
    topic = filled(kafka, 5)
    group, member_group = left(kafka, topic), new_group()
    member = ShareMember(kafka, member_group, topic).join()
    kafka.inside.logs.delete_topic(topic)
    assert offsets(kafka, group) == {}
    kafka.inside.logs.create_topic(topic, 1)
    info = kafka.inside.logs.topic(topic)
    assert info is not None
    while member.assigned != {info.topic_id: [0]}:
        member.beat()
    assert starts(kafka, member_group) == {(topic, 0): (0, 0)}


# List ---------------------------------------------------------------------------------------------------------------


def test_share_groups_are_listed_with_their_type(kafka: Kafka) -> None:
    group = left(kafka, kafka.topic())
    answer = kafka.ask(ApiKey.LIST_GROUPS, 5, states_filter=["empty"], types_filter=["Share"])
    groups = {one.group_id: one for one in answer.groups}
    assert (groups[group].protocol_type, groups[group].group_state, groups[group].group_type) == (
        "share",
        "Empty",
        "share",
    )
    assert all(one.group_type == "share" for one in answer.groups)
