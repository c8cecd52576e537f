"""This project's extension of Flink's protocol: the frames by which a writer fills a result partition over the network.

Their frame header is that of Flink's messages, and their ids begin at 64: 64 to 79 from writer to broker, 80 to 95 from broker to
writer. docs/PROTOCOLS.md, chapter Shuffle, has the rules of their use. These concern both sides:

- A ``handle`` is the broker's number for an opened partition on this connection. A ``writer`` (16 random bytes) is the writer's
  id for it on all connections: a writer that reconnects opens the same partition under the same writer id.
- ``sequence`` counts the pushes of a subpartition from 0, data and events alike. The broker takes the number that it expects,
  ignores lower ones (a resend), and answers a higher one with ``SEQUENCE_GAP``.
- A push, data or event, new or resent, takes one credit. The credit in PartitionOpened is all that the writer has at first.
- Text is a u16 length and that many bytes of UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TypeVar

from protocol.errors import ProtocolError
from protocol.shuffle.data_type import DATA_TYPES, IS_EVENT
from protocol.shuffle.frame import HEADER, HEADER_BYTES, MAGIC
from protocol.shuffle.ids import DATA_SET_BYTES, PARTITION_ID_BYTES, ResultPartitionID
from protocol.shuffle.writer_values import (
    ALL_SUBPARTITIONS,
    DEFAULT_TTL,
    MAX_SUBPARTITIONS,
    NO_HANDLE,
    NO_INCARNATION,
    NO_WRITER,
    AllRecordsProcessed,
    BufferSizeHint,
    CloseWriter,
    DataSetReleased,
    FailPartition,
    FinishPartition,
    ListPartitions,
    OpenPartition,
    PartitionFinished,
    PartitionInfo,
    PartitionList,
    PartitionOpened,
    PartitionReleased,
    PartitionState,
    PartitionType,
    PushAcknowledged,
    PushBuffer,
    ReleaseDataSet,
    ReleasePartition,
    ServerFrame,
    WriterCredit,
    WriterError,
    WriterErrorCode,
    WriterFrame,
    WriterId,
    WriterTaskEvent,
)
from protocol.wire import BytesLike, Reader

__all__ = [
    "ALL_SUBPARTITIONS",
    "AllRecordsProcessed",
    "BufferSizeHint",
    "CloseWriter",
    "DEFAULT_TTL",
    "DataSetReleased",
    "FailPartition",
    "FinishPartition",
    "ListPartitions",
    "MAX_SUBPARTITIONS",
    "NO_HANDLE",
    "NO_INCARNATION",
    "NO_WRITER",
    "OpenPartition",
    "PUSH_HEADER_BYTES",
    "PartitionFinished",
    "PartitionInfo",
    "PartitionList",
    "PartitionOpened",
    "PartitionReleased",
    "PartitionState",
    "PartitionType",
    "PushAcknowledged",
    "PushBuffer",
    "ReleaseDataSet",
    "ReleasePartition",
    "ServerFrame",
    "WriterCredit",
    "WriterError",
    "WriterErrorCode",
    "WriterFrame",
    "WriterId",
    "WriterTaskEvent",
    "encode",
    "encode_all_records_processed",
    "encode_buffer_size_hint",
    "encode_close_writer",
    "encode_data_set_released",
    "encode_fail_partition",
    "encode_finish_partition",
    "encode_list_partitions",
    "encode_open_partition",
    "encode_partition_finished",
    "encode_partition_list",
    "encode_partition_opened",
    "encode_partition_released",
    "encode_push_acknowledged",
    "encode_push_buffer",
    "encode_release_data_set",
    "encode_release_partition",
    "encode_writer_credit",
    "encode_writer_error",
    "encode_writer_task_event",
    "parse",
    "parse_push",
    "parse_server",
    "push_header",
]

# -- writing ----------------------------------------------------------------------------------------------------

# The bodies; each begins at offset 9.
_OPEN = struct.Struct(">16s60siBq")
_INCARNATION = struct.Struct(">q?i")
_PUSH = struct.Struct(">iiiBBi")
_I32 = struct.Struct(">i")
_OPENED = struct.Struct(">16siii")
_TWO = struct.Struct(">ii")
_THREE = struct.Struct(">iii")
_ERROR = struct.Struct(">16sih")
_RELEASED = struct.Struct(">i?")
_RELEASE = struct.Struct(">i60s")
_RELEASE_DATA_SET = struct.Struct(">i16s")
_INFO = struct.Struct(">60sBBiqqi")

# Whole frames of frequent messages.
_PUSH_FRAME = struct.Struct(">iIBiiiB?i")
_TWO_FRAME = struct.Struct(">iIBii")
_ACK_ONE_FRAME = struct.Struct(">iIBiiii")

PUSH_HEADER_BYTES = _PUSH_FRAME.size
# A text's length is a u16; longer texts are cut.
_TEXT_BYTES_MAX = 65535

_new = tuple.__new__  # skips the generated __new__
_new_id = bytes.__new__


def _frame(frame_id: int, *parts: BytesLike) -> bytes:
    size = HEADER_BYTES + sum(map(len, parts))
    return b"".join((HEADER.pack(size, MAGIC, frame_id), *parts))


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8", "replace")
    if len(encoded) > _TEXT_BYTES_MAX:
        encoded = encoded[:_TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()
    return len(encoded).to_bytes(2, "big") + encoded


def encode_open_partition(
    writer: bytes,
    partition: bytes,
    subpartitions: int,
    type: int,
    ttl_ms: int = DEFAULT_TTL,
    owner: str = "",
    incarnation: int = NO_INCARNATION,
    resumes: bool = False,
    attempt: int = 0,
) -> bytes:
    """Without incarnation, resumption and attempt, the frame is that of older writers, which did not have them."""
    is_named = incarnation != NO_INCARNATION or resumes or attempt
    named = _INCARNATION.pack(incarnation, resumes, attempt) if is_named else b""
    return _frame(64, _OPEN.pack(writer, partition, subpartitions, type, ttl_ms), _text(owner), named)


def push_header(handle: int, subpartition: int, sequence: int, data_type: int, compressed: bool, size: int) -> bytes:
    """A PushBuffer without its payload, which is sent immediately after it."""
    return _PUSH_FRAME.pack(27 + size, MAGIC, 65, handle, subpartition, sequence, data_type, compressed, size)


def encode_push_buffer(
    handle: int, subpartition: int, sequence: int, data_type: int, compressed: bool, payload: BytesLike
) -> bytes:
    return b"".join((push_header(handle, subpartition, sequence, data_type, compressed, len(payload)), payload))


def encode_finish_partition(handle: int) -> bytes:
    return _frame(66, _I32.pack(handle))


def encode_fail_partition(handle: int, message: str) -> bytes:
    return _frame(67, _I32.pack(handle), _text(message))


def encode_release_partition(correlation: int, partition: bytes) -> bytes:
    return _frame(68, _RELEASE.pack(correlation, partition))


def encode_list_partitions(correlation: int, prefix: str = "") -> bytes:
    return _frame(69, _I32.pack(correlation), _text(prefix))


def encode_close_writer(handle: int) -> bytes:
    return _frame(70, _I32.pack(handle))


def encode_release_data_set(correlation: int, data_set: bytes) -> bytes:
    return _frame(71, _RELEASE_DATA_SET.pack(correlation, data_set))


def encode_partition_opened(writer: bytes, handle: int, credit: int, next_sequences: Iterable[int]) -> bytes:
    numbers = tuple(next_sequences)
    count = len(numbers)
    return _frame(80, _OPENED.pack(writer, handle, credit, count), struct.pack(f">{count}i", *numbers))


def encode_writer_credit(handle: int, credit: int) -> bytes:
    return _TWO_FRAME.pack(17, MAGIC, 81, handle, credit)


def encode_push_acknowledged(handle: int, next_sequences: Iterable[tuple[int, int]]) -> bytes:
    pairs = tuple(next_sequences)
    if len(pairs) == 1:
        subpartition, sequence = pairs[0]
        return _ACK_ONE_FRAME.pack(25, MAGIC, 82, handle, 1, subpartition, sequence)
    return _frame(82, _TWO.pack(handle, len(pairs)), *(_TWO.pack(*pair) for pair in pairs))


def encode_partition_finished(handle: int) -> bytes:
    return _frame(83, _I32.pack(handle))


def encode_writer_error(writer: bytes, handle: int, code: int, message: str) -> bytes:
    return _frame(84, _ERROR.pack(writer, handle, code), _text(message))


def encode_writer_task_event(handle: int, subpartition: int, event: BytesLike) -> bytes:
    return _frame(85, _THREE.pack(handle, subpartition, len(event)), event)


def encode_partition_released(correlation: int, existed: bool) -> bytes:
    return _frame(86, _RELEASED.pack(correlation, existed))


def encode_partition_list(correlation: int, partitions: Iterable[PartitionInfo]) -> bytes:
    rows = [_INFO.pack(*row) for row in partitions]
    return _frame(87, _TWO.pack(correlation, len(rows)), *rows)


def encode_buffer_size_hint(handle: int, subpartition: int, size: int) -> bytes:
    return _frame(88, _THREE.pack(handle, subpartition, size))


def encode_all_records_processed(handle: int, subpartition: int) -> bytes:
    return _frame(89, _TWO.pack(handle, subpartition))


def encode_data_set_released(correlation: int, partitions: int) -> bytes:
    return _frame(90, _TWO.pack(correlation, partitions))


_ENCODERS: dict[type, Callable[..., bytes]] = {
    OpenPartition: encode_open_partition,
    PushBuffer: encode_push_buffer,
    FinishPartition: encode_finish_partition,
    FailPartition: encode_fail_partition,
    ReleasePartition: encode_release_partition,
    ListPartitions: encode_list_partitions,
    CloseWriter: encode_close_writer,
    ReleaseDataSet: encode_release_data_set,
    PartitionOpened: encode_partition_opened,
    WriterCredit: encode_writer_credit,
    PushAcknowledged: encode_push_acknowledged,
    PartitionFinished: encode_partition_finished,
    WriterError: encode_writer_error,
    WriterTaskEvent: encode_writer_task_event,
    PartitionReleased: encode_partition_released,
    PartitionList: encode_partition_list,
    BufferSizeHint: encode_buffer_size_hint,
    AllRecordsProcessed: encode_all_records_processed,
    DataSetReleased: encode_data_set_released,
}


def encode(message: WriterFrame | ServerFrame) -> bytes:
    """The frame of any message. Hot paths call the message's own function instead."""
    return _ENCODERS[type(message)](*message)


