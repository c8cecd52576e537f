"""DeleteTopics, by name and by id."""

import uuid
from typing import Any

from broker.kafka.handlers.delete_topics import API
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka, get, versions
from tests.loops import loop_over

all_versions = loop_over("version", versions(API))


def delete(kafka: Kafka, *names: str, version: int = API.max_version) -> Any:
    by_name = [{"name": name, "topic_id": None} for name in names]
    fields: dict[str, Any] = {"topics": by_name} if version >= 6 else {"topic_names": names}
    return kafka.ask(ApiKey.DELETE_TOPICS, version, timeout=5000, **fields).responses


def delete_states(kafka: Kafka, *states: tuple[str | None, uuid.UUID | None]) -> Any:
    topics = [{"name": name, "topic_id": topic_id} for name, topic_id in states]
    return kafka.ask(ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=5000).responses


@all_versions
def test_topic_is_gone_when_the_answer_says_so(kafka: Kafka, version: int) -> None:
    name = kafka.topic(partitions=2)
    info = kafka.inside.logs.topic(name)
    assert info is not None
    (result,) = delete(kafka, name, version=version)
    assert (name, ErrorCode.none) == (result.name, result.error_code)
    assert kafka.inside.logs.topic(name) is None
    assert kafka.inside.logs.get(name, 0) is None
    assert get(result, "topic_id") == (info.topic_id if version >= 6 else None)


@all_versions
def test_missing_topic_cannot_be_deleted(kafka: Kafka, version: int) -> None:
    (result,) = delete(kafka, "nowhere", version=version)
    assert ("nowhere", ErrorCode.unknown_topic_or_partition) == (result.name, result.error_code)
    if version >= 5:
        assert "nowhere" in result.error_message


def test_deleted_name_is_reusable_at_once_and_empty(kafka: Kafka) -> None:
    name = kafka.topic()
    kafka.fill(name, 1, 2, 3)
    delete(kafka, name)
    kafka.inside.logs.create_topic(name, 1, {})
    log = kafka.inside.logs.get(name, 0)
    assert log is not None
    assert log.log_end_offset == 0


def test_a_topic_is_deleted_by_its_id(kafka: Kafka) -> None:
    name = kafka.topic()
    info = kafka.inside.logs.topic(name)
    assert info is not None
    (result,) = delete_states(kafka, (None, info.topic_id))
    assert (name, info.topic_id, ErrorCode.none) == (result.name, result.topic_id, result.error_code)
    assert kafka.inside.logs.topic(name) is None


def test_unknown_id_has_its_own_error_code(kafka: Kafka) -> None:
    stranger = uuid.uuid4()
    (result,) = delete_states(kafka, (None, stranger))
    assert (None, stranger, ErrorCode.unknown_topic_id) == (result.name, result.topic_id, result.error_code)


def test_topic_needs_either_a_name_or_an_id(kafka: Kafka) -> None:
    name = kafka.topic()
    info = kafka.inside.logs.topic(name)
    assert info is not None
    results = delete_states(kafka, (name, info.topic_id), (None, None))
    assert [ErrorCode.invalid_request] * 2 == [result.error_code for result in results]
    assert kafka.inside.logs.topic(name) is not None


@all_versions
def test_a_topic_named_twice_stays(kafka: Kafka, version: int) -> None:
    name, other = kafka.topic(), kafka.topic()
    results = {result.name: result.error_code for result in delete(kafka, name, other, name, version=version)}
    assert {name: ErrorCode.invalid_request, other: ErrorCode.none} == results
    assert kafka.inside.logs.topic(name) is not None


def test_topic_named_by_name_and_by_id_stays(kafka: Kafka) -> None:
    name = kafka.topic()
    info = kafka.inside.logs.topic(name)
    assert info is not None
    results = delete_states(kafka, (name, None), (None, info.topic_id))
    assert {ErrorCode.invalid_request} == {result.error_code for result in results}
    assert kafka.inside.logs.topic(name) is not None


def test_where_deletion_is_switched_off_nothing_is_deleted() -> None:
    with Kafka(delete_topic_enable=False) as kafka:
        name = kafka.topic()
        for version in versions(API):
            (result,) = delete(kafka, name, version=version)
            assert result.error_code == (
                ErrorCode.topic_deletion_disabled if version >= 3 else ErrorCode.invalid_request
            )
        assert kafka.inside.logs.topic(name) is not None
