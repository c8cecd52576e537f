"""OffsetDelete over the wire."""

from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import commit, new_group, stable
from tests.kafka.handlers.kafka_client import Kafka


def delete(kafka: Kafka, group: str, *topics: tuple[str, list[int]]) -> Any:
    wanted = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]} for name, indexes in topics
    ]
    return kafka.ask(ApiKey.OFFSET_DELETE, 0, group_id=group, topics=wanted)


def errors(answer: Any) -> dict[tuple[str, int], ErrorCode]:
    assert answer.error_code == ErrorCode.none
    return {
        (topic.name, partition.partition_index): partition.error_code
        for topic in answer.topics
        for partition in topic.partitions
    }


def left(kafka: Kafka, group: str) -> set[tuple[str, int]]:
    return {(row.topic, row.partition) for row in kafka.inside.catalogue.load_offsets() if row.group == group}


def test_offset_is_gone_when_the_answer_says_so(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic(partitions=2)
    commit(kafka, group, topic, 7, 8)
    assert errors(delete(kafka, group, (topic, [0]))) == {(topic, 0): ErrorCode.none}
    assert left(kafka, group) == {(topic, 1)}


def test_an_unknown_partition_is_refused_by_itself(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic()
    commit(kafka, group, topic, 7)
    assert errors(delete(kafka, group, (topic, [0, 1]), ("nowhere", [0]))) == {
        (topic, 0): ErrorCode.none,
        (topic, 1): ErrorCode.unknown_topic_or_partition,
        ("nowhere", 0): ErrorCode.unknown_topic_or_partition,
    }


def test_what_members_read_is_not_deleted(kafka: Kafka) -> None:
    group, read, unread = new_group(), kafka.topic(), kafka.topic()
    member_id = stable(kafka, group, topics=[read])
    for topic in (read, unread):
        commit(kafka, group, topic, 7, member_id=member_id, generation_id_or_member_epoch=1)
    assert errors(delete(kafka, group, (read, [0]), (unread, [0]))) == {
        (read, 0): ErrorCode.group_subscribed_to_topic,
        (unread, 0): ErrorCode.none,
    }
    assert left(kafka, group) == {(read, 0)}


def test_unavailable_group_is_refused_as_a_whole(kafka: Kafka) -> None:
    topic, busy = kafka.topic(), new_group()
    stable(kafka, busy, protocol_type="connect")
    for group, error in [
        (new_group(), ErrorCode.group_id_not_found),
        (busy, ErrorCode.non_empty_group),
        ("", ErrorCode.invalid_group_id),
    ]:
        answer = delete(kafka, group, (topic, [0]))
        assert (answer.error_code, answer.topics) == (error, ())
