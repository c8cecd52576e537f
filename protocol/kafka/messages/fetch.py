"""Fetch, versions 4 to 18, both sides, by hand. From version 13 on, topics are named by their ids.

The broker's side (``parse_request``, ``response_parts``) never reads records. A partition has the size of its records in bytes
and the parts that hold them (buffers, or file regions for sendfile); the response is a list in which these parts stand between
the bytes of Kafka's framing. A request for one partition, the most frequent one, is read by a few struct calls and answered
from a template; all others take the general path.

The client's side (``request``, ``parse_response``) asks for one partition a request, because a fast reader has a connection for
each partition, and leaves the response's records in the frame. It uses no fetch sessions, which only save bytes where a request
names many partitions.

Tagged fields that lead to another leader (``leaders.py``) are written from version 16 on, as by Kafka. Those of replicas, which
clients of this broker never need, are not, and in a request they are skipped. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import request_header
from protocol.kafka.messages.leaders import Hints, endpoints_tag, leader_tag
from protocol.wire import UNLIMITED, BytesLike, Reader, Writer, encode_uvarint

MIN_VERSION, MAX_VERSION = 4, 18
CLIENT_MIN_VERSION, CLIENT_MAX_VERSION = 4, 18
FIRST_WITH_TOPIC_ID = 13  # from this version on, a topic's id replaces its name

_FLEXIBLE = 12
FIRST_WITH_LEADERS = 16  # from this version on a response may lead to other leaders
_WITHOUT_REPLICA = 15  # from this version on, a replica identifies itself by a tagged field only
_new = tuple.__new__  # skips the generated __new__: 0.15 us of 2 us


class FetchPartition(NamedTuple):
    """A field missing in the request's version is -1. ``topic`` is the name, or from version 13 on the id's 16 bytes."""

    topic: str | bytes
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    log_start_offset: int
    max_bytes: int
    last_fetched_epoch: int = -1


class FetchRequest(NamedTuple):
    """``forgotten``: the (topic, partition) pairs that a session drops. A request without a session has id 0, epoch -1."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[str | bytes, int]] = []  # noqa: RUF012  # no caller changes it
    rack_id: str = ""
    replica_id: int = -1
    cluster_id: str | None = None
    by_id: bool = False  # topics are ids


class PartitionData(NamedTuple):
    """``aborted``: (producer id, first offset) of each aborted transaction; None if the client did not ask for them.

    ``records_size`` counts the bytes of ``records_parts``; their types are between the caller and its socket.
    """

    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None
    records_size: int
    records_parts: Sequence[Any]


class FetchedPartition(NamedTuple):
    """``topic`` is the name, or from version 13 on the id. ``aborted``: pairs of (producer id, first offset), or None.

    ``records`` is a view into the frame.
    """

    topic: str | UUID
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    records: memoryview


class FetchResponse(NamedTuple):
    correlation_id: int
    throttle_ms: int
    error: int
    partitions: list[FetchedPartition]


# -- request ----------------------------------------------------------------------------------------------------

# Up to the topic's name: replica, wait, min and max bytes, isolation level, (v7) session id and epoch, number of
# topics, length of the name (one byte in v12).
_HEAD_4 = struct.Struct(">iiiibih")
_HEAD_7 = struct.Struct(">iiiibiiih")
_HEAD_12 = struct.Struct(">iiiibiiBB")
# After the name: number of partitions, then the partition: index, (v9) leader epoch, offset, (v12) last fetched epoch,
# (v5) log start, max bytes. Then (v7) the number of forgotten topics and (v11) the length of the rack id. In v12 the
# two tag sections of partition and topic stand before the forgotten topics, the request's after the rack.
_PARTITION_4 = struct.Struct(">iiqi")
_PARTITION_5 = struct.Struct(">iiqqi")
_PARTITION_7 = struct.Struct(">iiqqii")
_PARTITION_9 = struct.Struct(">iiiqqii")
_PARTITION_11 = struct.Struct(">iiiqqiih")
_PARTITION_12 = struct.Struct(">BiiqiqiBBBBB")
# A partition of many from v12 on, up to the number of its tags, inclusive.
_MANY_12 = struct.Struct(">iiqiqiB")
# From v13 on: the replica (up to v14), then the rest up to the topic's id, inclusive.
_REPLICA = struct.Struct(">i")
_HEAD_13 = struct.Struct(">iiibiiB16s")


