"""ShareFetch and ShareAcknowledge (KIP-932), the broker's side, versions 1 and 2, by hand.

The acknowledge types of a batch, a byte for each record, stay bytes: a request that acknowledges 500 records one by one has three
values to read instead of 500. As in ``fetch.py``, the broker never reads records: a partition of a response has the size of its
records and the parts that hold them, buffers or file regions.

Nothing here checks the values of fields; ``broker.kafka.share`` does. Pure.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from protocol.kafka.messages.headers import response_header
from protocol.kafka.messages.leaders import NO_LEADER, NONE, Hints, write_endpoints, write_leader
from protocol.wire import UNLIMITED, Reader, Writer, encode_uvarint

MIN_VERSION, MAX_VERSION = 1, 2
_RENEW = 2  # the first version with renewals, the acquire mode, and the lock time-out in ShareAcknowledge's response

TopicPartition = tuple[bytes, int]  # the topic's id (16 bytes), partition
_BATCH = struct.Struct(">qq")


class AcknowledgementBatch(NamedTuple):
    first: int
    last: int  # inclusive
    types: bytes  # one for all of these offsets, or one each


class SharePartitionRequest(NamedTuple):
    partition: TopicPartition
    acknowledgements: list[AcknowledgementBatch]


class ShareFetchRequest(NamedTuple):
    group_id: str
    member_id: str
    epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    acquire_mode: int
    is_renew: bool
    partitions: list[SharePartitionRequest]
    forgotten: list[TopicPartition]


class ShareAcknowledgeRequest(NamedTuple):
    group_id: str
    member_id: str
    epoch: int
    is_renew: bool
    partitions: list[SharePartitionRequest]


class AcquiredRecords(NamedTuple):
    first: int
    last: int  # inclusive
    delivery_count: int


class FetchedPartition(NamedTuple):
    """``parts`` hold ``size`` bytes of records."""

    partition: TopicPartition
    error: int = 0
    message: str | None = None
    acknowledge_error: int = 0
    acknowledge_message: str | None = None
    acquired: Sequence[AcquiredRecords] = ()
    size: int = 0
    parts: Sequence[Any] = ()


class AcknowledgedPartition(NamedTuple):
    partition: TopicPartition
    error: int = 0
    message: str | None = None


def parse_fetch(view: memoryview, version: int, pos: int = 0, max_entries: int = UNLIMITED) -> ShareFetchRequest:
    """Raises ProtocolError, or TooManyEntries for more than ``max_entries`` topics, partitions and batches together."""
    reader = Reader(view, pos, max_entries)
    group_id, member_id, epoch = _session(reader)
    max_wait_ms, min_bytes, max_bytes = reader.i32(), reader.i32(), reader.i32()
    max_records, batch_size = reader.i32(), reader.i32()
    mode, is_renew = (reader.i8(), reader.bool()) if version >= _RENEW else (0, False)
    partitions = _partitions(reader)
    forgotten: list[TopicPartition] = []
    for _ in range(reader.compact_array(18)):
        topic_id = reader.take(16).tobytes()
        forgotten += [(topic_id, reader.i32()) for _ in range(reader.compact_array(4))]
        reader.skip_tags()
    reader.skip_tags()
    return ShareFetchRequest(
        group_id,
        member_id,
        epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        max_records,
        batch_size,
        mode,
        is_renew,
        partitions,
        forgotten,
    )


def parse_acknowledge(
    view: memoryview, version: int, pos: int = 0, max_entries: int = UNLIMITED
) -> ShareAcknowledgeRequest:
    """Raises ProtocolError, or TooManyEntries for more than ``max_entries`` topics, partitions and batches together."""
    reader = Reader(view, pos, max_entries)
    group_id, member_id, epoch = _session(reader)
    is_renew = version >= _RENEW and reader.bool()
    partitions = _partitions(reader)
    reader.skip_tags()
    return ShareAcknowledgeRequest(group_id, member_id, epoch, is_renew, partitions)


def _session(reader: Reader) -> tuple[str, str, int]:
    return reader.compact_nullable_string() or "", reader.compact_nullable_string() or "", reader.i32()


def _partitions(reader: Reader) -> list[SharePartitionRequest]:
    partitions = []
    for _ in range(reader.compact_array(18)):
        topic_id = reader.take(16).tobytes()
        for _ in range(reader.compact_array(6)):
            index = reader.i32()
            batches = []
            for _ in range(reader.compact_array(18)):
                first, last = _BATCH.unpack(reader.take(16, "an acknowledgement batch"))
                types = reader.take(reader.uvarint() - 1, "acknowledge types").tobytes()
                batches.append(AcknowledgementBatch(first, last, types))
                reader.skip_tags()
            partitions.append(SharePartitionRequest((topic_id, index), batches))
            reader.skip_tags()
        reader.skip_tags()
    return partitions


# -- responses ----------------------------------------------------------------------------------------------------------

_LENGTH = struct.Struct(">i")
_ACQUIRED = struct.Struct(">qqhB")  # and no tags
_HEAD = struct.Struct(">ih")  # throttle time, error


def fetch_parts(
    correlation_id: int,
    error: int,
    message: str | None,
    lock_timeout_ms: int,
    partitions: Sequence[FetchedPartition],
    hints: Hints = NONE,
) -> list[Any]:
    """The response frame as parts to send in order; the first begins with the frame's length."""
    parts: list[Any] = []
    size = 0
    out = _head(correlation_id, error, message)
    out.data += _LENGTH.pack(lock_timeout_ms)
    for topic_id, partitions_of_topic in _topics(out, partitions):
        _topic(out, topic_id, len(partitions_of_topic))
        for data in partitions_of_topic:
            out.data += _HEAD.pack(data.partition[1], data.error)
            out.compact_nullable_string(data.message)
            out.i16(data.acknowledge_error)
            out.compact_nullable_string(data.acknowledge_message)
            write_leader(out, hints.leaders.get(data.partition, NO_LEADER))
            out.data += encode_uvarint(data.size + 1)
            if data.size:
                parts += [out.data, *data.parts]
                size += len(out.data) + data.size
                out = Writer()
            out.compact_array(len(data.acquired))
            out.data += b"".join([_ACQUIRED.pack(*acquired, 0) for acquired in data.acquired])
            out.no_tags()
        out.no_tags()
    write_endpoints(out, hints.endpoints)
    out.no_tags()
    parts.append(out.data)
    size += len(out.data)
    _LENGTH.pack_into(parts[0], 0, size - _LENGTH.size)
    return parts


