"""ShareGroupHeartbeat over the wire."""

import uuid

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.consumer_group_client import id_of
from tests.kafka.handlers.group_client import new_group, stable
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.handlers.share_members import ShareMember, ask_heartbeat, assigned


def test_join_answer_has_partitions_by_topic_id(kafka: Kafka) -> None:
    topic, member_id = kafka.topic(3), str(uuid.uuid4())
    answer = ask_heartbeat(kafka, new_group(), member_id, 0, [topic])
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (ErrorCode.none, member_id, 1)
    assert answer.heartbeat_interval.total_seconds() == 5
    assert assigned(answer) == {id_of(kafka, topic): [0, 1, 2]}


def test_a_heartbeat_that_changes_nothing_says_nothing(kafka: Kafka) -> None:
    member = ShareMember(kafka, new_group(), kafka.topic()).join()
    answer = member.beat()
    assert (answer.error_code, answer.member_epoch, answer.assignment) == (ErrorCode.none, 1, None)


def test_third_member_shares_a_partition_of_two_members(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic(2)
    members = [ShareMember(kafka, group, topic).join() for _ in range(3)]
    for member in members:
        member.beat()
    partitions = [partition for member in members for partition in member.assigned[id_of(kafka, topic)]]
    assert sorted(partitions) in ([0, 0, 1], [0, 1, 1])


def test_departed_members_partitions_are_read_by_another(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic(2)
    first, second = (ShareMember(kafka, group, topic).join() for _ in range(2))
    answer = first.leave()
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (ErrorCode.none, first.member_id, -1)
    assert first.beat().error_code == ErrorCode.unknown_member_id
    second.beat()
    assert second.assigned == {id_of(kafka, topic): [0, 1]}


def test_another_epoch_is_fenced(kafka: Kafka) -> None:
    member = ShareMember(kafka, new_group(), kafka.topic()).join()
    answer = ask_heartbeat(kafka, member.group, member.member_id, 7)
    assert answer.error_code == ErrorCode.fenced_member_epoch
    assert "Join again" in answer.error_message


@pytest.mark.parametrize("epoch", [1, -1])
def test_only_a_join_makes_a_group(kafka: Kafka, epoch: int) -> None:
    answer = ask_heartbeat(kafka, new_group(), "m", epoch)
    assert answer.error_code == ErrorCode.group_id_not_found


def test_group_id_of_another_kind_is_refused(kafka: Kafka) -> None:
    group = new_group()
    stable(kafka, group)
    assert ask_heartbeat(kafka, group, "m", 0, [kafka.topic()]).error_code == ErrorCode.group_id_not_found


@pytest.mark.parametrize(
    "fields",
    [
        {"member_id": ""},
        {"member_id": "m" * 37},
        {"group_id": " "},
        {"group_id": "g" * 256},
        {"rack_id": ""},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": []},
        {"member_epoch": -2},
    ],
)
def test_what_is_no_heartbeat_is_an_invalid_request(kafka: Kafka, fields: dict[str, object]) -> None:
    usual = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    answer = kafka.ask(ApiKey.SHARE_GROUP_HEARTBEAT, 1, **usual | fields)
    assert answer.error_code == ErrorCode.invalid_request
    assert answer.error_message
