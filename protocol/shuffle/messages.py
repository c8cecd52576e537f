"""Flink's twelve messages: their encoders and parsers.

The bodies of BufferResponse and ErrorResponse are in ``buffer_response.py`` and ``errors.py``. A frame is always whole and has
its nine-byte header. Bytes after a message's last field are ignored, as in Flink's server. Numbers are checked as
in Flink's decoder. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

from protocol.errors import ProtocolError
from protocol.shuffle.errors import ErrorResponse, encode_error, parse_error
from protocol.shuffle.frame import HEADER_BYTES, MAGIC, frame_size
from protocol.shuffle.ids import Generation, IndexSet, ResultPartitionID
from protocol.wire import BytesLike

__all__ = [
    "AckAllUserRecordsProcessed",
    "ADD_CREDIT_BYTES",
    "AddCredit",
    "BacklogAnnouncement",
    "CancelPartitionRequest",
    "CloseRequest",
    "ErrorResponse",
    "Generation",
    "Message",
    "MessageId",
    "NewBufferSize",
    "PartitionRequest",
    "ResumeConsumption",
    "SegmentId",
    "TaskEventRequest",
    "add_credits_size",
    "encode",
    "encode_ack_all_user_records_processed",
    "encode_add_credit",
    "encode_backlog_announcement",
    "encode_cancel_partition_request",
    "encode_close_request",
    "encode_error",
    "encode_new_buffer_size",
    "encode_partition_request",
    "encode_resume_consumption",
    "encode_segment_id",
    "encode_task_event_request",
    "frame_size",
    "parse",
]


class MessageId(IntEnum):
    BUFFER_RESPONSE = 0
    ERROR_RESPONSE = 1
    PARTITION_REQUEST = 2
    TASK_EVENT_REQUEST = 3
    CANCEL_PARTITION_REQUEST = 4
    CLOSE_REQUEST = 5
    ADD_CREDIT = 6
    RESUME_CONSUMPTION = 7
    ACK_ALL_USER_RECORDS_PROCESSED = 8
    BACKLOG_ANNOUNCEMENT = 9
    NEW_BUFFER_SIZE = 10
    SEGMENT_ID = 11


class PartitionRequest(NamedTuple):
    """Requests these subpartitions for a receiver, which has ``credit`` buffers ready."""

    partition: ResultPartitionID
    subpartitions: IndexSet
    receiver: bytes
    credit: int


class TaskEventRequest(NamedTuple):
    """An event for the producer of ``partition``, in the encoding of ``events.py``."""

    event: bytes
    partition: ResultPartitionID
    receiver: bytes


class CancelPartitionRequest(NamedTuple):
    receiver: bytes


class CloseRequest(NamedTuple):
    """No receiver of this connection needs more: the server closes the connection."""


class AddCredit(NamedTuple):
    receiver: bytes
    credit: int


class ResumeConsumption(NamedTuple):
    receiver: bytes


class AckAllUserRecordsProcessed(NamedTuple):
    receiver: bytes


class BacklogAnnouncement(NamedTuple):
    receiver: bytes
    backlog: int


class NewBufferSize(NamedTuple):
    receiver: bytes
    buffer_size: int


class SegmentId(NamedTuple):
    receiver: bytes
    subpartition: int
    segment_id: int


Message = (
    PartitionRequest
    | TaskEventRequest
    | CancelPartitionRequest
    | CloseRequest
    | AddCredit
    | ResumeConsumption
    | AckAllUserRecordsProcessed
    | BacklogAnnouncement
    | NewBufferSize
    | SegmentId
    | ErrorResponse
)

# Whole frames: length, magic, id, body. 1.16 has the index of one subpartition where later generations have two.
_PARTITION_REQUEST_1_16 = struct.Struct(">iIB60si16si")
_PARTITION_REQUEST = struct.Struct(">iIB60sii16si")
_TASK_EVENT_HEAD = struct.Struct(">iIBi")
_TASK_EVENT_TAIL = struct.Struct(">60s16s")
_RECEIVER = struct.Struct(">iIB16s")
_INT_RECEIVER = struct.Struct(">iIBi16s")
_SEGMENT_ID = struct.Struct(">iIBii16s")
_CLOSE_REQUEST = struct.pack(">iIB", HEADER_BYTES, MAGIC, MessageId.CLOSE_REQUEST)

# The same without the header, to be read from offset 9.
_REQUEST_BODY_1_16 = struct.Struct(">60si16si")
_REQUEST_BODY = struct.Struct(">60sii16si")
_RECEIVER_BODY = struct.Struct(">16s")
_INT_RECEIVER_BODY = struct.Struct(">i16s")
_SEGMENT_ID_BODY = struct.Struct(">ii16s")
_I32 = struct.Struct(">i")

# A reader sends many AddCredit frames in a row, practically always of exactly this size.
ADD_CREDIT_BYTES = 29
_ADD_CREDIT_BODY_BYTES = ADD_CREDIT_BYTES - HEADER_BYTES
_ADD_CREDIT_HEAD = struct.pack(">iIB", ADD_CREDIT_BYTES, MAGIC, 6)
_ADD_CREDIT = struct.Struct(">9xi16s")

_V1_16 = Generation.V1_16
_new = tuple.__new__  # skips the generated __new__
_new_id = bytes.__new__  # skips the checks, which the caller has made


# -- writing ----------------------------------------------------------------------------------------------------


def encode_partition_request(
    generation: Generation, partition: bytes, subpartitions: IndexSet, receiver: bytes, credit: int
) -> bytes:
    """Raises ValueError for several subpartitions in a generation whose requests have only one."""
    start, end = subpartitions
    if generation is _V1_16:
        if start != end:
            raise ValueError(f"Flink {generation.value} has no request for a range of subpartitions")
        return _PARTITION_REQUEST_1_16.pack(93, MAGIC, 2, partition, start, receiver, credit)
    return _PARTITION_REQUEST.pack(97, MAGIC, 2, partition, start, end, receiver, credit)


def encode_task_event_request(event: BytesLike, partition: bytes, receiver: bytes) -> bytes:
    size = len(event)
    head = _TASK_EVENT_HEAD.pack(89 + size, MAGIC, 3, size)
    return b"".join((head, event, _TASK_EVENT_TAIL.pack(partition, receiver)))


def encode_cancel_partition_request(receiver: bytes) -> bytes:
    return _RECEIVER.pack(25, MAGIC, 4, receiver)


def encode_close_request() -> bytes:
    return _CLOSE_REQUEST


def encode_add_credit(receiver: bytes, credit: int) -> bytes:
    return _INT_RECEIVER.pack(29, MAGIC, 6, credit, receiver)


def encode_resume_consumption(receiver: bytes) -> bytes:
    return _RECEIVER.pack(25, MAGIC, 7, receiver)


def encode_ack_all_user_records_processed(receiver: bytes) -> bytes:
    return _RECEIVER.pack(25, MAGIC, 8, receiver)


def encode_backlog_announcement(receiver: bytes, backlog: int) -> bytes:
    return _INT_RECEIVER.pack(29, MAGIC, 9, backlog, receiver)


def encode_new_buffer_size(receiver: bytes, buffer_size: int) -> bytes:
    return _INT_RECEIVER.pack(29, MAGIC, 10, buffer_size, receiver)


def encode_segment_id(receiver: bytes, subpartition: int, segment_id: int) -> bytes:
    return _SEGMENT_ID.pack(33, MAGIC, 11, subpartition, segment_id, receiver)


def encode(message: Message, generation: Generation) -> bytes:
    """The frame of any message. Hot paths call the message's own function instead."""
    if isinstance(message, PartitionRequest):
        return encode_partition_request(generation, *message)
    return _ENCODERS[type(message)](*message)


