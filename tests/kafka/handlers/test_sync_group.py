"""SyncGroup over the wire, in every version."""

import threading
from typing import Any

import pytest

from broker.kafka.handlers.sync_group import API
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import ask_join, ask_sync, heartbeat, join, new_group, stable
from tests.kafka.handlers.kafka_client import Beside, Kafka, get, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


@all_versions
def test_leader_gets_its_own_assignment(kafka: Kafka, version: int) -> None:
    group = new_group()
    member_id = join(kafka, group).member_id
    assignments = [{"member_id": member_id, "assignment": b"all"}, {"member_id": "who", "assignment": b"none"}]
    answer = ask_sync(kafka, group, member_id, 1, version=version, assignments=assignments)
    assert (answer.error_code, answer.assignment) == (ErrorCode.none, b"all")
    assert get(answer, "protocol_type", "consumer") == "consumer"
    assert get(answer, "protocol_name", "range") == "range"
    again = ask_sync(kafka, group, member_id, 1, version=version)
    assert (again.error_code, again.assignment) == (ErrorCode.none, b"all")


@all_versions
def test_a_refused_member_gets_an_empty_assignment(kafka: Kafka, version: int) -> None:
    group = new_group()
    member_id = stable(kafka, group)
    for who, generation, error in [
        (member_id, 2, ErrorCode.illegal_generation),
        ("who-1", 1, ErrorCode.unknown_member_id),
    ]:
        answer = ask_sync(kafka, group, who, generation, version=version)
        assert (answer.error_code, answer.assignment) == (error, b"")
    assert ask_sync(kafka, new_group(), member_id, 1, version=version).error_code == ErrorCode.unknown_member_id
    assert ask_sync(kafka, "", member_id, 1, version=version).error_code == ErrorCode.invalid_group_id


@pytest.mark.parametrize("version", range(3, API.max_version + 1))
def test_a_static_member_is_fenced_by_its_successor(kafka: Kafka, version: int) -> None:
    group = new_group()
    old = stable(kafka, group, group_instance_id="pod-0")
    new = ask_join(kafka, group, group_instance_id="pod-0").member_id
    fenced = ask_sync(kafka, group, old, 1, version=version, group_instance_id="pod-0")
    assert fenced.error_code == ErrorCode.fenced_instance_id
    good = ask_sync(kafka, group, new, 1, version=version, group_instance_id="pod-0")
    assert (good.error_code, good.assignment) == (ErrorCode.none, b"all")


def test_member_names_its_protocol_from_version_5_on(kafka: Kafka) -> None:
    group = new_group()
    member_id = stable(kafka, group)
    for how in ({"protocol_name": None}, {"protocol_type": None}, {"protocol_name": "sticky"}, {"protocol_type": "x"}):
        answer = ask_sync(kafka, group, member_id, 1, version=5, **how)
        assert answer.error_code == ErrorCode.inconsistent_group_protocol
        assert ask_sync(kafka, group, member_id, 1, version=4, **how).error_code == ErrorCode.none


def test_follower_is_answered_after_the_leaders_assignment(kafka: Kafka) -> None:
    group = new_group()
    leader = stable(kafka, group)
    answers: list[Any] = []

    def follow(other: Kafka) -> None:
        joined = join(other, group)
        answers.append(joined.member_id)
        answers.append(ask_sync(other, group, joined.member_id, joined.generation_id))

    with Beside(kafka) as other:
        following = threading.Thread(target=follow, args=[other])
        following.start()
        while heartbeat(kafka, group, leader, 1) != ErrorCode.rebalance_in_progress:
            pass
        led = ask_join(kafka, group, leader)
        assignments = [
            {"member_id": member.member_id, "assignment": f"for {member.member_id}".encode()} for member in led.members
        ]
        assert ask_sync(kafka, group, leader, 2, assignments=assignments).assignment == f"for {leader}".encode()
        following.join()
    follower, synced = answers
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, f"for {follower}".encode())
