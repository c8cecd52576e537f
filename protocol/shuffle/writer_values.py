"""The messages of our writer extension, as values: written and read by ``writer_frames.py``, ruled by docs/PROTOCOLS.md."""

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
    BLOCKING = 1  # read when it is finished, as often as wanted


class PartitionState(IntEnum):
    """Of a partition in a PartitionList."""

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
    READERS_GONE = 10  # of their own will: nobody needs the rest of a pipelined partition
    FENCED = 11  # a newer opening under the same writer id has taken the partition over


NO_WRITER = bytes(16)
NO_HANDLE = -1
NO_INCARNATION = 0
DEFAULT_TTL = -1
# Of a task event that is for the producer of the whole partition.
ALL_SUBPARTITIONS = -1
# Flink's own bound is the number of key groups, 32768; each costs the broker memory before anything is written to it.
MAX_SUBPARTITIONS = 65536


# -- writer to broker -------------------------------------------------------------------------------------------


class OpenPartition(NamedTuple):
    """Begin a partition, or go on with it after a lost connection. Answered by PartitionOpened or WriterError.

    ``ttl_ms``: how long a finished one is kept, DEFAULT_TTL for the broker's setting. ``owner``: who pays (quota).

    The newest opening under a writer id fences the older ones. ``incarnation``: a number that a writer draws when it begins,
    the same on all its connections; NO_INCARNATION if it has none. ``resumes``: it had opened the partition before, and is
    refused if another incarnation has opened it since. ``attempt``: counts the openings of one incarnation. One that comes late,
    by a connection that the writer has given up already, is refused: it must not fence the one after it.
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
    """``payload`` lies in the frame it was parsed from."""

    handle: int
    subpartition: int
    sequence: int
    data_type: DataType
    compressed: bool
    payload: memoryview


class FinishPartition(NamedTuple):
    """All has been pushed. Answered by PartitionFinished when it is kept as safely as it will be."""

    handle: int


class FailPartition(NamedTuple):
    """The producer has failed: readers get a ProducerFailedException with ``message``."""

    handle: int
    message: str


class ReleasePartition(NamedTuple):
    """Forget a partition and free its space. ``correlation`` comes back in PartitionReleased."""

    correlation: int
    partition: ResultPartitionID


class ListPartitions(NamedTuple):
    """Those whose 120 hex digits begin with ``prefix``."""

    correlation: int
    prefix: str = ""


class CloseWriter(NamedTuple):
    """Let go of the handle without finishing; the partition may be opened again within its retention."""

    handle: int


class ReleaseDataSet(NamedTuple):
    """Forget all partitions whose ids begin with these 16 bytes, and let none be opened any more.

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
    """``next_sequences``: of each subpartition, the number that the broker expects next; all 0 for a new one."""

    writer: bytes
    handle: int
    credit: int
    next_sequences: tuple[int, ...]


class WriterCredit(NamedTuple):
    """``credit`` more pushes are welcome."""

    handle: int
    credit: int


class PushAcknowledged(NamedTuple):
    """Pairs of subpartition and the number expected next: all before it need not be kept for a resend any more."""

    handle: int
    next_sequences: tuple[tuple[int, int], ...]


class PartitionFinished(NamedTuple):
    handle: int


class WriterError(NamedTuple):
    """The partition of this handle (or, before there is one, of this writer) is of no more use to the writer.

    To a ReleasePartition, ListPartitions or ReleaseDataSet: neither writer nor handle.
    """

    writer: bytes
    handle: int
    code: WriterErrorCode
    message: str


class WriterTaskEvent(NamedTuple):
    """What a reader sent upstream (TaskEventRequest), for the producer."""

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
    """``partitions``: how many there were."""

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