def parse_request(view: memoryview, version: int, pos: int = 0, max_entries: int = UNLIMITED) -> FetchRequest:
    """The request that begins at ``pos`` in ``view``. Bytes after its end are ignored.

    ``max_entries``: the limit of topics and partitions together. Raises ProtocolError, or TooManyEntries for
    more.
    """
    session_id, session_epoch, epoch, log_start, last_epoch = 0, -1, -1, -1, -1
    forgotten = rest = 0
    try:
        if version >= FIRST_WITH_TOPIC_ID:
            return _parse_by_id(view, version, pos, max_entries)
        if version == 12:
            replica, wait, least, most, isolation, session_id, session_epoch, topics, size = _HEAD_12.unpack_from(
                view, pos
            )
            name = pos + 27
            end = name + size - 1
            count, index, epoch, offset, last_epoch, log_start, size_max, tags, more_tags, forgotten, rack, rest = (
                _PARTITION_12.unpack_from(view, end)
            )
            if not (topics == count == 2 and 0 < size < 128 and forgotten == rack == 1 and not tags and not more_tags):
                return _parse_any(Reader(view, pos, max_entries), version)
        elif version >= 7:
            replica, wait, least, most, isolation, session_id, session_epoch, topics, size = _HEAD_7.unpack_from(
                view, pos
            )
            name = pos + 31
            end = name + size
            if version == 11:
                count, index, epoch, offset, log_start, size_max, forgotten, rest = _PARTITION_11.unpack_from(view, end)
            elif version >= 9:
                count, index, epoch, offset, log_start, size_max, forgotten = _PARTITION_9.unpack_from(view, end)
            else:
                count, index, offset, log_start, size_max, forgotten = _PARTITION_7.unpack_from(view, end)
            if not (topics == count == 1 and size >= 0 and forgotten == 0):
                return _parse_any(Reader(view, pos, max_entries), version)
        else:
            replica, wait, least, most, isolation, topics, size = _HEAD_4.unpack_from(view, pos)
            name = pos + 23
            end = name + size
            if version >= 5:
                count, index, offset, log_start, size_max = _PARTITION_5.unpack_from(view, end)
            else:
                count, index, offset, size_max = _PARTITION_4.unpack_from(view, end)
            if not (topics == count == 1 and size >= 0):
                return _parse_any(Reader(view, pos, max_entries), version)
        if rest == 0:  # no rack and no tags
            topic = str(view[name:end], "utf-8")
            partition = _new(FetchPartition, (topic, index, epoch, offset, log_start, size_max, last_epoch))
            return _new(
                FetchRequest,
                (wait, least, most, isolation, session_id, session_epoch, [partition], [], "", replica, None, False),
            )
    except (struct.error, UnicodeDecodeError):
        pass  # the general path raises the error, or reads a request for no or several partitions
    return _parse_any(Reader(view, pos, max_entries), version)


def _parse_by_id(view: memoryview, version: int, pos: int, max_entries: int) -> FetchRequest:
    """The same from version 13 on. Raises struct.error for a request shorter than one for one partition."""
    replica, start = (-1, pos) if version >= _WITHOUT_REPLICA else (_REPLICA.unpack_from(view, pos)[0], pos + 4)
    wait, least, most, isolation, session_id, session_epoch, topics, topic = _HEAD_13.unpack_from(view, start)
    count, index, epoch, offset, last_epoch, log_start, size_max, tags, more_tags, forgotten, rack, rest = (
        _PARTITION_12.unpack_from(view, start + _HEAD_13.size)
    )
    if topics == count == 2 and forgotten == rack == 1 and not tags and not more_tags and not rest:
        partition = _new(FetchPartition, (topic, index, epoch, offset, log_start, size_max, last_epoch))
        return _new(
            FetchRequest,
            (wait, least, most, isolation, session_id, session_epoch, [partition], [], "", replica, None, True),
        )
    return _parse_any(Reader(view, pos, max_entries), version)


