"""DescribeGroups over the wire, in every version."""

import pytest

from broker.kafka.handlers.describe_groups import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers import consumer_group_client
from tests.kafka.handlers.group_client import commit, join, new_group, stable
from tests.kafka.handlers.kafka_client import Kafka, get, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@all_versions
def test_a_stable_group_is_shown_with_its_members(kafka: Kafka, version: int) -> None:
    group = new_group()
    member_id = stable(kafka, group, group_instance_id="pod-0")
    (shown,) = kafka.ask(ApiKey.DESCRIBE_GROUPS, version, groups=[group], include_authorized_operations=False).groups
    assert (shown.error_code, shown.group_id, shown.group_state) == (ErrorCode.none, group, "Stable")
    assert (shown.protocol_type, shown.protocol_data) == ("consumer", "range")
    (member,) = shown.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "test", "/127.0.0.1")
    assert b"orders" in member.member_metadata
    assert member.member_assignment == b"all"
    assert get(member, "group_instance_id", "pod-0") == "pod-0"
    assert get(shown, "authorized_operations", -(2**31)) == -(2**31)


@all_versions
def test_states_are_told_by_kafkas_names(kafka: Kafka, version: int) -> None:
    completing, offsets_only, nowhere = new_group(), new_group(), new_group()
    join(kafka, completing)
    commit(kafka, offsets_only, kafka.topic(), 7)
    shown = kafka.ask(
        ApiKey.DESCRIBE_GROUPS,
        version,
        groups=[completing, nowhere, offsets_only],
        include_authorized_operations=False,
    ).groups
    assert [(one.group_id, one.error_code, one.group_state, one.protocol_type, one.protocol_data) for one in shown] == [
        (completing, ErrorCode.none, "CompletingRebalance", "consumer", ""),
        (nowhere, ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none, "Dead", "", ""),
        (offsets_only, ErrorCode.none, "Empty", "", ""),
    ]


@all_versions
def test_a_group_of_another_kind_is_dead(kafka: Kafka, version: int) -> None:
    group = new_group()
    consumer_group_client.join(kafka, group, "a", [kafka.topic()])
    fields = {"groups": [group], "include_authorized_operations": False}
    (shown,) = kafka.ask(ApiKey.DESCRIBE_GROUPS, version, **fields).groups
    assert (shown.group_state, shown.members) == ("Dead", ())
    if version >= 6:
        assert shown.error_code == ErrorCode.group_id_not_found
        assert shown.error_message == f"Group {group} is not a classic group."


@pytest.mark.parametrize("version", range(3, API.max_version + 1))
def test_authorized_operations_are_those_of_the_client(kafka: Kafka, version: int) -> None:
    (shown,) = kafka.ask(ApiKey.DESCRIBE_GROUPS, version, groups=["g"], include_authorized_operations=True).groups
    read, delete, describe = 1 << 3, 1 << 6, 1 << 8
    describe_configs, alter_configs = 1 << 10, 1 << 11
    assert shown.authorized_operations == read | delete | describe | describe_configs | alter_configs
