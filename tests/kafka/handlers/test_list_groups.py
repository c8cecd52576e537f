"""ListGroups over the wire, in every version."""

from collections.abc import Iterator

import pytest

from broker.kafka.handlers.list_groups import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.group_client import commit, stable
from tests.kafka.handlers.kafka_client import Kafka, get, versions


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        stable(kafka, "readers")
        commit(kafka, "offsets only", kafka.topic(), 7)
        yield kafka


@pytest.mark.parametrize("version", versions(API))
def test_all_groups_are_listed(kafka: Kafka, version: int) -> None:
    answer = kafka.ask(ApiKey.LIST_GROUPS, version, states_filter=[], types_filter=[])
    assert answer.error_code == ErrorCode.none
    assert sorted((group.group_id, group.protocol_type) for group in answer.groups) == [
        ("offsets only", ""),
        ("readers", "consumer"),
    ]
    states = {group.group_id: get(group, "group_state") for group in answer.groups}
    expected = {"readers": "Stable", "offsets only": "Empty"} if version >= 4 else dict.fromkeys(states)
    assert states == expected


def test_groups_are_listed_by_type_from_version_5(kafka: Kafka) -> None:
    for types, expected in [
        (["classic"], {"readers", "offsets only"}),
        (["consumer", "Classic"], {"readers", "offsets only"}),
        (["consumer", "share"], set()),
        (["odd"], set()),
    ]:
        answer = kafka.ask(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=types)
        assert {group.group_id for group in answer.groups} == expected
        assert {group.group_type for group in answer.groups} <= {"classic"}


def test_groups_are_listed_by_state_from_version_4(kafka: Kafka) -> None:
    for states, expected in [(["Stable"], ["readers"]), (["empty", "Dead"], ["offsets only"]), (["Odd"], [])]:
        answer = kafka.ask(ApiKey.LIST_GROUPS, 4, states_filter=states)
        assert [group.group_id for group in answer.groups] == expected