def _parse_any(reader: Reader, version: int) -> FetchRequest:
    flexible, by_id = version >= _FLEXIBLE, version >= FIRST_WITH_TOPIC_ID
    replica = reader.i32() if version < _WITHOUT_REPLICA else -1
    wait, least, most, isolation = reader.i32(), reader.i32(), reader.i32(), reader.i8()
    session_id, session_epoch = (reader.i32(), reader.i32()) if version >= 7 else (0, -1)
    partitions: list[FetchPartition] = []
    for _ in range(reader.compact_array(3) if flexible else reader.array(6)):
        topic = _read_topic(reader, version)
        if flexible:
            _read_partitions(reader, topic, partitions)
            reader.skip_tags()
            continue
        for _ in range(reader.array(16)):
            index = reader.i32()
            epoch = reader.i32() if version >= 9 else -1
            offset = reader.i64()
            log_start = reader.i64() if version >= 5 else -1
            partitions.append(FetchPartition(topic, index, epoch, offset, log_start, reader.i32()))
    forgotten = _read_forgotten(reader, version) if version >= 7 else []
    rack_id, cluster_id = "", None
    if version >= 11:
        rack_id = reader.compact_string() if flexible else reader.string()
    if flexible:
        cluster_id, replica = _read_tags(reader, version, replica)
    wanted = partitions, forgotten, rack_id, replica, cluster_id, by_id
    return FetchRequest(wait, least, most, isolation, session_id, session_epoch, *wanted)


def _read_partitions(reader: Reader, topic: str | bytes, partitions: list[FetchPartition]) -> None:
    """The partitions of a topic, from version 12 on. A consumer may name a thousand of them in each request."""
    count = reader.compact_array(_MANY_12.size)
    view, pos, unpack = reader.view, reader.pos, _MANY_12.unpack_from
    for _ in range(count):
        try:
            index, epoch, offset, last_epoch, log_start, size_max, tags = unpack(view, pos)
        except struct.error:  # the tags of another partition have taken its bytes
            raise ProtocolError("the message ends inside a partition") from None
        pos += _MANY_12.size
        partitions.append(_new(FetchPartition, (topic, index, epoch, offset, log_start, size_max, last_epoch)))
        if tags:
            reader.pos = pos - 1
            reader.skip_tags()
            pos = reader.pos
    reader.pos = pos


def _read_topic(reader: Reader, version: int) -> str | bytes:
    if version >= FIRST_WITH_TOPIC_ID:
        return bytes(reader.take(16, "a topic id"))
    return reader.compact_string() if version >= _FLEXIBLE else reader.string()


def _read_forgotten(reader: Reader, version: int) -> list[tuple[str | bytes, int]]:
    flexible = version >= _FLEXIBLE
    forgotten: list[tuple[str | bytes, int]] = []
    for _ in range(reader.compact_array(3) if flexible else reader.array(6)):
        topic = _read_topic(reader, version)
        for _ in range(reader.compact_array(4) if flexible else reader.array(4)):
            forgotten.append((topic, reader.i32()))
        if flexible:
            reader.skip_tags()
    return forgotten


def _read_tags(reader: Reader, version: int, replica: int) -> tuple[str | None, int]:
    """The cluster's id and the replica's, which is ``replica`` unless a tagged field has it."""
    cluster_id: str | None = None
    for _ in range(reader.compact_tag_count()):
        tag = reader.uvarint()
        body = Reader(reader.take(reader.uvarint(), "a tagged field"))
        if tag == 0:
            cluster_id = body.compact_nullable_string()
        elif tag == 1 and version >= _WITHOUT_REPLICA:
            replica = body.i32()
            body.i64()  # its epoch
            body.skip_tags()
        else:
            continue
        if body.remaining:
            raise ProtocolError("a tagged field that is not as long as it says")
    return cluster_id, replica


