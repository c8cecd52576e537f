"""The payloads of event buffers (Flink's EventSerializer): a class for each event, ``encode`` and ``parse``.

Padding may follow an event, because producers send the whole array into which they serialized it: ``parse`` ignores it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

import attrs

from protocol.errors import ProtocolError
from protocol.shuffle import java_stream
from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import Generation
from protocol.wire import BytesLike, Reader, Writer

# Long.MAX_VALUE: the barrier stays aligned however long the alignment takes.
NO_TIMEOUT = (1 << 63) - 1
# An announcement holds an event, which may itself be an announcement.
_NESTING_MAX = 8

_E = TypeVar("_E", bound=IntEnum)


class Tag(IntEnum):
    END_OF_PARTITION = 0
    CHECKPOINT_BARRIER = 1
    END_OF_SUPERSTEP = 2
    OTHER = 3
    CANCEL_CHECKPOINT_MARKER = 4
    END_OF_OUTPUT_CHANNEL_STATE = 5
    EVENT_ANNOUNCEMENT = 6
    SUBTASK_CONNECTION_DESCRIPTOR = 7
    END_OF_DATA = 8
    END_OF_SEGMENT = 9
    RECOVERY_METADATA = 10
    WATERMARK = 11
    END_OF_INPUT_CHANNEL_STATE = 12


class SnapshotType(IntEnum):
    CHECKPOINT = 0
    SAVEPOINT = 1
    SAVEPOINT_SUSPEND = 2
    SAVEPOINT_TERMINATE = 3
    FULL_CHECKPOINT = 4

    @property
    def is_savepoint(self) -> bool:
        return 1 <= self <= 3


class SavepointFormat(IntEnum):
    CANONICAL = 0
    NATIVE = 1


class Alignment(IntEnum):
    AT_LEAST_ONCE = 0
    ALIGNED = 1
    UNALIGNED = 2
    FORCED_ALIGNED = 3


class StopMode(IntEnum):
    DRAIN = 0  # the job ends: windows are fired
    NO_DRAIN = 1  # it will continue from a savepoint


@attrs.frozen
class EndOfPartition:
    """The last event of a subpartition."""


@attrs.frozen
class CheckpointBarrier:
    """Everything before it belongs to checkpoint ``checkpoint_id``. ``location`` None: the job's default."""

    checkpoint_id: int
    timestamp_ms: int
    type: SnapshotType = SnapshotType.CHECKPOINT
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    location: bytes | None = None
    alignment: Alignment = Alignment.ALIGNED
    aligned_timeout_ms: int = NO_TIMEOUT

    @property
    def needs_alignment(self) -> bool:
        """The receiver stops reading this channel until the barrier has arrived on all other channels."""
        if self.alignment is Alignment.AT_LEAST_ONCE:
            return False
        return self.type.is_savepoint or self.alignment is not Alignment.UNALIGNED

    @property
    def is_timeoutable(self) -> bool:
        """It becomes unaligned when the alignment takes longer than ``aligned_timeout_ms``."""
        return self.alignment is Alignment.ALIGNED and 0 < self.aligned_timeout_ms < NO_TIMEOUT


@attrs.frozen
class EndOfSuperstep:
    pass


@attrs.frozen
class OtherEvent:
    """An event without its own tag: its class, and the bytes that the class wrote, padding included."""

    class_name: str
    data: bytes = b""


@attrs.frozen
class CancelCheckpointMarker:
    checkpoint_id: int


@attrs.frozen
class EndOfOutputChannelState:
    pass


@attrs.frozen
class EventAnnouncement:
    """``event`` will come with the sequence number ``sequence``."""

    sequence: int
    event: Event


@attrs.frozen
class SubtaskConnectionDescriptor:
    input_subtask: int
    output_subtask: int


@attrs.frozen
class EndOfData:
    """No more records; EndOfPartition follows."""

    mode: StopMode = StopMode.DRAIN


@attrs.frozen
class EndOfSegment:
    pass


@attrs.frozen
class RecoveryMetadata:
    final_subpartition: int


@attrs.frozen
class Watermark:
    """A generalized watermark (FLIP-467). The type of ``value``, int or bool, says how it is written."""

    name: str
    value: int | bool
    aligned: bool = False