_ENCODERS: dict[type, Callable[..., bytes]] = {
    TaskEventRequest: encode_task_event_request,
    CancelPartitionRequest: encode_cancel_partition_request,
    CloseRequest: encode_close_request,
    AddCredit: encode_add_credit,
    ResumeConsumption: encode_resume_consumption,
    AckAllUserRecordsProcessed: encode_ack_all_user_records_processed,
    BacklogAnnouncement: encode_backlog_announcement,
    NewBufferSize: encode_new_buffer_size,
    SegmentId: encode_segment_id,
    ErrorResponse: encode_error,
}


# -- reading ----------------------------------------------------------------------------------------------------


def parse(frame: BytesLike, generation: Generation) -> Message:
    """The message in a whole frame of either direction, except BufferResponse and writers' frames. Raises ProtocolError."""
    try:
        return _PARSERS[frame[8]](frame, generation)
    except struct.error:
        raise ProtocolError(f"a message {frame[8]} that ends too early, after {len(frame)} bytes") from None
    except IndexError:
        raise ProtocolError(
            f"no message has the id {frame[8]}" if len(frame) > 8 else "a frame without an id"
        ) from None


def _partition_request(frame: BytesLike, generation: Generation) -> Message:
    if generation is _V1_16:
        partition, start, receiver, credit = _REQUEST_BODY_1_16.unpack_from(frame, 9)
        end = start
    else:
        partition, start, end, receiver, credit = _REQUEST_BODY.unpack_from(frame, 9)
    if not 0 <= start <= end:
        raise ProtocolError(f"a request for subpartitions {start} to {end}")
    if credit < 0:
        raise ProtocolError(f"a request with a credit of {credit}")
    if partition[52] > 127 or partition[56] > 127:
        raise _negative_producer()
    return _new(
        PartitionRequest,
        (_new_id(ResultPartitionID, partition), _new(IndexSet, (start, end)), receiver, credit),
    )