def request(
    correlation_id: int,
    client_id: str | None,
    version: int,
    topic: str | UUID,
    partition: int,
    offset: int,
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int,
) -> bytes:
    """A whole request frame for one partition. ``topic`` is its id from version 13 on, before that its name."""
    flexible = version >= _FLEXIBLE
    out = Writer(bytearray(4))
    out.raw(request_header(ApiKey.FETCH, version, correlation_id, client_id))
    if version < 15:
        out.i32(-1)  # no replica
    out.i32(max_wait_ms)
    out.i32(min_bytes)
    out.i32(max_bytes)
    out.i8(isolation_level)
    if version >= 7:
        out.i32(0)  # no session
        out.i32(-1)  # and no new session
    out.any_array(1, flexible)
    if isinstance(topic, UUID):
        assert version >= FIRST_WITH_TOPIC_ID
        out.uuid(topic)
    else:
        assert version < FIRST_WITH_TOPIC_ID
        if flexible:
            out.compact_string(topic)
        else:
            out.string(topic)
    out.any_array(1, flexible)
    out.i32(partition)
    if version >= 9:
        out.i32(-1)  # any epoch of the leader
    out.i64(offset)
    if version >= 12:
        out.i32(-1)  # last fetched epoch: only replicas send it
    if version >= 5:
        out.i64(-1)  # log start offset: only replicas send it
    out.i32(max_bytes)
    if flexible:
        out.no_tags()
        out.no_tags()
        out.compact_array(0)
        out.compact_string("")  # rack
        out.no_tags()
    else:
        if version >= 7:
            out.array(0)
        if version >= 11:
            out.string("")
    out.data[:4] = (len(out.data) - 4).to_bytes(4, "big")
    return out.getvalue()


# -- response ---------------------------------------------------------------------------------------------------

# Frame length, correlation id, (v12) tags, throttle time, (v7) error and session id, one topic, length of its name.
_PREFIX_4 = struct.Struct(">iiiih")
_PREFIX_7 = struct.Struct(">iiihiih")
_PREFIX_12 = struct.Struct(">iiBihiBB")
_PREFIX_13 = struct.Struct(">iiBihiB16s")  # with the topic's id in place of its name
# One partition without aborted transactions: count, index, error, high watermark, last stable offset, (v5) log start,
# null or an empty array of transactions, (v11) no preferred replica, size of the records.
_DATA_4 = struct.Struct(">iihqqii")
_DATA_5 = struct.Struct(">iihqqqii")
_DATA_11 = struct.Struct(">iihqqqiii")
_DATA_12 = struct.Struct(">BihqqqBi")
_THREE_TAGS = b"\0\0\0"
# The length in a frame without the name, the records and, in v12, the varint of their size.
_LENGTH_4 = _PREFIX_4.size + _DATA_4.size - 4
_LENGTH_5 = _PREFIX_4.size + _DATA_5.size - 4
_LENGTH_7 = _PREFIX_7.size + _DATA_5.size - 4
_LENGTH_11 = _PREFIX_7.size + _DATA_11.size - 4
_LENGTH_12 = _PREFIX_12.size + _DATA_12.size + len(_THREE_TAGS) - 4
# A partition of many, without records, from v12 on: as above, with the number of aborted transactions and all tags.
_EMPTY_12 = struct.Struct(">ihqqqBiBB")
# A partition of many, with records: the same up to their size.
_MANY_DATA_12 = struct.Struct(">ihqqqBi")
_LENGTH_13 = _PREFIX_13.size + _DATA_12.size + len(_THREE_TAGS) - 4
_ABORTED = struct.Struct(">qq")  # an aborted transaction: producer id, first offset


