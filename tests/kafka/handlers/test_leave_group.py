"""LeaveGroup over the wire: one member before version 3, any number since."""

from typing import Any

import pytest

from broker.kafka.handlers.leave_group import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import ask_join, heartbeat, new_group, stable
from tests.kafka.handlers.kafka_client import Kafka, versions

one_at_a_time = pytest.mark.parametrize("version", range(API.min_version, 3))
many_at_once = pytest.mark.parametrize("version", range(3, API.max_version + 1))


def leave(kafka: Kafka, version: int, group: str, *members: tuple[str, str | None]) -> Any:
    fields: dict[str, Any] = {"group_id": group}
    if version < 3:
        fields["member_id"] = members[0][0]
    else:
        fields["members"] = [
            {"member_id": member_id, "group_instance_id": instance, "reason": "why not"}
            for member_id, instance in members
        ]
    return kafka.ask(ApiKey.LEAVE_GROUP, version, **fields)


@one_at_a_time
def test_a_member_leaves(kafka: Kafka, version: int) -> None:
    group = new_group()
    member_id = stable(kafka, group)
    assert leave(kafka, version, group, (member_id, None)).error_code == ErrorCode.none
    assert heartbeat(kafka, group, member_id, 1) == ErrorCode.unknown_member_id
    assert leave(kafka, version, group, (member_id, None)).error_code == ErrorCode.unknown_member_id
    assert leave(kafka, version, new_group(), (member_id, None)).error_code == ErrorCode.unknown_member_id
    assert leave(kafka, version, "", (member_id, None)).error_code == ErrorCode.invalid_group_id


@many_at_once
def test_several_leave_and_each_has_its_own_error(kafka: Kafka, version: int) -> None:
    group = new_group()
    member_id = stable(kafka, group, group_instance_id="pod-0")
    pending = ask_join(kafka, group).member_id
    answer = leave(kafka, version, group, ("who-1", None), ("who-1", "pod-0"), (pending, None), ("", "pod-0"))
    assert answer.error_code == ErrorCode.none
    assert [(member.member_id, member.group_instance_id, member.error_code) for member in answer.members] == [
        ("who-1", None, ErrorCode.unknown_member_id),
        ("who-1", "pod-0", ErrorCode.fenced_instance_id),
        (pending, None, ErrorCode.none),
        ("", "pod-0", ErrorCode.none),
    ]
    assert heartbeat(kafka, group, member_id, 1) == ErrorCode.unknown_member_id


@many_at_once
def test_nobody_can_leave_a_missing_group(kafka: Kafka, version: int) -> None:
    answer = leave(kafka, version, new_group(), ("who-1", None))
    assert answer.error_code == ErrorCode.none
    assert [member.error_code for member in answer.members] == [ErrorCode.unknown_member_id]


@many_at_once
def test_request_without_a_group_is_refused_whole(kafka: Kafka, version: int) -> None:
    answer = leave(kafka, version, "", ("who-1", None))
    assert (answer.error_code, answer.members) == (ErrorCode.invalid_group_id, ())


def test_every_version_is_tried() -> None:
    assert list(versions(API)) == list(range(6))