def _negative_producer() -> ProtocolError:
    return ProtocolError("a partition id with a subtask index or an attempt number below 0")


def _task_event_request(frame: BytesLike, generation: Generation) -> Message:
    size = _I32.unpack_from(frame, 9)[0]
    if not 0 <= size <= len(frame) - 89:
        raise ProtocolError(f"a task event of {size} bytes in a frame of {len(frame)}")
    partition, receiver = _TASK_EVENT_TAIL.unpack_from(frame, 13 + size)
    if partition[52] > 127 or partition[56] > 127:
        raise _negative_producer()
    return TaskEventRequest(bytes(frame[13 : 13 + size]), _new_id(ResultPartitionID, partition), receiver)


def add_credits_size(data: memoryview, frames_max: int) -> int:
    """Bytes of the consecutive AddCredit frames at the beginning of ``data``, at most ``frames_max``. 0: there are none."""
    end = min(len(data) // ADD_CREDIT_BYTES, frames_max) * ADD_CREDIT_BYTES
    if end > ADD_CREDIT_BYTES:
        # Usually there are no other frames: then there are as many heads as fit, and no body between them is too long, so none is
        # too short.
        before, *bodies = bytes(data[:end]).split(_ADD_CREDIT_HEAD)
        if not before and len(bodies) * ADD_CREDIT_BYTES == end and len(max(bodies, key=len)) == _ADD_CREDIT_BODY_BYTES:
            return end
    size = 0
    while size < end and data[size : size + 9] == _ADD_CREDIT_HEAD:
        size += ADD_CREDIT_BYTES
    return size


def parse_add_credits(frames: memoryview) -> Iterator[tuple[int, bytes]]:
    """(credit, receiver) of each of these frames. The credit is not checked."""
    return _ADD_CREDIT.iter_unpack(frames)


def _cancel_partition_request(frame: BytesLike, generation: Generation) -> Message:
    return _new(CancelPartitionRequest, _RECEIVER_BODY.unpack_from(frame, 9))


def _close_request(frame: BytesLike, generation: Generation) -> Message:
    return CloseRequest()


def _add_credit(frame: BytesLike, generation: Generation) -> Message:
    credit, receiver = _INT_RECEIVER_BODY.unpack_from(frame, 9)
    if credit <= 0:
        raise ProtocolError(f"a credit of {credit} added")
    return _new(AddCredit, (receiver, credit))


def _resume_consumption(frame: BytesLike, generation: Generation) -> Message:
    return _new(ResumeConsumption, _RECEIVER_BODY.unpack_from(frame, 9))


def _ack_all_user_records_processed(frame: BytesLike, generation: Generation) -> Message:
    return _new(AckAllUserRecordsProcessed, _RECEIVER_BODY.unpack_from(frame, 9))


def _backlog_announcement(frame: BytesLike, generation: Generation) -> Message:
    backlog, receiver = _INT_RECEIVER_BODY.unpack_from(frame, 9)
    if backlog <= 0:
        raise ProtocolError(f"a backlog of {backlog} announced")
    return _new(BacklogAnnouncement, (receiver, backlog))


def _new_buffer_size(frame: BytesLike, generation: Generation) -> Message:
    buffer_size, receiver = _INT_RECEIVER_BODY.unpack_from(frame, 9)
    if buffer_size <= 0:
        raise ProtocolError(f"a new buffer size of {buffer_size}")
    return _new(NewBufferSize, (receiver, buffer_size))


def _segment_id(frame: BytesLike, generation: Generation) -> Message:
    subpartition, segment_id, receiver = _SEGMENT_ID_BODY.unpack_from(frame, 9)
    if segment_id <= 0:
        raise ProtocolError(f"a segment {segment_id} of subpartition {subpartition}")
    return _new(SegmentId, (receiver, subpartition, segment_id))


def _error_response(frame: BytesLike, generation: Generation) -> Message:
    return parse_error(memoryview(frame)[9:])


def _unexpected_buffer(frame: BytesLike, generation: Generation) -> Message:
    raise ProtocolError("a buffer where only messages are expected")


_PARSERS: tuple[Callable[[BytesLike, Generation], Message], ...] = (
    _unexpected_buffer,
    _error_response,
    _partition_request,
    _task_event_request,
    _cancel_partition_request,
    _close_request,
    _add_credit,
    _resume_consumption,
    _ack_all_user_records_processed,
    _backlog_announcement,
    _new_buffer_size,
    _segment_id,
)