# -- reading ----------------------------------------------------------------------------------------------------

_T = TypeVar("_T")


def parse(frame: memoryview) -> WriterFrame:
    """A writer's message in a whole frame. Raises ProtocolError."""
    if len(frame) > 8 and frame[8] == 65:
        return parse_push(frame)
    return _parse(frame, _WRITER_PARSERS)


def parse_server(frame: memoryview) -> ServerFrame:
    """A broker's message in a whole frame. Raises ProtocolError."""
    return _parse(frame, _SERVER_PARSERS)


def parse_push(frame: memoryview) -> PushBuffer:
    """A PushBuffer; the caller has checked the frame's id. Its payload is the rest of the frame after the header."""
    try:
        handle, subpartition, sequence, data_type, compressed, size = _PUSH.unpack_from(frame, 9)
        member = DATA_TYPES[data_type]
    except struct.error:
        raise ProtocolError("a pushed buffer whose header ends too early") from None
    except IndexError:
        raise ProtocolError(f"a pushed buffer of the unknown type {data_type}") from None
    if size != len(frame) - 27:
        raise ProtocolError(f"a pushed buffer of {size} bytes in a frame of {len(frame)}")
    if sequence < 0 or subpartition < 0:
        raise ProtocolError(f"a pushed buffer {sequence} for subpartition {subpartition}")
    if data_type == 0 or (size == 0 and IS_EVENT[data_type]):
        raise ProtocolError(f"a pushed buffer of {size} bytes and the type {member.name}")
    return _new(PushBuffer, (handle, subpartition, sequence, member, compressed != 0, frame[27:]))


