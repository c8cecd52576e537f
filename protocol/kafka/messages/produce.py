"""Produce, both sides, by hand. The broker serves versions 3 to 13, the client of this project speaks 3 to 12.

From version 13 on the topic's id stands in place of its name. Versions 10 to 12 look like 9: the tagged fields that 10 has added
to the response lead to another leader, and there is one node.

The broker's side (``parse_request``, ``response``) reads the request in one pass and leaves the records where they lie in the
frame. Nearly every request of a Kafka client carries one partition of one topic: a few struct calls read that case, and one
template answers it. Every other request takes the general way, which gives the same result.

The client's side (``request_parts``, ``parse_response``) gives the request as parts to send one after the other, with the
batches among them as they are. Its reader skips the tagged fields that versions after 9 have added to the response.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import request_header
from protocol.wire import UNLIMITED, BytesLike, Reader, Writer

MIN_VERSION, MAX_VERSION = 3, 13
CLIENT_MIN_VERSION, CLIENT_MAX_VERSION = 3, 12

FIRST_WITH_TOPIC_ID = 13  # from this version on a topic's id stands in place of its name

_FLEXIBLE = 9
_new = tuple.__new__  # skips the generated __new__: 0.15 us of 2 us


class ProduceRequest(NamedTuple):
    """``topics`` is flat: (topic, partition, records). Records are a view into the request, or None for null.

    A topic is given by its name, or from version 13 on by the 16 bytes of its id.
    """

    acks: int
    timeout_ms: int
    transactional_id: str | None
    topics: list[tuple[str | bytes, int, memoryview | None]]


class PartitionResult(NamedTuple):
    """The result for one partition's records. ``record_errors`` are (index in the batch, message), sent from v8 on.

    ``topic`` is as in the request: the name, or from version 13 on the 16 bytes of the id.
    """

    topic: str | bytes
    partition: int
    error: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()


# -- request ----------------------------------------------------------------------------------------------------

# v3-v8 up to the topic's name: transactional id (null), acks, timeout, number of topics, length of the name.
_HEAD = struct.Struct(">hhiih")
# ... and after it: number of partitions, partition, length of the records.
_PARTITION = struct.Struct(">iii")
# The same for v9, where one byte holds each length as long as it is below 127.
_HEAD_9 = struct.Struct(">BhiBB")
_PARTITION_9 = struct.Struct(">Bi")
_HEAD_13 = struct.Struct(">BhiB16s")  # with the topic's id in place of its name


def parse_request(view: memoryview, version: int, pos: int = 0, max_entries: int = UNLIMITED) -> ProduceRequest:
    """The request that begins at ``pos`` in ``view``. Bytes after its end are ignored.

    ``max_entries``: the most topics and partitions, together, that it may have. Raises ProtocolError, or TooManyEntries for
    more.
    """
    try:
        if version < _FLEXIBLE:
            transactional_id, acks, timeout_ms, topics, size = _HEAD.unpack_from(view, pos)
            if transactional_id == -1 and topics == 1 and size >= 0:
                name = pos + 14
                end = name + size
                partitions, partition, size = _PARTITION.unpack_from(view, end)
                start = end + 12
                if partitions == 1 and 0 <= size <= len(view) - start:
                    topic = (str(view[name:end], "utf-8"), partition, view[start : start + size])
                    return _new(ProduceRequest, (acks, timeout_ms, None, [topic]))
        else:
            topic_id = None
            if version < FIRST_WITH_TOPIC_ID:
                transactional_id, acks, timeout_ms, topics, size = _HEAD_9.unpack_from(view, pos)
                end = pos + 8 + size
            else:
                transactional_id, acks, timeout_ms, topics, topic_id = _HEAD_13.unpack_from(view, pos)
                size, end = 1, pos + _HEAD_13.size
            if transactional_id == 0 and topics == 2 and 0 < size < 128:
                partitions, partition = _PARTITION_9.unpack_from(view, end)
                start = end + 6
                size = view[end + 5]
                if size > 127:
                    size += (view[start] << 7) - 128
                    start += 1
                    if size > 16383:
                        size += (view[start] << 14) - 16384
                        start += 1
                after = start + size - 1
                # Three tag sections end the partition, the topic and the request, in nearly every case empty.
                if partitions == 2 and 0 < size < 2097152 and bytes(view[after : after + 3]) == b"\0\0\0":
                    topic = (
                        str(view[pos + 9 : end], "utf-8") if topic_id is None else topic_id,
                        partition,
                        view[start:after],
                    )
                    return _new(ProduceRequest, (acks, timeout_ms, None, [topic]))
    except (struct.error, IndexError, UnicodeDecodeError):
        pass  # the general way raises the error
    return _parse_any(Reader(view, pos, max_entries), version)


def _parse_any(reader: Reader, version: int) -> ProduceRequest:
    flexible = version >= _FLEXIBLE
    transactional_id = reader.compact_nullable_string() if flexible else reader.nullable_string()
    acks = reader.i16()
    timeout_ms = reader.i32()
    topics: list[tuple[str | bytes, int, memoryview | None]] = []
    topic: str | bytes
    for _ in range(reader.compact_array(3) if flexible else reader.array(6)):
        if version >= FIRST_WITH_TOPIC_ID:
            topic = bytes(reader.take(16, "a topic id"))
        else:
            topic = reader.compact_string() if flexible else reader.string()
        for _ in range(reader.compact_array(6) if flexible else reader.array(8)):
            partition = reader.i32()
            records = reader.compact_nullable_bytes() if flexible else reader.nullable_bytes()
            if flexible:
                reader.skip_tags()
            topics.append((topic, partition, records))
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return ProduceRequest(acks, timeout_ms, transactional_id, topics)


def request_parts(
    correlation_id: int,
    client_id: str | None,
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, BytesLike]],
) -> list[BytesLike]:
    """``batches``: (topic, partition, one record batch), each partition at most once. The first part begins with the frame's
    length."""
    topics: dict[str, list[tuple[int, BytesLike]]] = {}
    for topic, partition, records in batches:
        topics.setdefault(topic, []).append((partition, records))
    flexible = version >= _FLEXIBLE
    out = Writer()
    out.raw(request_header(ApiKey.PRODUCE, version, correlation_id, client_id))
    if flexible:
        out.compact_nullable_string(transactional_id)
    else:
        out.nullable_string(transactional_id)
    out.i16(acks)
    out.i32(timeout_ms)
    out.any_array(len(topics), flexible)
    parts: list[BytesLike] = []
    size = 0
    for topic, partitions in topics.items():
        if flexible:
            out.compact_string(topic)
        else:
            out.string(topic)
        out.any_array(len(partitions), flexible)
        for partition, records in partitions:
            out.i32(partition)
            if flexible:
                out.uvarint(len(records) + 1)
            else:
                out.i32(len(records))
            size += len(out.data) + len(records)
            parts += (out.getvalue(), records)
            out = Writer()
            if flexible:
                out.no_tags()
        if flexible:
            out.no_tags()
    if flexible:
        out.no_tags()
    if out.data:
        size += len(out.data)
        parts.append(out.getvalue())
    parts[0] = size.to_bytes(4, "big") + bytes(parts[0])
    return parts


# -- response ---------------------------------------------------------------------------------------------------

# Frame length, correlation id, one topic, length of its name; in v9 also the header's tags.
_PREFIX = struct.Struct(">iiih")
_PREFIX_9 = struct.Struct(">iiBBB")
_PREFIX_13 = struct.Struct(">iiBB16s")  # with the topic's id in place of its name
# One partition: count, index, error, base offset, append time, (v5) log start offset, (v8) no record errors and no
# message; then the throttle time. v9 has three tag sections between these.
_SUFFIX_3 = struct.Struct(">iihqqi")
_SUFFIX_5 = struct.Struct(">iihqqqi")
_SUFFIX_8 = struct.Struct(">iihqqqihi")
_SUFFIX_9 = struct.Struct(">BihqqqBBBBiB")
# The length that a frame states, but for the name.
_LENGTH_3 = _PREFIX.size + _SUFFIX_3.size - 4
_LENGTH_5 = _PREFIX.size + _SUFFIX_5.size - 4
_LENGTH_8 = _PREFIX.size + _SUFFIX_8.size - 4
_LENGTH_9 = _PREFIX_9.size + _SUFFIX_9.size - 4
_LENGTH_13 = _PREFIX_13.size + _SUFFIX_9.size - 4


def response(correlation_id: int, version: int, results: Sequence[PartitionResult], throttle_ms: int = 0) -> bytes:
    """The whole response frame. Partitions of one topic are grouped, in the order of ``results``."""
    if len(results) == 1:
        topic, partition, error, base_offset, append_time, start_offset, message, record_errors = results[0]
        if message is None and not record_errors:
            if isinstance(topic, bytes):
                return _PREFIX_13.pack(_LENGTH_13, correlation_id, 0, 2, topic) + _SUFFIX_9.pack(
                    2, partition, error, base_offset, append_time, start_offset, 1, 0, 0, 0, throttle_ms, 0
                )
            name = topic.encode()
            size = len(name)
            if version < 5:
                return (
                    _PREFIX.pack(size + _LENGTH_3, correlation_id, 1, size)
                    + name
                    + _SUFFIX_3.pack(1, partition, error, base_offset, append_time, throttle_ms)
                )
            if version < 8:
                return (
                    _PREFIX.pack(size + _LENGTH_5, correlation_id, 1, size)
                    + name
                    + _SUFFIX_5.pack(1, partition, error, base_offset, append_time, start_offset, throttle_ms)
                )
            if version < _FLEXIBLE:
                return (
                    _PREFIX.pack(size + _LENGTH_8, correlation_id, 1, size)
                    + name
                    + _SUFFIX_8.pack(1, partition, error, base_offset, append_time, start_offset, 0, -1, throttle_ms)
                )
            if size < 127:
                return (
                    _PREFIX_9.pack(size + _LENGTH_9, correlation_id, 0, 2, size + 1)
                    + name
                    + _SUFFIX_9.pack(
                        2, partition, error, base_offset, append_time, start_offset, 1, 0, 0, 0, throttle_ms, 0
                    )
                )
    return _response_any(correlation_id, version, results, throttle_ms)


def _response_any(correlation_id: int, version: int, results: Sequence[PartitionResult], throttle_ms: int) -> bytes:
    topics: dict[str | bytes, list[PartitionResult]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(result)
    flexible = version >= _FLEXIBLE
    out = Writer(bytearray(4))
    out.i32(correlation_id)
    if flexible:
        out.no_tags()
        out.compact_array(len(topics))
    else:
        out.array(len(topics))
    for topic, partitions in topics.items():
        if isinstance(topic, bytes):
            out.raw(topic)
        elif flexible:
            out.compact_string(topic)
        else:
            out.string(topic)
        out.any_array(len(partitions), flexible)
        for result in partitions:
            _write_partition(out, version, result)
        if flexible:
            out.no_tags()
    out.i32(throttle_ms)
    if flexible:
        out.no_tags()
    out.data[:4] = (len(out.data) - 4).to_bytes(4, "big")
    return out.getvalue()


def _write_partition(out: Writer, version: int, result: PartitionResult) -> None:
    out.i32(result.partition)
    out.i16(result.error)
    out.i64(result.base_offset)
    out.i64(result.log_append_time_ms)
    if version >= 5:
        out.i64(result.log_start_offset)
    if version >= _FLEXIBLE:
        out.compact_array(len(result.record_errors))
        for index, message in result.record_errors:
            out.i32(index)
            out.compact_nullable_string(message)
            out.no_tags()
        out.compact_nullable_string(result.error_message)
        out.no_tags()
    elif version == 8:
        out.array(len(result.record_errors))
        for index, message in result.record_errors:
            out.i32(index)
            out.nullable_string(message)
        out.nullable_string(result.error_message)


def parse_response(frame: memoryview, version: int) -> tuple[int, list[PartitionResult]]:
    """The correlation id and the results in a whole response frame, its length included. Raises ProtocolError."""
    flexible = version >= _FLEXIBLE
    reader = Reader(frame, 4)
    correlation_id = reader.i32()
    if flexible:
        reader.skip_tags()
    results: list[PartitionResult] = []
    for _ in range(reader.compact_array(3) if flexible else reader.array(6)):
        topic = reader.compact_string() if flexible else reader.string()
        for _ in range(reader.compact_array(22) if flexible else reader.array(22)):
            results.append(_read_partition(reader, version, topic))
        if flexible:
            reader.skip_tags()
    return correlation_id, results


def _read_partition(reader: Reader, version: int, topic: str) -> PartitionResult:
    flexible = version >= _FLEXIBLE
    partition, error, base_offset, append_time = reader.i32(), reader.i16(), reader.i64(), reader.i64()
    start_offset = reader.i64() if version >= 5 else -1
    message: str | None = None
    record_errors: list[tuple[int, str | None]] = []
    if version >= 8:
        for _ in range(reader.compact_array(6) if flexible else reader.array(6)):
            index = reader.i32()
            record_errors.append((index, reader.compact_nullable_string() if flexible else reader.nullable_string()))
            if flexible:
                reader.skip_tags()
        message = reader.compact_nullable_string() if flexible else reader.nullable_string()
    if flexible:
        reader.skip_tags()
    return PartitionResult(topic, partition, error, base_offset, append_time, start_offset, message, record_errors)
