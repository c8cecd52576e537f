"""CreatePartitions: a topic grows, and never shrinks."""

from typing import Any

import pytest

from broker.kafka.handlers.create_partitions import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


def grow(
    kafka: Kafka,
    *topics: tuple[str, int] | tuple[str, int, list[list[int]]],
    version: int = API.max_version,
    validate_only: bool = False,
) -> Any:
    wanted = [
        {
            "name": name,
            "count": count,
            "assignments": [{"broker_ids": ids} for ids in assignments[0]] if assignments else None,
        }
        for name, count, *assignments in topics
    ]
    return kafka.ask(
        ApiKey.CREATE_PARTITIONS, version, topics=wanted, timeout=5000, validate_only=validate_only
    ).results


def partitions(kafka: Kafka, name: str) -> int:
    info = kafka.inside.logs.topic(name)
    assert info is not None
    return info.partitions


@all_versions
def test_topic_gets_the_requested_partitions(kafka: Kafka, version: int) -> None:
    name = kafka.topic(partitions=2)
    kafka.fill(name, 1, partition=1)
    (result,) = grow(kafka, (name, 5), version=version)
    assert (name, ErrorCode.none, None) == (result.name, result.error_code, result.error_message)
    assert partitions(kafka, name) == 5
    old, new = kafka.inside.logs.get(name, 1), kafka.inside.logs.get(name, 4)
    assert old is not None
    assert new is not None
    assert (1, 0) == (old.log_end_offset, new.log_end_offset)


@all_versions
def test_validate_only_adds_nothing(kafka: Kafka, version: int) -> None:
    name = kafka.topic()
    (result,) = grow(kafka, (name, 3), version=version, validate_only=True)
    assert result.error_code == ErrorCode.none
    assert partitions(kafka, name) == 1


@all_versions
@pytest.mark.parametrize("count", [3, 2, 0, -1])
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_count_that_is_no_increase_is_refused(kafka: Kafka, version: int, count: int, validate_only: bool) -> None:
    name = kafka.topic(partitions=3)
    (result,) = grow(kafka, (name, count), version=version, validate_only=validate_only)
    assert result.error_code == ErrorCode.invalid_partitions
    assert "3 partition(s)" in result.error_message
    assert partitions(kafka, name) == 3


@all_versions
def test_a_topic_that_is_not_there_cannot_grow(kafka: Kafka, version: int) -> None:
    (result,) = grow(kafka, ("nowhere", 3), version=version)
    assert result.error_code == ErrorCode.unknown_topic_or_partition


def test_repeated_topic_does_not_grow_and_others_do(kafka: Kafka) -> None:
    name, other = kafka.topic(), kafka.topic()
    results = {result.name: result.error_code for result in grow(kafka, (name, 2), (other, 2), (name, 3))}
    assert {name: ErrorCode.invalid_request, other: ErrorCode.none} == results
    assert (1, 2) == (partitions(kafka, name), partitions(kafka, other))


def test_one_request_has_a_bound(kafka: Kafka) -> None:
    (result,) = grow(kafka, (kafka.topic(), 10_002))
    assert result.error_code == ErrorCode.policy_violation


def test_a_manual_assignment_to_this_broker_is_taken(kafka: Kafka) -> None:
    name = kafka.topic()
    (result,) = grow(kafka, (name, 3, [[1], [1]]))
    assert result.error_code == ErrorCode.none
    assert partitions(kafka, name) == 3


@pytest.mark.parametrize("assignments", [[[1]], [[1], [1], [1]], [[1], [2]], [[1], []], []], ids=str)
def test_other_assignments_are_refused(kafka: Kafka, assignments: list[list[int]]) -> None:
    name = kafka.topic()
    (result,) = grow(kafka, (name, 3, assignments))
    assert result.error_code == ErrorCode.invalid_replica_assignment
    assert partitions(kafka, name) == 1