def _parse(frame: memoryview, parsers: dict[int, Callable[[Reader], _T]]) -> _T:
    parser = parsers.get(frame[8]) if len(frame) > 8 else None
    if parser is None:
        raise ProtocolError(f"no writer's message begins with {bytes(frame[:9]).hex()}")
    return parser(Reader(frame, HEADER_BYTES))


def _read_text(reader: Reader) -> str:
    try:
        return str(reader.take(reader.u16(), "a text"), "utf-8")
    except UnicodeDecodeError:
        raise ProtocolError("a text that is not UTF-8") from None


def _read_id(reader: Reader) -> ResultPartitionID:
    data = reader.take(PARTITION_ID_BYTES, "a partition id")
    if data[52] > 127 or data[56] > 127:
        raise ProtocolError("a partition id with a subtask index or an attempt number below 0")
    return _new_id(ResultPartitionID, data)


_E = TypeVar("_E", bound=IntEnum)


def _member(of: type[_E], value: int) -> _E:
    try:
        return of(value)
    except ValueError:
        raise ProtocolError(f"{value} is no {of.__name__}") from None


def _open_partition(reader: Reader) -> OpenPartition:
    writer = bytes(reader.take(16, "a writer id"))
    partition = _read_id(reader)
    subpartitions = reader.i32()
    if not 1 <= subpartitions <= MAX_SUBPARTITIONS:
        raise ProtocolError(f"a partition of {subpartitions} subpartitions: 1 to {MAX_SUBPARTITIONS} are served")
    kind = _member(PartitionType, reader.u8())
    ttl_ms = reader.i64()
    if ttl_ms < DEFAULT_TTL:
        raise ProtocolError(f"a time to live of {ttl_ms} ms")
    owner = _read_text(reader)
    named = (reader.i64(), reader.bool(), reader.i32()) if reader.remaining else (NO_INCARNATION, False, 0)
    return OpenPartition(writer, partition, subpartitions, kind, ttl_ms, owner, *named)


