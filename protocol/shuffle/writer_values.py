"""The messages of the writer extension as values. ``writer_frames.py`` writes and reads them; docs/PROTOCOLS.md has the rules.

Tests: tests/protocol/shuffle/test_writer_frames.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from protocol.shuffle.data_type import DataType
from protocol.shuffle.ids import ResultPartitionID


class WriterId(IntEnum):
    """Frame ids."""

    OPEN_PARTITION = 64
    PUSH_BUFFER = 65
    FINISH_PARTITION = 66
    FAIL_PARTITION = 67
    RELEASE_PARTITION = 68
    LIST_PARTITIONS = 69
    CLOSE_WRITER = 70
    RELEASE_DATA_SET = 71
    PARTITION_OPENED = 80
    WRITER_CREDIT = 81
    PUSH_ACKNOWLEDGED = 82
    PARTITION_FINISHED = 83
    WRITER_ERROR = 84
    WRITER_TASK_EVENT = 85
    PARTITION_RELEASED = 86
    PARTITION_LIST = 87
    BUFFER_SIZE_HINT = 88
    ALL_RECORDS_PROCESSED = 89
    DATA_SET_RELEASED = 90


class PartitionType(IntEnum):
    PIPELINED = 0  # bounded, read once while it is written
    BLOCKING = 1  # read after it is finished, any number of times


class PartitionState(IntEnum):
    """The state of a partition in a PartitionList."""

    OPEN = 0
    FINISHED = 1
    FAILED = 2
    RELEASED = 3


class WriterErrorCode(IntEnum):
    UNKNOWN_PARTITION = 1
    EXISTS_WITH_OTHER_SHAPE = 2
    ANOTHER_ATTEMPT_WON = 3
    QUOTA_EXCEEDED = 4
    SEQUENCE_GAP = 5
    RELEASED = 6
    BAD_REQUEST = 7
    STORAGE_ERROR = 8
    FINISHED_ALREADY = 9
    READERS_GONE = 10  # all readers of a pipelined partition have cancelled: the rest is not needed
    FENCED = 11  # a newer opening under the same writer id has taken the partition over
    NOT_AUTHORIZED = 12  # the client may not write partitions of this owner


NO_WRITER = bytes(16)
NO_HANDLE = -1
NO_INCARNATION = 0
DEFAULT_TTL = -1
# The subpartition of a task event for the producer of the whole partition.
ALL_SUBPARTITIONS = -1
# Flink's own bound is the number of key groups, 32768; each costs the broker memory before a byte is written.
MAX_SUBPARTITIONS = 65536


# -- writer to broker -------------------------------------------------------------------------------------------


class OpenPartition(NamedTuple):
    """Begin a partition, or continue it after a lost connection. Answered by PartitionOpened or WriterError.

    ``ttl_ms``: how long a finished partition is kept; DEFAULT_TTL for the broker's setting. ``owner``: whose quota pays.

    The newest opening under a writer id fences the older ones. ``incarnation``: a number that a writer draws when it begins, the
    same on all its connections; NO_INCARNATION if it has none. ``resumes``: the writer had opened the partition before; it is
    refused if another incarnation has opened it since. ``attempt``: counts the openings of an incarnation. A late opening, on a
    connection that the writer has already given up, is refused, because it must not fence the following opening.
    """

    writer: bytes
    partition: ResultPartitionID
    subpartitions: int
    type: PartitionType
    ttl_ms: int = DEFAULT_TTL
    owner: str = ""
    incarnation: int = NO_INCARNATION
    resumes: bool = False
    attempt: int = 0


class PushBuffer(NamedTuple):
    """``payload`` is a view into the parsed frame."""

    handle: int
    subpartition: int
    sequence: int
    data_type: DataType
    compressed: bool
    payload: memoryview


class FinishPartition(NamedTuple):
    """The writer has pushed everything. Answered by PartitionFinished once the partition is complete, and on disk if BLOCKING."""

    handle: int


class FailPartition(NamedTuple):
    """The producer has failed: readers get a ProducerFailedException with ``message``."""

    handle: int
    message: str


class ReleasePartition(NamedTuple):
    """Drop a partition and free its space. ``correlation`` comes back in PartitionReleased."""

    correlation: int
    partition: ResultPartitionID


class ListPartitions(NamedTuple):
    """Ask for the partitions whose 120 hex digits begin with ``prefix``."""

    correlation: int
    prefix: str = ""


class CloseWriter(NamedTuple):
    """Give up the handle without finishing; the partition may be reopened within its retention."""

    handle: int


class ReleaseDataSet(NamedTuple):
    """Drop all partitions whose ids begin with these 16 bytes, and refuse to open more.

    ``correlation`` comes back in DataSetReleased.
    """

    correlation: int
    data_set: bytes


WriterFrame = (
    OpenPartition
    | PushBuffer
    | FinishPartition
    | FailPartition
    | ReleasePartition
    | ListPartitions
    | CloseWriter
    | ReleaseDataSet
)

# -- broker to writer -------------------------------------------------------------------------------------------


class PartitionOpened(NamedTuple):
    """``next_sequences``: the number that the broker expects next in each subpartition; all 0 in a new partition."""

    writer: bytes
    handle: int
    credit: int
    next_sequences: tuple[int, ...]


class WriterCredit(NamedTuple):
    """The writer may push ``credit`` more buffers."""

    handle: int
    credit: int


class PushAcknowledged(NamedTuple):
    """Pairs of subpartition and the number expected next: the writer need not keep earlier pushes for a resend."""

    handle: int
    next_sequences: tuple[tuple[int, int], ...]


class PartitionFinished(NamedTuple):
    handle: int


class WriterError(NamedTuple):
    """The writer cannot continue the partition of this handle, or, before it has a handle, the partition that it was opening.

    In answer to a ReleasePartition, ListPartitions or ReleaseDataSet there is neither writer nor handle.
    """

    writer: bytes
    handle: int
    code: WriterErrorCode
    message: str


class WriterTaskEvent(NamedTuple):
    """An event for the producer that a reader sent upstream (TaskEventRequest)."""

    handle: int
    subpartition: int
    event: bytes


class PartitionReleased(NamedTuple):
    correlation: int
    existed: bool


class PartitionInfo(NamedTuple):
    partition: ResultPartitionID
    type: PartitionType
    state: PartitionState
    subpartitions: int
    bytes: int
    buffers: int
    readers: int


class PartitionList(NamedTuple):
    correlation: int
    partitions: tuple[PartitionInfo, ...]


class BufferSizeHint(NamedTuple):
    """A reader asks for buffers of this size from now on (NewBufferSize)."""

    handle: int
    subpartition: int
    size: int


class AllRecordsProcessed(NamedTuple):
    """The readers of this subpartition have processed all user records (AckAllUserRecordsProcessed). Sent once for each."""

    handle: int
    subpartition: int


class DataSetReleased(NamedTuple):
    """``partitions``: how many were released."""

    correlation: int
    partitions: int


ServerFrame = (
    PartitionOpened
    | WriterCredit
    | PushAcknowledged
    | PartitionFinished
    | WriterError
    | WriterTaskEvent
    | PartitionReleased
    | PartitionList
    | BufferSizeHint
    | AllRecordsProcessed
    | DataSetReleased
)
