"""What a client without permission is told by the handlers of data: as Kafka tells it, and nothing of what exists."""

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from broker.security.acl import CLUSTER_NAME, Operation, ResourceType
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.records import build_batch
from protocol.kafka.schema import control
from tests.kafka.handlers.kafka_client import Kafka
from tests.security.grants import Grant, Grants

READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
DENIED = ErrorCode.topic_authorization_failed
BATCH = bytes(build_batch([(b"key", b"value", [], 1_000_000)]))


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    with Kafka(auto_create_topics_enable=True) as kafka:
        kafka.inside.authorizer = Grants()
        yield kafka


@pytest.fixture
def grants(kafka: Kafka) -> Grants:
    authorizer = kafka.inside.authorizer
    assert isinstance(authorizer, Grants)
    return authorizer


def grant(operation: Operation, *topics: str) -> list[Grant]:
    return [(operation, TOPIC, topic) for topic in topics]


# -- produce ------------------------------------------------------------------------------------------------------------


def produce_fields(*topics: str, acks: int = 1, partitions: int = 1) -> dict[str, Any]:
    data = [{"index": index, "records": BATCH} for index in range(partitions)]
    return {
        "acks": acks,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": data} for topic in topics],
    }


def produce(kafka: Kafka, *topics: str, acks: int = 1, partitions: int = 1) -> dict[str, list[int]]:
    """The error codes of each topic's partitions."""
    answer = kafka.ask(ApiKey.PRODUCE, 9, **produce_fields(*topics, acks=acks, partitions=partitions))
    return {one.name: [each.error_code for each in one.partition_responses] for one in answer.responses}


@pytest.mark.parametrize("acks", [1, -1])
def test_records_are_appended_to_the_allowed_topics_of_a_request_only(kafka: Kafka, grants: Grants, acks: int) -> None:
    open_to_all, closed = kafka.topic(2), kafka.topic(2)
    with grants.only(*grant(WRITE, open_to_all)):
        assert produce(kafka, closed, open_to_all, acks=acks, partitions=2) == {
            open_to_all: [0, 0],
            closed: [DENIED, DENIED],
        }
        assert produce(kafka, closed, acks=acks) == {closed: [DENIED]}
        assert produce(kafka, "no-such-topic", acks=acks) == {"no-such-topic": [DENIED]}
    assert [end_of(kafka, topic) for topic in (open_to_all, closed)] == [1, 0]


def end_of(kafka: Kafka, topic: str) -> int:
    log = kafka.inside.logs.get(topic, 0)
    assert log is not None
    return log.log_end_offset


def test_each_topic_is_asked_about_once_whatever_the_number_of_its_partitions(kafka: Kafka, grants: Grants) -> None:
    topic = kafka.topic(20)
    with grants.only(*grant(WRITE, topic), *grant(READ, topic)):
        produce(kafka, topic, partitions=20)
        fetch(kafka, topic, partitions=20)
        assert grants.asked == [*grant(WRITE, topic), *grant(READ, topic)]


def test_without_acks_a_denial_closes_the_connection(kafka: Kafka, grants: Grants) -> None:
    topic = kafka.topic()
    with grants.only(), socket.create_connection(kafka.address, 30) as client:
        client.sendall(control.encode_request(ApiKey.PRODUCE, 9, 7, "test", produce_fields(topic, acks=0)))
        assert client.recv(1) == b""
    assert end_of(kafka, topic) == 0


# -- fetch --------------------------------------------------------------------------------------------------------------


