"""Heartbeat over the wire, in every version."""

import pytest

from broker.kafka.handlers.heartbeat import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import ask_join, heartbeat, join, join_fields, new_group, stable
from tests.kafka.handlers.kafka_client import Beside, Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@all_versions
def test_a_member_of_the_generation_is_welcome(kafka: Kafka, version: int) -> None:
    group = new_group()
    member_id = stable(kafka, group)
    assert heartbeat(kafka, group, member_id, 1, version=version) == ErrorCode.none
    assert heartbeat(kafka, group, member_id, 2, version=version) == ErrorCode.illegal_generation
    assert heartbeat(kafka, group, "who-1", 1, version=version) == ErrorCode.unknown_member_id
    assert heartbeat(kafka, new_group(), member_id, 1, version=version) == ErrorCode.unknown_member_id
    assert heartbeat(kafka, "", member_id, 1, version=version) == ErrorCode.invalid_group_id


@all_versions
def test_a_member_learns_of_a_rebalance(kafka: Kafka, version: int) -> None:
    group = new_group()
    member_id = stable(kafka, group)
    with Beside(kafka) as newcomer:
        newcomer.tell(ApiKey.JOIN_GROUP, 3, **join_fields(group))  # parked until the member joins again
        while (error := heartbeat(kafka, group, member_id, 1, version=version)) == ErrorCode.none:
            pass
        assert error == ErrorCode.rebalance_in_progress


@pytest.mark.parametrize("version", range(3, API.max_version + 1))
def test_a_static_member_is_fenced_by_its_successor(kafka: Kafka, version: int) -> None:
    group = new_group()
    old = join(kafka, group, group_instance_id="pod-0").member_id
    ask_join(kafka, group, group_instance_id="pod-0")
    assert heartbeat(kafka, group, old, 1, version=version, group_instance_id="pod-0") == ErrorCode.fenced_instance_id
