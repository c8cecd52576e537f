"""What a client without permission is told by the administrative handlers, where the matrix of rights does not reach: two ways
to the same right, names and ids, and what is left out of an answer."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.handlers.txn_client import add_partitions, begin
from tests.security.grants import Grant, Grants

TOPIC, CLUSTER, TXN = ResourceType.TOPIC, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
CREATE, DELETE, DESCRIBE = Operation.CREATE, Operation.DELETE, Operation.DESCRIBE
DENIED = ErrorCode.topic_authorization_failed
ON_CLUSTER = [(operation, CLUSTER, CLUSTER_NAME) for operation in (CREATE, DELETE)]


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka() as kafka:
        kafka.inside.authorizer = Grants()
        yield kafka


@pytest.fixture
def grants(kafka: Kafka) -> Grants:
    authorizer = kafka.inside.authorizer
    assert isinstance(authorizer, Grants)
    return authorizer


def create(kafka: Kafka, *names: str, validate_only: bool = False) -> list[Any]:
    rest = {"num_partitions": 2, "replication_factor": 1}
    topics = [{"name": name, **rest} for name in names]
    answer = kafka.ask(ApiKey.CREATE_TOPICS, 7, topics=topics, timeout=30_000, validate_only=validate_only)
    return list(answer.topics)


def new_name() -> str:
    return f"new-{uuid.uuid4()}"


# -- creating -----------------------------------------------------------------------------------------------------------


def test_only_permitted_topics_are_created(kafka: Kafka, grants: Grants) -> None:
    allowed, forbidden, twice = new_name(), new_name(), new_name()
    with grants.only((CREATE, TOPIC, allowed)):
        codes = {one.name: one.error_code for one in create(kafka, allowed, forbidden, twice, twice)}
    assert codes == {allowed: 0, forbidden: DENIED, twice: ErrorCode.invalid_request}
    assert kafka.inside.logs.topic(forbidden) is None
    assert kafka.inside.logs.topic(allowed) is not None


def test_cluster_create_right_permits_creating_any_topic(kafka: Kafka, grants: Grants) -> None:
    with grants.only(ON_CLUSTER[0]):
        assert [0] == [one.error_code for one in create(kafka, new_name())]
        assert [] == grants.denied


def test_settings_are_shown_only_with_the_right(kafka: Kafka, grants: Grants) -> None:
    seen, unseen = new_name(), new_name()
    with grants.only(ON_CLUSTER[0], (Operation.DESCRIBE_CONFIGS, TOPIC, seen)):
        first, second = create(kafka, seen, unseen)
        assert [] == grants.denied
    assert (0, 2, 1) == (first.topic_config_error_code, first.num_partitions, first.replication_factor)
    assert first.configs
    assert (DENIED, -1, -1) == (second.topic_config_error_code, second.num_partitions, second.replication_factor)
    assert not second.configs


# -- deleting -----------------------------------------------------------------------------------------------------------


def delete(kafka: Kafka, **topic: Any) -> tuple[str | None, bool, int]:
    """Name, whether there is an id, and error of the one result."""
    fields = {"name": None, "topic_id": None, **topic}
    (result,) = kafka.ask(ApiKey.DELETE_TOPICS, 6, topics=[fields], timeout=30_000).responses
    return result.name, result.topic_id is not None, result.error_code


def rights(name: str, *operations: Operation) -> list[Grant]:
    return [(operation, TOPIC, name) for operation in operations]


@pytest.mark.parametrize(
    ("operations", "there", "missing"),
    [
        ([], DENIED, DENIED),
        ([DELETE], DENIED, DENIED),  # DELETE implies DESCRIBE, unless that is denied
        ([DESCRIBE], DENIED, ErrorCode.unknown_topic_or_partition),
        ([DESCRIBE, DELETE], ErrorCode.none, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_topic_deletion_by_name_needs_delete_and_describe(
    kafka: Kafka, grants: Grants, operations: list[Operation], there: int, missing: int
) -> None:
    name = kafka.topic()
    with grants.only(*rights(name, *operations), *rights("no-such-topic", *operations)):
        assert there == delete(kafka, name=name)[2]
        assert missing == delete(kafka, name="no-such-topic")[2]
    assert (kafka.inside.logs.topic(name) is None) == (there == 0)


@pytest.mark.parametrize(
    ("operations", "error", "is_named"),
    [
        ([], DENIED, False),
        ([DESCRIBE], DENIED, True),
        ([DELETE], ErrorCode.none, True),
        ([DESCRIBE, DELETE], ErrorCode.none, True),
    ],
)
def test_topic_name_of_an_id_needs_describe(
    kafka: Kafka, grants: Grants, operations: list[Operation], error: int, is_named: bool
) -> None:
    info = kafka.inside.logs.topic(kafka.topic())
    assert info is not None
    with grants.only(*rights(info.name, *operations)):
        assert (info.name if is_named else None, True, error) == delete(kafka, topic_id=info.topic_id)
        assert (None, True, ErrorCode.unknown_topic_id) == delete(kafka, topic_id=uuid.uuid4())


def test_cluster_delete_right_permits_deleting_any_topic(kafka: Kafka, grants: Grants) -> None:
    name = kafka.topic()
    with grants.only(ON_CLUSTER[1]):
        assert 0 == delete(kafka, name=name)[2]
        assert ErrorCode.unknown_topic_or_partition == delete(kafka, name=name)[2]
        assert [] == grants.denied


def test_denied_topics_name_and_id_are_not_matched(kafka: Kafka, grants: Grants) -> None:
    info = kafka.inside.logs.topic(kafka.topic())
    assert info is not None
    topics = [{"name": info.name, "topic_id": None}, {"name": None, "topic_id": info.topic_id}]
    with grants.only():
        results = kafka.ask(ApiKey.DELETE_TOPICS, 6, topics=topics, timeout=30_000).responses
    assert [(info.name, DENIED), (None, DENIED)] == [(result.name, result.error_code) for result in results]


# -- describing ---------------------------------------------------------------------------------------------------------


def test_transaction_topics_are_shown_only_with_describe(kafka: Kafka, grants: Grants) -> None:
    seen, hidden = kafka.topic(), kafka.topic()
    producer = begin(kafka, name="both")
    add_partitions(kafka, producer, seen)
    add_partitions(kafka, producer, hidden)
    with grants.only((DESCRIBE, TXN, "both"), (DESCRIBE, TOPIC, seen)):
        (state,) = kafka.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["both"]).transaction_states
        assert [] == grants.denied
    assert [seen] == [topic.topic for topic in state.topics]


def test_cluster_operations_are_those_of_the_client(kafka: Kafka, grants: Grants) -> None:
    def operations() -> int:
        answer = kafka.ask(ApiKey.DESCRIBE_CLUSTER, 1, include_cluster_authorized_operations=True, endpoint_type=1)
        return int(answer.cluster_authorized_operations)

    may_create, may_describe = ON_CLUSTER[0], (DESCRIBE, CLUSTER, CLUSTER_NAME)
    assert sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12)) == operations()
    with grants.only(may_create, may_describe):
        assert 1 << CREATE | 1 << DESCRIBE == operations()
    with grants.only(may_create):  # as in Kafka, who may not describe the cluster is told nothing
        assert 0 == operations()


def test_config_resources_are_authorized_individually(kafka: Kafka, grants: Grants) -> None:
    topic = kafka.topic()
    resources = [
        {"resource_type": kind, "resource_name": name, "configs": [{"name": setting, "value": "50000"}]}
        for kind, name, setting in (
            (2, topic, "retention.ms"),
            (4, "", "log.retention.ms"),
            (32, "g", "consumer.session.timeout.ms"),
        )
    ]
    with grants.only((Operation.ALTER_CONFIGS, TOPIC, topic)):
        answer = kafka.ask(ApiKey.ALTER_CONFIGS, 2, resources=resources, validate_only=True)
    assert [0, ErrorCode.cluster_authorization_failed, ErrorCode.group_authorization_failed] == [
        response.error_code for response in answer.responses
    ]
