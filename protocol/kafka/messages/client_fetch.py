"""Fetch as a client speaks it, versions 4 to 17: a request for one partition, and the answer with its records left in place.

One partition a request: a reader that wants to be fast has a connection for each. From version 13 on topics go by their id.
No fetch sessions: they save bytes where a request names many partitions.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from uuid import UUID

from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.messages.headers import request_header
from protocol.kafka.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, SMALLEST_BATCH_LENGTH
from protocol.wire import BytesLike, Reader, Writer

MIN_VERSION, MAX_VERSION = 4, 17
# From here on a topic's id stands in place of its name.
FIRST_WITH_TOPIC_ID = 13

_FLEXIBLE = 12
_TRANSACTION = struct.Struct(">qq")


class FetchedPartition(NamedTuple):
    """``topic`` is the name, or from version 13 on the id. ``aborted`` are (producer id, first offset); None: not asked for.

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
    """A whole request frame. ``topic`` must be its id from version 13 on, its name before."""
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
        out.i32(0)  # no session,
        out.i32(-1)  # and none wanted
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
        out.i32(-1)  # whatever the leader's epoch is
    out.i64(offset)
    if version >= 12:
        out.i32(-1)  # last fetched epoch: replicas send it
    if version >= 5:
        out.i64(-1)  # log start offset: replicas, too
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


def parse_response(frame: BytesLike, version: int) -> FetchResponse:
    """What a whole response frame (its length included) says. Raises ProtocolError."""
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
            partitions.append(_partition(reader, version, flexible, topic))
        if flexible:
            reader.skip_tags()
    if flexible:
        reader.skip_tags()
    return FetchResponse(correlation_id, throttle_ms, error, partitions)


def _partition(reader: Reader, version: int, flexible: bool, topic: str | UUID) -> FetchedPartition:
    partition, error = reader.i32(), reader.i16()
    high_watermark, last_stable_offset = reader.i64(), reader.i64()
    log_start_offset = reader.i64() if version >= 5 else -1
    size = 17 if flexible else 16
    count = reader.compact_nullable_array(size) if flexible else reader.nullable_array(size)
    aborted = None if count is None else _transactions(reader, count, flexible)
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


def _transactions(reader: Reader, count: int, flexible: bool) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for _ in range(count):
        found.append(_TRANSACTION.unpack(reader.take(16, "an aborted transaction")))
        if flexible:
            reader.skip_tags()
    return found


# -- walking batches --------------------------------------------------------------------------------------------

# Of a batch's header only what is needed to go on to the next one: a fetch may hold thousands of small ones.
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_MAGIC_AT, _LAST_OFFSET_DELTA_AT = 16, 23


def whole_batches(records: memoryview) -> tuple[int, int]:
    """Bytes of ``records`` that whole batches take, and the offset after the last of them (-1: there is none).

    Brokers may cut the last batch off anywhere. Raises ProtocolError for what is no batch of format v2.
    """
    position, size = 0, len(records)
    last = -1
    read = _OFFSET_AND_LENGTH.unpack_from
    while size - position >= HEADER_SIZE:
        _, length = read(records, position)
        if length < SMALLEST_BATCH_LENGTH:
            raise ProtocolError(f"a record batch of {length} bytes")
        if records[position + _MAGIC_AT] != MAGIC:
            raise ProtocolError(f"a record batch of format {records[position + _MAGIC_AT]}, only format 2 is read")
        after = position + LOG_OVERHEAD + length
        if after > size:
            break
        last, position = position, after
    if last < 0:
        return 0, -1
    base_offset, _ = read(records, last)
    (delta,) = _LAST_OFFSET_DELTA.unpack_from(records, last + _LAST_OFFSET_DELTA_AT)
    if delta < 0 or base_offset < 0:
        raise ProtocolError(f"a record batch from offset {base_offset} that ends {delta} further on")
    return position, base_offset + delta + 1