@attrs.frozen
class EndOfInputChannelState:
    pass


@attrs.frozen
class UnknownEvent:
    """Bytes that are not an event of this generation, and the reason. It is never written."""

    data: bytes
    error: str


Event = (
    EndOfPartition
    | CheckpointBarrier
    | EndOfSuperstep
    | OtherEvent
    | CancelCheckpointMarker
    | EndOfOutputChannelState
    | EventAnnouncement
    | SubtaskConnectionDescriptor
    | EndOfData
    | EndOfSegment
    | RecoveryMetadata
    | Watermark
    | EndOfInputChannelState
)


def data_type_of(event: Event, priority: bool = False) -> DataType:
    """The type that Flink's EventSerializer gives the buffer of this event.

    Flink sets END_OF_SEGMENT and RECOVERY_METADATA elsewhere, if it uses them.
    """
    if priority:
        return DataType.PRIORITIZED_EVENT_BUFFER
    if isinstance(event, EndOfPartition):
        return DataType.END_OF_PARTITION
    if isinstance(event, EndOfData):
        return DataType.END_OF_DATA
    if isinstance(event, EndOfOutputChannelState):
        return DataType.RECOVERY_COMPLETION
    if isinstance(event, Watermark):
        return DataType.ALIGNED_WATERMARK_EVENT if event.aligned else DataType.UNALIGNED_WATERMARK_EVENT
    if isinstance(event, CheckpointBarrier) and event.needs_alignment:
        if event.is_timeoutable:
            return DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
        return DataType.ALIGNED_CHECKPOINT_BARRIER
    return DataType.EVENT_BUFFER


# -- writing ----------------------------------------------------------------------------------------------------


def encode(event: Event) -> bytes:
    """The event's bytes without padding. Raises ValueError for a number out of range."""
    out = Writer()
    try:
        _write(out, event)
    except struct.error as error:
        raise ValueError(f"{event} cannot be written: {error}") from None
    return out.getvalue()


def _write(out: Writer, event: Event) -> None:
    out.i32(_TAGS[type(event)])
    match event:
        case CheckpointBarrier():
            _write_barrier(out, event)
        case OtherEvent():
            out.raw(java_stream.encode_prefixed(event.class_name))
            out.raw(event.data)
        case CancelCheckpointMarker():
            out.i64(event.checkpoint_id)
        case EventAnnouncement():
            out.i32(event.sequence)
            _write(out, event.event)
        case SubtaskConnectionDescriptor():
            out.i32(event.input_subtask)
            out.i32(event.output_subtask)
        case EndOfData():
            out.u8(event.mode)
        case RecoveryMetadata():
            out.i32(event.final_subpartition)
        case Watermark():
            out.raw(java_stream.encode_prefixed(event.name))
            out.bool(event.aligned)
            if isinstance(event.value, bool):
                out.i32(1)
                out.bool(event.value)
            else:
                out.i32(0)
                out.i64(event.value)
        case _:
            pass  # it has only its tag


def _write_barrier(out: Writer, event: CheckpointBarrier) -> None:
    out.i64(event.checkpoint_id)
    out.i64(event.timestamp_ms)
    out.u8(event.type)
    if event.type.is_savepoint:
        out.u8(event.savepoint_format)
    out.nullable_bytes(event.location)
    out.u8(event.alignment)
    out.i64(event.aligned_timeout_ms)


_TAGS: dict[type, Tag] = {
    EndOfPartition: Tag.END_OF_PARTITION,
    CheckpointBarrier: Tag.CHECKPOINT_BARRIER,
    EndOfSuperstep: Tag.END_OF_SUPERSTEP,
    OtherEvent: Tag.OTHER,
    CancelCheckpointMarker: Tag.CANCEL_CHECKPOINT_MARKER,
    EndOfOutputChannelState: Tag.END_OF_OUTPUT_CHANNEL_STATE,
    EventAnnouncement: Tag.EVENT_ANNOUNCEMENT,
    SubtaskConnectionDescriptor: Tag.SUBTASK_CONNECTION_DESCRIPTOR,
    EndOfData: Tag.END_OF_DATA,
    EndOfSegment: Tag.END_OF_SEGMENT,
    RecoveryMetadata: Tag.RECOVERY_METADATA,
    Watermark: Tag.WATERMARK,
    EndOfInputChannelState: Tag.END_OF_INPUT_CHANNEL_STATE,
}


