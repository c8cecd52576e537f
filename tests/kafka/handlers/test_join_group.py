"""JoinGroup over the wire, in every version."""

import inspect
import threading
import time
from typing import Any

import pytest

from broker.kafka.api import Call
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.handlers.join_group import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from tests.kafka.handlers.group_client import ask_join, heartbeat, join, join_fields, new_group, stable
from tests.kafka.handlers.kafka_client import Beside, Kafka, get, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@all_versions
def test_a_lone_member_leads_the_first_generation(kafka: Kafka, version: int) -> None:
    answer = join(kafka, new_group(), version=version)
    assert (answer.generation_id, answer.protocol_name, answer.leader) == (1, "range", answer.member_id)
    assert answer.member_id.startswith("test-")
    (member,) = answer.members
    assert member.member_id == answer.member_id
    assert b"orders" in member.metadata
    assert get(answer, "protocol_type", "consumer") == "consumer"
    assert not get(answer, "skip_assignment", False)


def test_members_that_come_together_are_one_generation() -> None:
    with Kafka(group_initial_rebalance_delay_ms=2_000) as kafka, Beside(kafka) as one, Beside(kafka) as two:
        group = new_group()
        for member in (one, two):
            member.tell(ApiKey.JOIN_GROUP, 3, **join_fields(group))
        answers = [control.parse_response(ApiKey.JOIN_GROUP, 3, member.frame())[1] for member in (one, two)]
        assert [answer.generation_id for answer in answers] == [1, 1]
        assert sorted(len(answer.members) for answer in answers) == [0, 2]


@all_versions
def test_oversized_metadata_is_refused(kafka: Kafka, version: int) -> None:
    group = new_group()
    answer = ask_join(kafka, group, version=version, protocols=[{"name": "range", "metadata": bytes(20_000_000)}])
    assert answer.error_code == ErrorCode.group_max_size_reached
    assert kafka.inside.groups.describe(group)[1].state is ClassicGroupState.DEAD, "it was not even made"


def test_a_parked_join_holds_nothing_of_its_frame(kafka: Kafka) -> None:
    group = new_group()
    join(kafka, group)
    with Beside(kafka) as other:
        member_id = ask_join(other, group).member_id
        request = control.encode_request(
            ApiKey.JOIN_GROUP, 9, 7, "test", join_fields(group, member_id) | {"reason": None}
        )
        # One tag that nobody knows, of 1 MB: tag 99, its size as a varint, its bytes.
        request = request[4:-1] + b"\x01\x63" + b"\xc0\x84\x3d" + bytes(1_000_000)
        other.send(len(request).to_bytes(4, "big") + request)
        entry = kafka.inside.groups._registry.get(group)
        assert entry is not None
        while member_id not in entry.group._parked.joins:
            time.sleep(0.01)
        parked = entry.group._parked.joins[member_id]
        (call,) = [one for one in inspect.getclosurevars(parked).nonlocals.values() if isinstance(one, Call)]
        assert call._request.frame.nbytes == 0


@pytest.mark.parametrize("version", range(4, API.max_version + 1))
def test_a_dynamic_member_is_told_its_id_first(kafka: Kafka, version: int) -> None:
    answer = ask_join(kafka, new_group(), version=version)
    assert answer.error_code == ErrorCode.member_id_required
    assert answer.member_id.startswith("test-")
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", ())


@pytest.mark.parametrize("version", range(5, API.max_version + 1))
def test_static_member_joins_at_once_named_by_instance(kafka: Kafka, version: int) -> None:
    answer = ask_join(kafka, new_group(), version=version, group_instance_id="pod-0")
    assert answer.error_code == ErrorCode.none
    assert answer.member_id.startswith("pod-0-")
    assert [member.group_instance_id for member in answer.members] == ["pod-0"]


@all_versions
def test_a_refused_member_gets_a_whole_answer(kafka: Kafka, version: int) -> None:
    answer = ask_join(kafka, new_group(), "who-1", version=version)
    assert (answer.error_code, answer.member_id) == (ErrorCode.unknown_member_id, "who-1")
    assert (answer.generation_id, answer.leader, answer.members) == (-1, "", ())
    assert answer.protocol_name == (None if version >= 7 else "")


@all_versions
def test_the_session_timeout_is_read_in_ms(kafka: Kafka, version: int) -> None:
    assert ask_join(kafka, new_group(), version=version, session_timeout=5_999).error_code == (
        ErrorCode.invalid_session_timeout
    )
    assert join(kafka, new_group(), version=version, session_timeout=6_000).generation_id == 1


def test_version_0_session_and_rebalance_share_a_timeout(kafka: Kafka) -> None:
    group = new_group()
    joined = join(kafka, group, version=0, session_timeout=7_000)
    entry = kafka.inside.groups._registry.get(group)
    assert entry is not None
    assert entry.group.members[joined.member_id].rebalance_timeout_ms == 7_000


@pytest.mark.parametrize("version", [8, 9])
def test_skip_assignment_is_told_from_version_9_on(kafka: Kafka, version: int) -> None:
    group = new_group()
    stable(kafka, group, group_instance_id="pod-0")
    again = ask_join(kafka, group, version=version, group_instance_id="pod-0")
    assert (again.error_code, again.generation_id) == (ErrorCode.none, 1)
    assert get(again, "skip_assignment", False) == (version >= 9)
    assert (again.leader == again.member_id) == (version >= 9)


def test_join_is_answered_when_the_others_have_joined(kafka: Kafka) -> None:
    group = new_group()
    first = stable(kafka, group)
    answers: list[Any] = []
    with Beside(kafka) as other:
        waiting = threading.Thread(target=lambda: answers.append(join(other, group)))
        waiting.start()
        while heartbeat(kafka, group, first, 1) != ErrorCode.rebalance_in_progress:
            assert answers == []
        again = ask_join(kafka, group, first)
        waiting.join()
    (newcomer,) = answers
    assert (again.generation_id, newcomer.generation_id) == (2, 2)
    assert (again.leader, newcomer.leader) == (first, first)
    assert {member.member_id for member in again.members} == {first, newcomer.member_id}
    assert newcomer.members == ()