def fetch(kafka: Kafka, *topics: str, partitions: int = 1, wait_ms: int = 0) -> dict[str, list[tuple[int, int]]]:
    """(error code, high watermark) of each topic's partitions."""
    wanted = [
        {"partition": index, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
        for index in range(partitions)
    ]
    answer = kafka.ask(
        ApiKey.FETCH,
        11,
        replica_id=-1,
        max_wait=wait_ms,
        min_bytes=1 << 20,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": wanted} for topic in topics],
        forgotten_topics_data=[],
        rack_id="",
    )
    return {one.topic: [(each.error_code, each.high_watermark) for each in one.partitions] for one in answer.responses}


def test_a_fetch_answers_at_once_about_topics_that_it_may_not_read(kafka: Kafka, grants: Grants) -> None:
    open_to_all, closed = kafka.topic(), kafka.topic()
    kafka.fill(closed, 1)
    a_day_ms = 24 * 3600 * 1000
    with grants.only(*grant(READ, open_to_all)):
        assert fetch(kafka, open_to_all, closed, "no-such-topic", wait_ms=a_day_ms) == {
            open_to_all: [(0, 0)],
            closed: [(DENIED, -1)],
            "no-such-topic": [(DENIED, -1)],
        }


# -- metadata -----------------------------------------------------------------------------------------------------------


def metadata(kafka: Kafka, topics: list[str] | None, create: bool = False) -> dict[str, int]:
    """The error code of each topic in the answer."""
    answer = kafka.ask(
        ApiKey.METADATA,
        9,
        topics=None if topics is None else [{"name": topic} for topic in topics],
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return {one.name: one.error_code for one in answer.topics}


def test_metadata_names_denied_topics_only_where_the_request_names_them(kafka: Kafka, grants: Grants) -> None:
    shown, hidden = kafka.topic(), kafka.topic()
    for _ in range(2):  # the second answer is the cached one
        with grants.only(*grant(DESCRIBE, shown)):
            assert metadata(kafka, None) == {shown: 0}
            assert metadata(kafka, [shown, hidden, "missing"]) == {shown: 0, hidden: DENIED, "missing": DENIED}
        with grants.only(*grant(DESCRIBE, hidden)):
            assert metadata(kafka, None) == {hidden: 0}
            assert metadata(kafka, [shown, hidden, "missing"]) == {shown: DENIED, hidden: 0, "missing": DENIED}
        with grants.only():
            assert metadata(kafka, None) == {}
        assert {shown, hidden} <= set(metadata(kafka, None))


def test_clients_that_may_see_the_same_topics_share_a_cached_answer(kafka: Kafka, grants: Grants) -> None:
    topic = kafka.topic()
    kafka.inside.metadata_cache._answers.clear()
    for other in range(3):
        with grants.only(*grant(DESCRIBE, topic), (READ, ResourceType.GROUP, f"group-{other}")):
            metadata(kafka, [topic])
            metadata(kafka, [topic, "missing"])
    assert len(kafka.inside.metadata_cache) == 2


def test_topics_are_created_for_those_who_may_create_them(kafka: Kafka, grants: Grants) -> None:
    describe = grant(DESCRIBE, "made-1", "made-2", "made-3")
    with grants.only(*describe):
        assert metadata(kafka, ["made-1"], create=True) == {"made-1": DENIED}
        assert metadata(kafka, ["made-1"]) == {"made-1": ErrorCode.unknown_topic_or_partition}
    with grants.only(*describe, *grant(CREATE, "made-1")):
        assert metadata(kafka, ["made-1", "made-2"], create=True) == {"made-1": 0, "made-2": DENIED}
    with grants.only(*describe, (CREATE, CLUSTER, CLUSTER_NAME)):
        assert metadata(kafka, ["made-2"], create=True) == {"made-2": 0}
    with grants.only(*grant(CREATE, "made-3")):  # what one may not describe, one does not create by asking for it
        assert metadata(kafka, ["made-3"], create=True) == {"made-3": DENIED}
    assert kafka.inside.logs.topic("made-3") is None


def test_a_hidden_topic_and_one_that_does_not_exist_cannot_be_told_apart(kafka: Kafka, grants: Grants) -> None:
    hidden = kafka.topic()
    missing = "x" * len(hidden)
    for version in range(1, 10):
        with grants.only():
            answers = {ask_for(kafka, version, name).replace(name.encode(), b"?") for name in (hidden, missing)}
        assert len(answers) == 1, version


def ask_for(kafka: Kafka, version: int, topic: str) -> bytes:
    fields = {
        "topics": [{"name": topic}],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    frame = kafka.exchange(control.encode_request(ApiKey.METADATA, version, 7, "test", fields))
    assert struct.unpack(">i", frame[4:8]) == (7,)
    return frame