def response_parts(
    correlation_id: int,
    version: int,
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[str | bytes, Sequence[PartitionData]]],
    hints: Hints | None = None,
) -> list[Any]:
    """The response frame as parts to send in order: bytes, and between them the partitions' own parts.

    ``topics`` are named as in the request: by name, or from version 13 on by the 16 bytes of the id. The first part begins with
    the length of the whole frame. ``hints``: from ``FIRST_WITH_LEADERS`` on.
    """
    if hints is not None:
        return _response_parts_any(correlation_id, version, throttle_ms, error, session_id, topics, hints)
    if len(topics) == 1 and len(topics[0][1]) == 1:
        topic, ((partition, code, high, stable, start, aborted, size, parts),) = topics[0]
        if aborted:
            return _response_parts_any(correlation_id, version, throttle_ms, error, session_id, topics)
        if isinstance(topic, bytes):
            count = 0 if aborted is None else 1
            size_varint = encode_uvarint(size + 1)
            total = size + len(size_varint) + _LENGTH_13
            head = (
                _PREFIX_13.pack(total, correlation_id, 0, throttle_ms, error, session_id, 2, topic)
                + _DATA_12.pack(2, partition, code, high, stable, start, count, -1)
                + size_varint
            )
            return [head, *parts, _THREE_TAGS] if size else [head + _THREE_TAGS]
        name = topic.encode()
        length = len(name)
        if length < 127:
            if version == 12:
                count = 0 if aborted is None else 1
                size_varint = encode_uvarint(size + 1)
                total = length + size + len(size_varint) + _LENGTH_12
                head = (
                    _PREFIX_12.pack(total, correlation_id, 0, throttle_ms, error, session_id, 2, length + 1)
                    + name
                    + _DATA_12.pack(2, partition, code, high, stable, start, count, -1)
                    + size_varint
                )
                return [head, *parts, _THREE_TAGS] if size else [head + _THREE_TAGS]
            count = -1 if aborted is None else 0
            if version >= 7:
                prefix = _PREFIX_7.pack
                if version == 11:
                    head = prefix(length + size + _LENGTH_11, correlation_id, throttle_ms, error, session_id, 1, length)
                    return [
                        head + name + _DATA_11.pack(1, partition, code, high, stable, start, count, -1, size),
                        *parts,
                    ]
                head = prefix(length + size + _LENGTH_7, correlation_id, throttle_ms, error, session_id, 1, length)
                return [head + name + _DATA_5.pack(1, partition, code, high, stable, start, count, size), *parts]
            if version >= 5:
                head = _PREFIX_4.pack(length + size + _LENGTH_5, correlation_id, throttle_ms, 1, length)
                return [head + name + _DATA_5.pack(1, partition, code, high, stable, start, count, size), *parts]
            head = _PREFIX_4.pack(length + size + _LENGTH_4, correlation_id, throttle_ms, 1, length)
            return [head + name + _DATA_4.pack(1, partition, code, high, stable, count, size), *parts]
    return _response_parts_any(correlation_id, version, throttle_ms, error, session_id, topics)


