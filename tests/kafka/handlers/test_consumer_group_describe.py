"""ConsumerGroupDescribe over the wire, in every version."""

from collections.abc import Iterator

import pytest

from broker.kafka.handlers.consumer_group_describe import API
from broker.security.acl import Operation, ResourceType
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.consumer_group_client import describe, id_of, join
from tests.kafka.handlers.group_client import new_group, stable
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over
from tests.security.grants import Grants

all_versions = loop_over("version", versions(API))


@pytest.fixture
def grants(kafka: Kafka) -> Iterator[Grants]:
    grants = kafka.inside.authorizer = Grants()  # type: ignore[assignment]
    yield grants
    kafka.inside.authorizer = None


@all_versions
def test_members_are_described_with_current_and_target_assignments(kafka: Kafka, version: int) -> None:
    group, topic = new_group(), kafka.topic(4)
    first = join(kafka, group, "a", [topic], rack_id="r", server_assignor="range", version=version)
    join(kafka, group, "b", [topic], instance_id="i", version=version)
    (described,) = describe(kafka, group, version=version)
    assert (described.error_code, described.group_id, described.group_state) == (0, group, "Reconciling")
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (2, 2, "range")
    one, other = described.members
    assert (one.member_id, one.rack_id, one.instance_id, one.member_epoch) == ("a", "r", None, first.epoch)
    assert (one.client_id, one.client_host) == ("test", "/127.0.0.1")
    assert (one.subscribed_topic_names, one.subscribed_topic_regex) == ((topic,), None)
    assert other.instance_id == "i"
    (had,), (wanted,) = one.assignment.topic_partitions, one.target_assignment.topic_partitions
    assert (had.topic_id, had.topic_name, len(had.partitions)) == (id_of(kafka, topic), topic, 4)
    assert (wanted.topic_name, len(wanted.partitions)) == (topic, 2)
    assert other.assignment.topic_partitions == ()
    if version >= 1:
        assert one.member_type == 1
    kafka.inside.logs.delete_topic(topic)


@all_versions
def test_group_of_another_kind_is_not_found(kafka: Kafka, version: int) -> None:
    classic = new_group()
    stable(kafka, classic)
    for group in describe(kafka, classic, "nowhere", "", version=version):
        code = ErrorCode.group_id_not_found if group.group_id else ErrorCode.invalid_group_id
        assert (group.error_code, group.members) == (code, ())


def test_repeated_group_is_described_once(kafka: Kafka) -> None:
    assert [group.group_id for group in describe(kafka, "a", "b", "a")] == ["a", "b"]


def test_a_topic_that_was_deleted_is_left_out(kafka: Kafka) -> None:
    group, topic = new_group(), kafka.topic(2)
    join(kafka, group, "a", [topic])
    kafka.inside.logs.delete_topic(topic)
    for _ in range(1000):
        (described,) = describe(kafka, group)
        if not described.members[0].assignment.topic_partitions:
            return
    raise AssertionError("the topic is still shown")


@all_versions
def test_what_the_client_may_not_describe_is_hidden(kafka: Kafka, grants: Grants, version: int) -> None:
    group, topic, other = new_group(), kafka.topic(), kafka.topic()
    join(kafka, group, "a", [topic, "elsewhere"])
    with grants.only((Operation.DESCRIBE, ResourceType.TOPIC, topic)):
        assert describe(kafka, group, version=version)[0].error_code == ErrorCode.group_authorization_failed
    of_group = (Operation.DESCRIBE, ResourceType.GROUP, group)
    with grants.only(of_group, (Operation.DESCRIBE, ResourceType.TOPIC, other)):
        (described,) = describe(kafka, group, version=version)
        assert described.error_code == ErrorCode.topic_authorization_failed
        assert described.members == () and topic not in str(described)
    with grants.only(of_group, (Operation.DESCRIBE, ResourceType.TOPIC, topic)):
        (described,) = describe(kafka, group, version=version, operations=True)
        assert described.members[0].subscribed_topic_names == (topic,)
        assert described.authorized_operations == 1 << Operation.DESCRIBE
