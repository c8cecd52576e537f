"""Buffer.DataType: the type of a buffer's content, with its ordinal on the wire and Flink's flags.

The tables are indexed by ordinal, so that a hot path need not convert its byte to an enum member.
"""

from __future__ import annotations

from enum import IntEnum

from protocol.shuffle.ids import Generation


class DataType(IntEnum):
    NONE = 0
    DATA_BUFFER = 1
    EVENT_BUFFER = 2
    PRIORITIZED_EVENT_BUFFER = 3
    ALIGNED_CHECKPOINT_BARRIER = 4
    TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER = 5
    RECOVERY_COMPLETION = 6
    END_OF_SEGMENT = 7
    DATA_BUFFER_WITH_CLEAR_END = 8
    END_OF_DATA = 9
    END_OF_PARTITION = 10
    RECOVERY_METADATA = 11
    ALIGNED_WATERMARK_EVENT = 12
    UNALIGNED_WATERMARK_EVENT = 13

    @property
    def is_buffer(self) -> bool:
        """It holds records: it takes a credit and may be compressed."""
        return IS_BUFFER[self]

    @property
    def is_event(self) -> bool:
        """It holds an event: it takes no credit, and is never compressed or empty."""
        return IS_EVENT[self]

    @property
    def has_priority(self) -> bool:
        """It overtakes data in the receiver's queue. On the wire it has the next sequence number, like any buffer."""
        return HAS_PRIORITY[self]

    @property
    def is_blocking_upstream(self) -> bool:
        """After it, the sender stops until ResumeConsumption; the backlog sent with it is 0."""
        return IS_BLOCKING_UPSTREAM[self]

    @property
    def requires_announcement(self) -> bool:
        return REQUIRES_ANNOUNCEMENT[self]

    @property
    def is_partial_record(self) -> bool:
        """Its last record may continue in the next buffer, so a union of subpartitions does not switch after it."""
        return IS_PARTIAL_RECORD[self]


def _flags(*types: DataType) -> tuple[bool, ...]:
    return tuple(data_type in types for data_type in DataType)


# Ordinal -> member; IndexError for an unknown ordinal.
DATA_TYPES = tuple(DataType)

IS_BUFFER = _flags(DataType.DATA_BUFFER, DataType.DATA_BUFFER_WITH_CLEAR_END)
# The same as a set of ordinals, for bytes that may not be an ordinal.
BUFFERS = frozenset(int(data_type) for data_type in DataType if IS_BUFFER[data_type])
IS_EVENT = tuple(
    data_type is not DataType.NONE and not is_buffer for data_type, is_buffer in zip(DataType, IS_BUFFER, strict=True)
)
HAS_PRIORITY = _flags(DataType.PRIORITIZED_EVENT_BUFFER)
IS_BLOCKING_UPSTREAM = _flags(
    DataType.ALIGNED_CHECKPOINT_BARRIER,
    DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
    DataType.RECOVERY_COMPLETION,
    DataType.ALIGNED_WATERMARK_EVENT,
)
REQUIRES_ANNOUNCEMENT = _flags(DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER)
IS_PARTIAL_RECORD = _flags(DataType.DATA_BUFFER)


def _as_known_by(last: int) -> tuple[DataType, ...]:
    return tuple(
        data_type if data_type <= last else (DataType.DATA_BUFFER if IS_BUFFER[data_type] else DataType.EVENT_BUFFER)
        for data_type in DataType
    )


# By ordinal, the type to send to a receiver of a generation: a type unknown to its oldest release becomes plain data or a
# plain event. For 1.16 that is from 7 on, because END_OF_SEGMENT (7) came with 1.18, in the middle of the generation.
AS_KNOWN_BY = {
    Generation.V1_16: _as_known_by(DataType.RECOVERY_COMPLETION),
    Generation.V1_19: _as_known_by(Generation.V1_19.last_data_type),
    Generation.V2_0: _as_known_by(Generation.V2_0.last_data_type),
}
