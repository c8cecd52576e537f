"""ConsumerGroupHeartbeat over the wire, in every version."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.handlers.consumer_group_heartbeat import API
from broker.security.acl import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from tests.kafka.handlers.consumer_group_client import Member, ask_join, assignment, describe, heartbeat, id_of, join
from tests.kafka.handlers.group_client import join_fields, new_group, stable
from tests.kafka.handlers.kafka_client import Beside, Kafka, versions
from tests.loops import loop_over
from tests.security.grants import Grants

all_versions = loop_over("version", versions(API))


@pytest.fixture
def grants(kafka: Kafka) -> Iterator[Grants]:
    grants = kafka.inside.authorizer = Grants()  # type: ignore[assignment]
    yield grants
    kafka.inside.authorizer = None


def until_stable(*members: Member) -> list[int]:
    """Heartbeats until everybody has its part, with a generous limit; how many partitions each has."""
    for _ in range(200):
        told = [member.heartbeat(topic_partitions=None).assignment for member in members]
        for member in members:
            member.heartbeat()
        if not any(told) and describe(members[0].kafka, members[0].group)[0].group_state == "Stable":
            return [member.partitions for member in members]
    raise AssertionError("the group does not settle")


@all_versions
def test_members_share_the_partitions(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic(6)
    members = [join(kafka, group, name, [topic], version=version) for name in ("a", "b", "c")]
    assert until_stable(*members) == [2, 2, 2]
    owned = [each for member in members for each in member.owned[id_of(kafka, topic)]]
    assert sorted(owned) == list(range(6))


def test_version_0_member_may_be_given_its_id(kafka: Kafka) -> None:
    group = new_group()
    answer = ask_join(kafka, group, "", [kafka.topic()], version=0)
    assert answer.error_code == ErrorCode.none and len(answer.member_id) == 36
    assert heartbeat(kafka, group, answer.member_id, answer.member_epoch, version=0).error_code == ErrorCode.none
    assert ask_join(kafka, group, "own", [kafka.topic()], version=0).member_id == "own"


def test_since_version_1_members_name_themselves(kafka: Kafka) -> None:
    answer = ask_join(kafka, new_group(), "", [kafka.topic()])
    assert (answer.error_code, answer.error_message) == (ErrorCode.invalid_request, "MemberId can't be empty.")


@all_versions
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rebalance_timeout": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
        ({"member_epoch": -2}, "InstanceId can't be null."),
    ],
)
def test_what_makes_no_sense_is_refused(kafka: Kafka, version: int, how: dict[str, Any], message: str) -> None:
    answer = ask_join(kafka, new_group(), "a", [kafka.topic()], version=version, **how)
    assert (answer.error_code, answer.error_message) == (ErrorCode.invalid_request, message)


@all_versions
def test_an_empty_group_id_is_refused(kafka: Kafka, version: int) -> None:
    answer = ask_join(kafka, "", "a", [kafka.topic()], version=version)
    assert (answer.error_code, answer.error_message) == (ErrorCode.invalid_request, "GroupId can't be empty.")


@all_versions
def test_unknown_assignor_is_refused_naming_the_available_ones(kafka: Kafka, version: int) -> None:
    answer = ask_join(kafka, new_group(), "a", [kafka.topic()], version=version, server_assignor="sticky")
    assert answer.error_code == ErrorCode.unsupported_assignor
    assert "uniform, range" in answer.error_message


@all_versions
def test_epochs_are_checked(kafka: Kafka, version: int) -> None:
    group = new_group()
    member = join(kafka, group, "a", [kafka.topic()], version=version)
    codes = [
        heartbeat(kafka, where, who, epoch, version=version).error_code
        for where, who, epoch in (
            (group, "a", member.epoch),
            (group, "a", member.epoch + 1),
            (group, "b", member.epoch),
            (new_group(), "a", member.epoch),
        )
    ]
    assert codes == [
        ErrorCode.none,
        ErrorCode.fenced_member_epoch,
        ErrorCode.unknown_member_id,
        ErrorCode.group_id_not_found,
    ]


@all_versions
def test_a_member_leaves(kafka: Kafka, version: int) -> None:
    member = join(kafka, new_group(), "a", [kafka.topic()], version=version)
    answer = member.leave(version=version)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (ErrorCode.none, "a", -1)
    assert heartbeat(kafka, member.group, "a", member.epoch, version=version).error_code == ErrorCode.unknown_member_id


@all_versions
def test_returning_static_member_keeps_its_assignment(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic(4)
    member = join(kafka, group, "a", [topic], version=version, instance_id="i")
    assert member.leave(-2, version=version, instance_id="i").member_epoch == -2
    again = join(kafka, group, "b", [topic], version=version, instance_id="i")
    assert again.owned == member.owned
    fenced = heartbeat(kafka, group, "a", member.epoch, version=version, instance_id="i")
    assert fenced.error_code == ErrorCode.fenced_instance_id


def test_a_regular_expression_is_matched(kafka: Kafka) -> None:
    topics = [kafka.topic(2) for _ in range(3)]
    member = join(kafka, new_group(), "a", None, subscribed_topic_regex=f"{topics[0]}|{topics[2]}")
    assert member.owned == {id_of(kafka, topics[0]): [0, 1], id_of(kafka, topics[2]): [0, 1]}


def test_an_expression_that_is_none_is_refused(kafka: Kafka) -> None:
    answer = ask_join(kafka, new_group(), "a", None, subscribed_topic_regex="a(")
    assert answer.error_code == ErrorCode.invalid_regular_expression
    assert "`a(`" in answer.error_message


def test_short_path_answers_as_the_schema_does(kafka: Kafka) -> None:
    """A heartbeat whose member id is too long for the short way, and one that is not."""
    group = new_group()
    topic = kafka.topic()
    answers = []
    for name in ("m" * 10, "m" * 200):
        member = join(kafka, group, name, [topic])
        until_stable(member)
        answer = heartbeat(kafka, group, name, member.epoch)
        answers.append((answer.error_code, answer.member_epoch == member.epoch, answer.member_id == name))
        member.leave()
    assert answers == [(ErrorCode.none, True, True)] * 2


def test_waiting_join_does_not_delay_other_connections(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic(2)
    member = join(kafka, group, "a", [topic])
    with Beside(kafka) as other:
        second = join(other, group, "b", [topic])
        assert until_stable(member, second) == [1, 1]


def test_member_without_topics_joins_with_none(kafka: Kafka) -> None:
    member = join(kafka, new_group(), "a", [])
    assert member.owned == {}


def test_classic_member_in_the_group_rejoins(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic(2)
    fields = join_fields(group, topics=[topic])
    with Beside(kafka) as old:
        first = old.ask(ApiKey.JOIN_GROUP, 3, **fields)
        old.ask(ApiKey.SYNC_GROUP, 3, group_id=group, generation_id=1, member_id=first.member_id)
        join(kafka, group, "new", [topic])
        beat = {"group_id": group, "generation_id": 1, "member_id": first.member_id}
        assert old.ask(ApiKey.HEARTBEAT, 3, **beat).error_code == ErrorCode.rebalance_in_progress
        again = old.ask(ApiKey.JOIN_GROUP, 5, **join_fields(group, first.member_id, topics=[topic]))
        assert again.error_code == ErrorCode.none
        assert again.protocol_name == "range" and not again.members, "the coordinator assigns"


def test_group_of_another_kind_refuses_the_heartbeat(kafka: Kafka) -> None:
    group = new_group()
    stable(kafka, group, protocol_type="connect")
    answer = ask_join(kafka, group, "a", [kafka.topic()])
    assert answer.error_code == ErrorCode.group_id_not_found
    assert "group.protocol" in answer.error_message


# Rights -------------------------------------------------------------------------------------------------------------------


@all_versions
def test_heartbeat_needs_read_and_describe(kafka: Kafka, grants: Grants, version: int) -> None:
    group, topic = new_group(), kafka.topic()
    read = (Operation.READ, ResourceType.GROUP, group)
    with grants.only():
        answer = ask_join(kafka, group, "a", [topic], version=version)
        assert answer.error_code == ErrorCode.group_authorization_failed
        answer = heartbeat(kafka, group, "a", 1, version=version)
        assert answer.error_code == ErrorCode.group_authorization_failed
    with grants.only(read):
        answer = ask_join(kafka, group, "a", [topic], version=version)
        assert answer.error_code == ErrorCode.topic_authorization_failed
        assert heartbeat(kafka, group, "a", 1, version=version).error_code == ErrorCode.group_id_not_found
    with grants.only(read, (Operation.DESCRIBE, ResourceType.TOPIC, topic)):
        assert ask_join(kafka, group, "a", [topic], version=version).error_code == ErrorCode.none


def test_regex_matches_only_describable_topics(kafka: Kafka, grants: Grants) -> None:
    group, topics = new_group(), [kafka.topic() for _ in range(2)]
    rights = [(Operation.READ, ResourceType.GROUP, group), (Operation.DESCRIBE, ResourceType.TOPIC, topics[0])]
    with grants.only(*rights):
        answer = ask_join(kafka, group, "a", None, subscribed_topic_regex="|".join(topics))
    assert assignment(answer) == {id_of(kafka, topics[0]): [0]}


# The feature --------------------------------------------------------------------------------------------------------------


def test_disabled_feature_error_names_the_setting() -> None:
    with Kafka(feature_max_levels={"group.version": 0}) as kafka:
        for answer in (ask_join(kafka, "g", "a", ["t"]), heartbeat(kafka, "g", "a", 3)):
            assert answer.error_code == ErrorCode.unsupported_version
            assert "group.protocol=classic" in answer.error_message
        assert describe(kafka, "g")[0].error_code == ErrorCode.unsupported_version


def test_damaged_request_closes_only_its_connection(kafka: Kafka) -> None:
    request = control.encode_request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 7, "test", {"group_id": "g", "member_id": "m"})
    damaged = request[:-4] + b"\xff\xff\xff\x7f"
    with Beside(kafka) as other, pytest.raises((AssertionError, ConnectionError)):
        other.exchange(damaged)
    assert heartbeat(kafka, new_group(), "a", 3).error_code == ErrorCode.group_id_not_found