def exists_in(event: Event, generation: Generation) -> bool:
    """Whether a receiver of this generation can read the event."""
    inner = event.event if isinstance(event, EventAnnouncement) else event
    return _TAGS[type(inner)] <= generation.last_event_tag


# -- reading ----------------------------------------------------------------------------------------------------


def parse(data: BytesLike, generation: Generation = Generation.V2_0) -> Event:
    """The event at the beginning of ``data``. Raises ProtocolError."""
    return _read(Reader(data), generation.last_event_tag, 0)


def parse_or_keep(data: BytesLike, generation: Generation = Generation.V2_0) -> Event | UnknownEvent:
    """``parse`` for a receiver that can continue without the event."""
    try:
        return parse(data, generation)
    except ProtocolError as error:
        return UnknownEvent(bytes(data), str(error))


def _read(reader: Reader, last_tag: int, depth: int) -> Event:
    tag = reader.i32()
    if not 0 <= tag <= last_tag:
        raise ProtocolError(f"an event with the unknown tag {tag}")
    if tag == Tag.EVENT_ANNOUNCEMENT:
        if depth == _NESTING_MAX:
            raise ProtocolError(f"announcements of announcements, more than {_NESTING_MAX} deep")
        return EventAnnouncement(reader.i32(), _read(reader, last_tag, depth + 1))
    return _READERS[tag](reader)


def _member(of: type[_E], value: int) -> _E:
    try:
        return of(value)
    except ValueError:
        raise ProtocolError(f"{value} is no {of.__name__}") from None


def _read_barrier(reader: Reader) -> CheckpointBarrier:
    checkpoint_id, timestamp_ms = reader.i64(), reader.i64()
    kind = _member(SnapshotType, reader.u8())
    form = _member(SavepointFormat, reader.u8()) if kind.is_savepoint else SavepointFormat.CANONICAL
    location = reader.nullable_bytes()
    alignment = _member(Alignment, reader.u8())
    return CheckpointBarrier(
        checkpoint_id,
        timestamp_ms,
        kind,
        form,
        None if location is None else bytes(location),
        alignment,
        reader.i64(),
    )


def _read_watermark(reader: Reader) -> Watermark:
    name = java_stream.read_prefixed(reader)
    aligned = reader.bool()
    kind = reader.i32()
    if kind not in (0, 1):
        raise ProtocolError(f"a watermark of the unknown kind {kind}")
    return Watermark(name, reader.bool() if kind else reader.i64(), aligned)


def _read_other(reader: Reader) -> OtherEvent:
    name = java_stream.read_prefixed(reader)
    return OtherEvent(name, bytes(reader.take(reader.remaining)))


_READERS: dict[int, Callable[[Reader], Event]] = {
    Tag.END_OF_PARTITION: lambda _: EndOfPartition(),
    Tag.CHECKPOINT_BARRIER: _read_barrier,
    Tag.END_OF_SUPERSTEP: lambda _: EndOfSuperstep(),
    Tag.OTHER: _read_other,
    Tag.CANCEL_CHECKPOINT_MARKER: lambda reader: CancelCheckpointMarker(reader.i64()),
    Tag.END_OF_OUTPUT_CHANNEL_STATE: lambda _: EndOfOutputChannelState(),
    Tag.SUBTASK_CONNECTION_DESCRIPTOR: lambda reader: SubtaskConnectionDescriptor(reader.i32(), reader.i32()),
    Tag.END_OF_DATA: lambda reader: EndOfData(_member(StopMode, reader.u8())),
    Tag.END_OF_SEGMENT: lambda _: EndOfSegment(),
    Tag.RECOVERY_METADATA: lambda reader: RecoveryMetadata(reader.i32()),
    Tag.WATERMARK: _read_watermark,
    Tag.END_OF_INPUT_CHANNEL_STATE: lambda _: EndOfInputChannelState(),
}
