"""ShareGroupDescribe over the wire."""

from broker.security.acl import Operation, ResourceType
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import new_group
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.handlers.share_members import ShareMember, ask_heartbeat, describe
from tests.security.grants import Grants


def test_group_is_described_with_members_and_assignments(kafka: Kafka) -> None:
    topic, group = kafka.topic(2), new_group()
    member = ShareMember(kafka, group, topic, "not-there-yet").join()
    (described,) = describe(kafka, group, authorized_operations=True)
    assert (described.error_code, described.group_id, described.group_state) == (ErrorCode.none, group, "Stable")
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (1, 1, "simple")
    assert described.authorized_operations > 0
    (shown,) = described.members
    assert (shown.member_id, shown.member_epoch, shown.client_id) == (member.member_id, 1, "test")
    assert shown.client_host == "/127.0.0.1"
    assert list(shown.subscribed_topic_names) == sorted([topic, "not-there-yet"])
    (assigned,) = shown.assignment.topic_partitions
    assert (assigned.topic_name, list(assigned.partitions)) == (topic, [0, 1])


def test_a_rack_is_shown(kafka: Kafka) -> None:
    group = new_group()
    ask_heartbeat(kafka, group, "m", 0, [kafka.topic()], rack_id="a-rack")
    assert describe(kafka, group)[0].members[0].rack_id == "a-rack"


def test_silent_member_is_shown_with_its_old_epoch(kafka: Kafka) -> None:
    topic, group = kafka.topic(2), new_group()
    first, second = (ShareMember(kafka, group, topic).join() for _ in range(2))
    (described,) = describe(kafka, group)
    assert {member.member_id: member.member_epoch for member in described.members} == {
        first.member_id: 1,
        second.member_id: 2,
    }


def test_an_empty_group_is_shown_without_members(kafka: Kafka) -> None:
    group = new_group()
    ShareMember(kafka, group, kafka.topic()).join().leave()
    (described,) = describe(kafka, group)
    assert (described.error_code, described.group_state, list(described.members)) == (ErrorCode.none, "Empty", [])


def test_missing_group_is_an_error(kafka: Kafka) -> None:
    group = new_group()
    (described,) = describe(kafka, group, group)
    assert described.error_code == ErrorCode.group_id_not_found
    assert group in described.error_message


def test_what_the_client_may_not_describe_is_hidden(kafka: Kafka) -> None:
    """Also a topic that nobody reads yet."""
    group, topic = new_group(), kafka.topic()
    ShareMember(kafka, group, topic, "elsewhere").join()
    grants = kafka.inside.authorizer = Grants()  # type: ignore[assignment]
    of_group = (Operation.DESCRIBE, ResourceType.GROUP, group)
    try:
        with grants.only(of_group, (Operation.DESCRIBE, ResourceType.TOPIC, "elsewhere")):
            (described,) = describe(kafka, group)
            assert described.error_code == ErrorCode.topic_authorization_failed
            assert described.members == () and topic not in str(described)
        with grants.only(of_group, (Operation.DESCRIBE, ResourceType.TOPIC, topic)):
            (described,) = describe(kafka, group)
            assert described.members[0].subscribed_topic_names == (topic,)
    finally:
        kafka.inside.authorizer = None