def _response_parts_any(
    correlation_id: int,
    version: int,
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[str | bytes, Sequence[PartitionData]]],
    hints: Hints | None = None,
) -> list[Any]:
    flexible = version >= _FLEXIBLE
    parts: list[Any] = []
    total = 0  # without the four bytes of the length
    out = Writer()
    out.i32(correlation_id)
    if flexible:
        out.no_tags()
    out.i32(throttle_ms)
    if version >= 7:
        out.i16(error)
        out.i32(session_id)
    out.any_array(len(topics), flexible)
    for topic, partitions in topics:
        if isinstance(topic, bytes):
            out.raw(topic)
        elif flexible:
            out.compact_string(topic)
        else:
            out.string(topic)
        out.any_array(len(partitions), flexible)
        for data in partitions:
            if flexible and not data.aborted:
                partition, code, high, stable, start, aborted, size, records = data
                count = 0 if aborted is None else 1
                if not size:
                    out.data += _EMPTY_12.pack(partition, code, high, stable, start, count, -1, 1, 0)
                    if hints is not None and (leader := hints.leaders.get((topic, partition))) is not None:
                        out.data[-1:] = leader_tag(1, leader)
                    continue
                fields = _MANY_DATA_12.pack(partition, code, high, stable, start, count, -1)
                head = b"".join((out.data, fields, encode_uvarint(size + 1)))
                total += len(head) + size
                parts.append(head)
                parts += records
                out = Writer(bytearray(1))  # with no tags
                continue
            _write_partition(out, version, data)
            if data.records_size:
                total += len(out.data) + data.records_size
                parts.append(bytes(out.data))
                parts.extend(data.records_parts)
                out = Writer()
            if flexible:
                out.no_tags()
        if flexible:
            out.no_tags()
    if flexible:
        out.data += b"\0" if hints is None else endpoints_tag(0, hints.endpoints)
    if out.data:
        total += len(out.data)
        parts.append(bytes(out.data))
    parts[0] = total.to_bytes(4, "big") + parts[0]
    return parts


def _write_partition(out: Writer, version: int, data: PartitionData) -> None:
    """A partition's fields up to its records."""
    flexible = version >= _FLEXIBLE
    out.i32(data.partition)
    out.i16(data.error)
    out.i64(data.high_watermark)
    out.i64(data.last_stable_offset)
    if version >= 5:
        out.i64(data.log_start_offset)
    if data.aborted is None:
        out.raw(b"\0" if flexible else b"\xff\xff\xff\xff")
    else:
        out.any_array(len(data.aborted), flexible)
        for producer_id, first_offset in data.aborted:
            out.i64(producer_id)
            out.i64(first_offset)
            if flexible:
                out.no_tags()
    if version >= 11:
        out.i32(-1)  # preferred read replica: there is only this node
    if flexible:
        out.uvarint(data.records_size + 1)
    else:
        out.i32(data.records_size)


def parse_response(frame: BytesLike, version: int) -> FetchResponse:
    """The response in a whole frame, length prefix included. Raises ProtocolError."""
    flexible = version >= _FLEXIBLE
    reader = Reader(frame, 4)
    correlation_id = reader.i32()
    if flexible:
        reader.skip_tags()
    throttle_ms = reader.i32()
    error = 0
    if version >= 7:
        error = reader.i16()
        reader.i32()  # session id
    partitions: list[FetchedPartition] = []
    for _ in range(reader.compact_array(3) if flexible else reader.array(6)):
        topic: str | UUID
        if version >= FIRST_WITH_TOPIC_ID:
            topic = reader.uuid()
        else:
            topic = reader.compact_string() if flexible else reader.string()
        for _ in range(reader.compact_array(26) if flexible else reader.array(30)):
            partitions.append(_read_partition(reader, version, flexible, topic))
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return FetchResponse(correlation_id, throttle_ms, error, partitions)


def _read_partition(reader: Reader, version: int, flexible: bool, topic: str | UUID) -> FetchedPartition:
    partition, error = reader.i32(), reader.i16()
    high_watermark, last_stable_offset = reader.i64(), reader.i64()
    log_start_offset = reader.i64() if version >= 5 else -1
    size = 17 if flexible else 16
    count = reader.compact_nullable_array(size) if flexible else reader.nullable_array(size)
    aborted = None if count is None else _read_aborted(reader, count, flexible)
    if version >= 11:
        reader.i32()  # preferred read replica
    records = reader.compact_nullable_bytes() if flexible else reader.nullable_bytes()
    if flexible:
        reader.skip_tags()
    return FetchedPartition(
        topic,
        partition,
        error,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        memoryview(b"") if records is None else records,
    )


def _read_aborted(reader: Reader, count: int, flexible: bool) -> list[tuple[int, int]]:
    aborted: list[tuple[int, int]] = []
    for _ in range(count):
        aborted.append(_ABORTED.unpack(reader.take(16, "an aborted transaction")))
        if flexible:
            reader.skip_tags()
    return aborted