def _partition_opened(reader: Reader) -> PartitionOpened:
    writer = bytes(reader.take(16, "a writer id"))
    handle, credit = reader.i32(), reader.i32()
    count = reader.array(4)
    return PartitionOpened(writer, handle, credit, struct.unpack(f">{count}i", reader.take(4 * count)))


def _push_acknowledged(reader: Reader) -> PushAcknowledged:
    handle = reader.i32()
    count = reader.array(8)
    return PushAcknowledged(handle, tuple(_TWO.iter_unpack(reader.take(8 * count))))


def _writer_error(reader: Reader) -> WriterError:
    writer = bytes(reader.take(16, "a writer id"))
    handle = reader.i32()
    return WriterError(writer, handle, _member(WriterErrorCode, reader.i16()), _read_text(reader))


def _partition_list(reader: Reader) -> PartitionList:
    correlation = reader.i32()
    rows = [_partition_info(reader) for _ in range(reader.array(_INFO.size))]
    return PartitionList(correlation, tuple(rows))


def _partition_info(reader: Reader) -> PartitionInfo:
    partition = _read_id(reader)
    kind, state = _member(PartitionType, reader.u8()), _member(PartitionState, reader.u8())
    return PartitionInfo(partition, kind, state, reader.i32(), reader.i64(), reader.i64(), reader.i32())


_WRITER_PARSERS: dict[int, Callable[[Reader], WriterFrame]] = {
    64: _open_partition,
    66: lambda reader: FinishPartition(reader.i32()),
    67: lambda reader: FailPartition(reader.i32(), _read_text(reader)),
    68: lambda reader: ReleasePartition(reader.i32(), _read_id(reader)),
    69: lambda reader: ListPartitions(reader.i32(), _read_text(reader)),
    70: lambda reader: CloseWriter(reader.i32()),
    71: lambda reader: ReleaseDataSet(reader.i32(), bytes(reader.take(DATA_SET_BYTES, "a data set id"))),
}

_SERVER_PARSERS: dict[int, Callable[[Reader], ServerFrame]] = {
    80: _partition_opened,
    81: lambda reader: WriterCredit(reader.i32(), reader.i32()),
    82: _push_acknowledged,
    83: lambda reader: PartitionFinished(reader.i32()),
    84: _writer_error,
    85: lambda reader: WriterTaskEvent(reader.i32(), reader.i32(), bytes(reader.bytes())),
    86: lambda reader: PartitionReleased(reader.i32(), reader.bool()),
    87: _partition_list,
    88: lambda reader: BufferSizeHint(reader.i32(), reader.i32(), reader.i32()),
    89: lambda reader: AllRecordsProcessed(reader.i32(), reader.i32()),
    90: lambda reader: DataSetReleased(reader.i32(), reader.i32()),
}
