"""Metadata, versions 0 to 13, by hand, because clients repeatedly ask for all topics, and there may be thousands.

The response is plain bytes. A broker may cache it until a topic changes, and resend it with ``frames.with_correlation_id``.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from protocol.wire import UNLIMITED, Reader, Writer

MIN_VERSION, MAX_VERSION = 0, 13
FIRST_BY_TOPIC_ID = 12  # from this version on, a client may ask for a topic by its id

_FLEXIBLE = 9
_WITH_TOPIC_ID = 10  # from this version on, a topic has an id beside its name
# Only these versions have the client's authorized operations on the cluster; later, DescribeCluster has them.
_FIRST_CLUSTER_OPERATIONS, _LAST_CLUSTER_OPERATIONS = 8, 10
_WITH_ERROR = 13  # from this version on, the response has a top-level error, which only proxies set

ZERO_ID = bytes(16)  # Kafka's "no topic id"

# Kafka's value for a client that did not ask for its authorized operations.
OPERATIONS_NOT_ASKED = -(2**31)


class MetadataRequest(NamedTuple):
    """``topics`` is None if the client asks for all topics, and empty if it asks for none.

    A topic is named by its name, or by the 16 bytes of its id. A topic with neither has ``ZERO_ID``.
    """

    topics: list[str | bytes] | None
    allow_auto_topic_creation: bool
    include_cluster_authorized_operations: bool
    include_topic_authorized_operations: bool


class BrokerInfo(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionMetadata(NamedTuple):
    error: int
    partition: int
    leader: int
    leader_epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    offline_replicas: Sequence[int] = ()


class TopicMetadata(NamedTuple):
    """``name`` is None where only the id is known or may be told. Versions before 12 cannot express that."""

    error: int
    name: str | None
    is_internal: bool = False
    partitions: Collection[PartitionMetadata] = ()
    authorized_operations: int = OPERATIONS_NOT_ASKED
    topic_id: bytes = ZERO_ID


def parse_request(view: memoryview, version: int, pos: int = 0, max_entries: int = UNLIMITED) -> MetadataRequest:
    """The request that begins at ``pos`` in ``view``. Bytes after its end are ignored.

    ``max_entries``: the limit of topics. Raises ProtocolError, or TooManyEntries for more.
    """
    reader = Reader(view, pos, max_entries)
    flexible = version >= _FLEXIBLE
    topics: list[str | bytes] | None = None
    count = reader.compact_nullable_array(2) if flexible else reader.nullable_array(2)
    if count is not None:
        topics = []
        for _ in range(count):
            if version >= _WITH_TOPIC_ID:
                topic_id = bytes(reader.take(16, "a topic id"))
                name = reader.compact_nullable_string()
                topics.append(topic_id if name is None or topic_id != ZERO_ID else name)
            else:
                topics.append(reader.compact_string() if flexible else reader.string())
            if flexible:
                reader.skip_tags()
    if version == 0 and not topics:
        topics = None  # v0 has no null: an empty list asks for all topics
    auto_create = reader.bool() if version >= 4 else True
    cluster_operations = False
    if _FIRST_CLUSTER_OPERATIONS <= version <= _LAST_CLUSTER_OPERATIONS:
        cluster_operations = reader.bool()
    topic_operations = reader.bool() if version >= 8 else False
    if flexible:
        reader.skip_tags()
    return MetadataRequest(topics, auto_create, cluster_operations, topic_operations)


def response(
    correlation_id: int,
    version: int,
    brokers: Sequence[BrokerInfo],
    cluster_id: str | None,
    controller_id: int,
    topics: Collection[TopicMetadata],
    *,
    throttle_ms: int = 0,
    cluster_authorized_operations: int = OPERATIONS_NOT_ASKED,
) -> bytes | bytearray:
    """The whole response frame."""
    flexible = version >= _FLEXIBLE
    out = Writer(bytearray(4))
    out.i32(correlation_id)
    if flexible:
        out.no_tags()
    if version >= 3:
        out.i32(throttle_ms)
    out.any_array(len(brokers), flexible)
    for broker in brokers:
        _write_broker(out, version, broker)
    if flexible:
        out.compact_nullable_string(cluster_id)
    elif version >= 2:
        out.nullable_string(cluster_id)
    if version >= 1:
        out.i32(controller_id)
    out.any_array(len(topics), flexible)
    for topic in topics:
        _write_topic(out, version, topic)
    if _FIRST_CLUSTER_OPERATIONS <= version <= _LAST_CLUSTER_OPERATIONS:
        out.i32(cluster_authorized_operations)
    if version >= _WITH_ERROR:
        out.i16(0)
    if flexible:
        out.no_tags()
    out.data[:4] = (len(out.data) - 4).to_bytes(4, "big")
    return out.data


def response_size(version: int, topics: Iterable[TopicMetadata]) -> int:
    """An upper bound for the bytes of these topics in a response, without the response's few other fields."""
    # Three arrays (before version 5: two) of one node each, all lengths in 4 bytes.
    per_partition = 52 if version >= 5 else 40
    return sum(48 + 3 * len(topic.name or "") + per_partition * len(topic.partitions) for topic in topics)


def _write_broker(out: Writer, version: int, broker: BrokerInfo) -> None:
    out.i32(broker.node_id)
    if version >= _FLEXIBLE:
        out.compact_string(broker.host)
        out.i32(broker.port)
        out.compact_nullable_string(broker.rack)
        out.no_tags()
        return
    out.string(broker.host)
    out.i32(broker.port)
    if version >= 1:
        out.nullable_string(broker.rack)


def _write_topic(out: Writer, version: int, topic: TopicMetadata) -> None:
    flexible = version >= _FLEXIBLE
    out.i16(topic.error)
    if version >= FIRST_BY_TOPIC_ID:
        out.compact_nullable_string(topic.name)
    elif flexible:
        out.compact_string(topic.name or "")
    else:
        out.string(topic.name or "")
    if version >= _WITH_TOPIC_ID:
        out.raw(topic.topic_id)
    if version >= 1:
        out.bool(topic.is_internal)
    out.any_array(len(topic.partitions), flexible)
    _write_partitions(out, version, topic.partitions)
    if version >= 8:
        out.i32(topic.authorized_operations)
    if flexible:
        out.no_tags()


# The fixed-size part of a partition: error, index, leader, (v7) leader epoch.
_PARTITION_0 = struct.Struct(">hii")
_PARTITION_7 = struct.Struct(">hiii")


def _write_partitions(out: Writer, version: int, partitions: Iterable[PartitionMetadata]) -> None:
    flexible = version >= _FLEXIBLE
    data = out.data
    for error, index, leader, epoch, replicas, isr, offline in partitions:
        if version >= 7:
            data += _PARTITION_7.pack(error, index, leader, epoch)
        else:
            data += _PARTITION_0.pack(error, index, leader)
        for nodes in (replicas, isr, offline) if version >= 5 else (replicas, isr):
            out.any_array(len(nodes), flexible)
            data += struct.pack(f">{len(nodes)}i", *nodes)
        if flexible:
            data.append(0)
