"""CreateTopics as clients see it, in every version."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker.kafka.handlers.create_topics import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, get, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))
LATEST = API.max_version


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(num_partitions=3) as kafka:
        yield kafka


def topic(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **fields}


def assignment(*replicas: list[int]) -> list[dict[str, Any]]:
    return [{"partition_index": index, "broker_ids": ids} for index, ids in enumerate(replicas)]


def create(kafka: Kafka, *topics: dict[str, Any], version: int = LATEST, validate_only: bool = False) -> Any:
    return kafka.ask(ApiKey.CREATE_TOPICS, version, topics=topics, timeout=5000, validate_only=validate_only).topics


@all_versions
def test_topic_exists_when_the_answer_says_so(kafka: Kafka, version: int) -> None:
    name = f"made-{version}"
    (result,) = create(kafka, topic(name, num_partitions=2), version=version)
    assert (name, ErrorCode.none, None) == (result.name, result.error_code, result.error_message)
    info = kafka.inside.logs.topic(name)
    assert info is not None
    assert info.partitions == 2
    assert kafka.inside.logs.get(name, 1) is not None
    if version >= 5:
        assert (2, 1) == (result.num_partitions, result.replication_factor)
    if version >= 7:
        assert info.topic_id == result.topic_id


@all_versions
def test_a_topic_that_exists_is_not_made_again(kafka: Kafka, version: int) -> None:
    name = kafka.topic()
    (result,) = create(kafka, topic(name), version=version)
    assert result.error_code == ErrorCode.topic_already_exists
    assert result.error_message
    if version >= 5:
        assert result.configs is None
        assert result.num_partitions == -1


@all_versions
def test_validate_only_makes_nothing(kafka: Kafka, version: int) -> None:
    (result,) = create(kafka, topic("not-made"), version=version, validate_only=True)
    assert result.error_code == ErrorCode.none
    assert kafka.inside.logs.topic("not-made") is None
    if version >= 5:
        assert result.num_partitions == 1
        assert result.configs
    assert get(result, "topic_id") is None


def test_validate_only_finds_what_is_wrong(kafka: Kafka) -> None:
    results = create(kafka, topic("a b"), topic(kafka.topic()), topic("c", replication_factor=3), validate_only=True)
    assert [
        ErrorCode.invalid_topic_exception,
        ErrorCode.topic_already_exists,
        ErrorCode.invalid_replication_factor,
    ] == [result.error_code for result in results]


def test_minus_one_is_the_brokers_default(kafka: Kafka) -> None:
    (result,) = create(kafka, topic("by-default", num_partitions=-1, replication_factor=-1))
    assert (ErrorCode.none, 3, 1) == (result.error_code, result.num_partitions, result.replication_factor)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"num_partitions": 0}, ErrorCode.invalid_partitions),
        ({"num_partitions": -2}, ErrorCode.invalid_partitions),
        ({"num_partitions": 10_001}, ErrorCode.policy_violation),
        ({"replication_factor": 0}, ErrorCode.invalid_replication_factor),
        ({"replication_factor": -2}, ErrorCode.invalid_replication_factor),
        ({"replication_factor": 2}, ErrorCode.invalid_replication_factor),
        ({"configs": [{"name": "retention.ms", "value": "soon"}]}, ErrorCode.invalid_config),
        ({"configs": [{"name": "retention.ms", "value": None}]}, ErrorCode.invalid_config),
        ({"configs": [{"name": "no.such.setting", "value": "1"}]}, ErrorCode.invalid_config),
    ],
    ids=str,
)
@all_versions
def test_what_cannot_be_is_refused_with_kafkas_code(
    kafka: Kafka, version: int, wrong: dict[str, Any], code: ErrorCode
) -> None:
    (result,) = create(kafka, topic("refused", **wrong), version=version)
    assert code == result.error_code
    assert result.error_message
    assert kafka.inside.logs.topic("refused") is None


@pytest.mark.parametrize("name", ["", ".", "..", "with space", "ümlaut", "x" * 250, "a/b"])
def test_names_that_kafka_does_not_allow_are_refused(kafka: Kafka, name: str) -> None:
    (result,) = create(kafka, topic(name))
    assert result.error_code == ErrorCode.invalid_topic_exception


def test_names_differing_in_dots_and_underscores_collide(kafka: Kafka) -> None:
    create(kafka, topic("a.b_c"))
    (result,) = create(kafka, topic("a_b.c"))
    assert result.error_code == ErrorCode.invalid_topic_exception
    assert "a.b_c" in result.error_message


def test_repeated_topic_is_refused_and_others_are_created(kafka: Kafka) -> None:
    results = {
        result.name: result.error_code for result in create(kafka, topic("twice"), topic("once"), topic("twice"))
    }
    assert {"twice": ErrorCode.invalid_request, "once": ErrorCode.none} == results
    assert kafka.inside.logs.topic("twice") is None
    assert kafka.inside.logs.topic("once") is not None


def test_request_has_a_bound_on_total_partitions(kafka: Kafka) -> None:
    results = create(kafka, topic("many", num_partitions=6000), topic("more", num_partitions=6000), validate_only=True)
    assert [ErrorCode.none, ErrorCode.policy_violation] == [result.error_code for result in results]


@all_versions
def test_a_manual_assignment_to_this_broker_is_taken(kafka: Kafka, version: int) -> None:
    name = f"assigned-{version}"
    wanted = topic(name, num_partitions=-1, replication_factor=-1, assignments=assignment([1], [1]))
    (result,) = create(kafka, wanted, version=version)
    assert result.error_code == ErrorCode.none
    info = kafka.inside.logs.topic(name)
    assert info is not None
    assert info.partitions == 2


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"assignments": assignment([2])}, ErrorCode.invalid_replica_assignment),
        ({"assignments": assignment([1, 2])}, ErrorCode.invalid_replica_assignment),
        ({"assignments": assignment([1, 1])}, ErrorCode.invalid_replica_assignment),
        ({"assignments": assignment([])}, ErrorCode.invalid_replica_assignment),
        ({"assignments": [{"partition_index": 1, "broker_ids": [1]}]}, ErrorCode.invalid_replica_assignment),
        ({"assignments": assignment([1]) * 2}, ErrorCode.invalid_replica_assignment),
        ({"assignments": assignment([1]), "num_partitions": 1}, ErrorCode.invalid_request),
        ({"assignments": assignment([1]), "replication_factor": 1}, ErrorCode.invalid_request),
    ],
    ids=str,
)
def test_other_assignments_are_refused(kafka: Kafka, wrong: dict[str, Any], code: ErrorCode) -> None:
    (result,) = create(kafka, topic("misassigned", **{"num_partitions": -1, "replication_factor": -1, **wrong}))
    assert code == result.error_code
    assert result.error_message


def test_answer_shows_all_settings_with_their_sources(kafka: Kafka) -> None:
    (result,) = create(kafka, topic("with-settings", configs=[{"name": "retention.ms", "value": "1000"}]))
    configs = {config.name: config for config in result.configs}
    assert ("1000", 1) == (configs["retention.ms"].value, configs["retention.ms"].config_source)
    assert ("delete", 5) == (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source)
    assert not any(config.read_only or config.is_sensitive for config in result.configs)
    info = kafka.inside.logs.topic("with-settings")
    assert info is not None
    assert {"retention.ms": "1000"} == dict(info.configs)
