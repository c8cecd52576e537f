from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.frames import with_correlation_id
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages import metadata
from protocol.kafka.messages.metadata import BrokerInfo, PartitionMetadata, TopicMetadata
from protocol.kafka.schema import control
from tests.loops import loop_over
from tests.protocol.kafka.message_strategies import (
    REQUEST,
    few_examples,
    instance,
    mappings,
    read_by_kio,
    schema_of,
    written_by_kio,
)

VERSIONS = range(metadata.MIN_VERSION, metadata.MAX_VERSION + 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
every_version = loop_over("version", VERSIONS)


@every_version
def test_any_request_is_read_as_kio_reads_it(version: int) -> None:
    cls = schema_of(REQUEST, ApiKey.METADATA, version)

    @few_examples
    @given(mappings(cls), st.binary(max_size=5))
    def check(fields: dict[str, Any], before: bytes) -> None:
        body = written_by_kio(instance(cls, fields))
        request = metadata.parse_request(memoryview(before + body), version, len(before))
        message = read_by_kio(cls, body)
        names = None if message.topics is None else [name_or_id(topic) for topic in message.topics]
        assert (names or None if version == 0 else names) == request.topics
        assert getattr(message, "allow_auto_topic_creation", True) == request.allow_auto_topic_creation
        assert (
            getattr(message, "include_cluster_authorized_operations", False),
            getattr(message, "include_topic_authorized_operations", False),
        ) == (request.include_cluster_authorized_operations, request.include_topic_authorized_operations)
        for size in range(len(body)):
            with pytest.raises(ProtocolError):
                metadata.parse_request(memoryview(body[:size]), version)

    check()


def name_or_id(topic: Any) -> str | bytes:
    topic_id = getattr(topic, "topic_id", None)
    if topic_id is not None and topic_id.int:
        return bytes(topic_id.bytes)
    return metadata.ZERO_ID if topic.name is None else str(topic.name)


@every_version
@few_examples
@given(st.binary(max_size=60))
def test_any_bytes_raise_nothing_but_protocol_errors(version: int, body: bytes) -> None:
    try:
        metadata.parse_request(memoryview(body), version)
    except ProtocolError:
        pass


def test_all_topics_and_none_are_told_apart() -> None:
    assert metadata.parse_request(memoryview(bytes(4)), 0).topics is None
    assert metadata.parse_request(memoryview(bytes(4)), 1).topics == []
    assert metadata.parse_request(memoryview(b"\xff" * 4), 1).topics is None
    assert metadata.parse_request(memoryview(b"\x00" * 5), 9).topics is None
    assert metadata.parse_request(memoryview(b"\x01" + bytes(4)), 9).topics == []


NODES = st.lists(INT32, max_size=3)
BROKERS = st.lists(
    st.builds(BrokerInfo, INT32, st.text(max_size=9), INT32, st.none() | st.text(max_size=3)), max_size=2
)
PARTITIONS = st.builds(PartitionMetadata, INT16, INT32, INT32, INT32, NODES, NODES, NODES)
TOPICS = st.lists(
    st.builds(
        TopicMetadata,
        INT16,
        st.none() | st.text(max_size=9),
        st.booleans(),
        st.lists(PARTITIONS, max_size=2),
        INT32,
        st.just(metadata.ZERO_ID) | st.binary(min_size=16, max_size=16),
    ),
    max_size=3,
)


@every_version
@few_examples
@given(BROKERS, st.none() | st.text(max_size=5), INT32, TOPICS, INT32, INT32)
def test_a_response_is_written_as_the_schema_says(
    version: int,
    brokers: list[BrokerInfo],
    cluster_id: str | None,
    controller_id: int,
    topics: list[TopicMetadata],
    throttle_ms: int,
    operations: int,
) -> None:
    fields = {
        "throttle_time": throttle_ms,
        "brokers": [broker._asdict() for broker in brokers],
        "cluster_id": cluster_id,
        "controller_id": controller_id,
        "topics": [
            {
                "error_code": topic.error,
                "name": topic.name or "" if version < metadata.FIRST_BY_TOPIC_ID else topic.name,
                "topic_id": UUID(bytes=topic.topic_id),
                "is_internal": topic.is_internal,
                "topic_authorized_operations": topic.authorized_operations,
                "partitions": [
                    {
                        "error_code": partition.error,
                        "partition_index": partition.partition,
                        "leader_id": partition.leader,
                        "leader_epoch": partition.leader_epoch,
                        "replica_nodes": partition.replicas,
                        "isr_nodes": partition.isr,
                        "offline_replicas": partition.offline_replicas,
                    }
                    for partition in topic.partitions
                ],
            }
            for topic in topics
        ],
        "cluster_authorized_operations": operations,
    }
    # test_control.py compares control's writer with kio's.
    expected = control.encode_response(ApiKey.METADATA, version, 8, fields)
    frame = metadata.response(
        8,
        version,
        brokers,
        cluster_id,
        controller_id,
        topics,
        throttle_ms=throttle_ms,
        cluster_authorized_operations=operations,
    )
    assert expected == frame
    again = control.encode_response(ApiKey.METADATA, version, 9, fields)
    assert again == with_correlation_id(frame, 9)