def acknowledge_response(
    correlation_id: int,
    version: int,
    error: int,
    message: str | None,
    lock_timeout_ms: int,
    partitions: Sequence[AcknowledgedPartition],
    hints: Hints = NONE,
) -> bytearray:
    """A whole response frame."""
    out = _head(correlation_id, error, message)
    if version >= _RENEW:
        out.i32(lock_timeout_ms)
    for topic_id, partitions_of_topic in _topics(out, partitions):
        _topic(out, topic_id, len(partitions_of_topic))
        for data in partitions_of_topic:
            out.data += _HEAD.pack(data.partition[1], data.error)
            out.compact_nullable_string(data.message)
            write_leader(out, hints.leaders.get(data.partition, NO_LEADER))
            out.no_tags()
        out.no_tags()
    write_endpoints(out, hints.endpoints)
    out.no_tags()
    _LENGTH.pack_into(out.data, 0, len(out.data) - _LENGTH.size)
    return out.data


def _head(correlation_id: int, error: int, message: str | None) -> Writer:
    out = Writer(bytearray(_LENGTH.size))
    out.raw(response_header(correlation_id, 1))
    out.data += _HEAD.pack(0, error)
    out.compact_nullable_string(message)
    return out


def _topics(out: Writer, partitions: Sequence[Any]) -> list[tuple[bytes, list[Any]]]:
    """Writes the number of topics and returns the partitions by topic."""
    by_topic: dict[bytes, list[Any]] = {}
    for data in partitions:
        by_topic.setdefault(data.partition[0], []).append(data)
    out.compact_array(len(by_topic))
    return list(by_topic.items())


def _topic(out: Writer, topic_id: bytes, partitions: int) -> None:
    out.data += topic_id
    out.compact_array(partitions)
