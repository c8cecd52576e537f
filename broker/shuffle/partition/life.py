"""The life of a result partition, as one table.

``ResultPartition.life`` holds the state; it is guarded by the partition's lock.

OPEN: a writer may open the partition and push to it. FINISHING: its writer has pushed everything; a BLOCKING partition is being
stored. FINISHED: it is complete, and durable if it is BLOCKING. FAILED: the producer has failed, and readers get that error. The
other three are final, and the data is dropped: RELEASED by a request, by its time to live, by another attempt that has won, or
because a reader was lost; CANCELLED because all readers cancelled before they had everything; CONSUMED because they had read
everything.

A partition on disk at the broker's start goes from OPEN to FINISHED at once. A pair that is not in the table is a bug in the
broker (AssertionError).
"""

from enum import IntEnum

from broker.transitions import Transitions
from protocol.shuffle.writer_frames import PartitionState


class LifeState(IntEnum):
    OPEN = 0
    FINISHING = 1
    FINISHED = 2
    FAILED = 3
    RELEASED = 4
    CANCELLED = 5
    CONSUMED = 6


class LifeEvent(IntEnum):
    FINISH_REQUESTED = 0
    STORED = 1
    PRODUCER_FAILED = 2
    RELEASE_REQUESTED = 3
    READERS_LEFT = 4
    READ_TO_END = 5


TABLE = Transitions(
    LifeState,
    LifeEvent,
    """
    OPEN       FINISH_REQUESTED   FINISHING
    OPEN       STORED             FINISHED
    OPEN       PRODUCER_FAILED    FAILED
    OPEN       RELEASE_REQUESTED  RELEASED
    OPEN       READERS_LEFT       CANCELLED
    OPEN       READ_TO_END        CONSUMED
    FINISHING  STORED             FINISHED
    FINISHING  PRODUCER_FAILED    FAILED
    FINISHING  RELEASE_REQUESTED  RELEASED
    FINISHING  READERS_LEFT       CANCELLED
    FINISHING  READ_TO_END        CONSUMED
    FINISHED   PRODUCER_FAILED    FAILED
    FINISHED   RELEASE_REQUESTED  RELEASED
    FINISHED   READERS_LEFT       CANCELLED
    FINISHED   READ_TO_END        CONSUMED
    FAILED     RELEASE_REQUESTED  RELEASED
    FAILED     READERS_LEFT       CANCELLED
    FAILED     READ_TO_END        CONSUMED
    """,
)
next_state = TABLE.next

# Each state's name in the writer protocol.
WIRE_STATE: list[PartitionState] = [
    PartitionState.OPEN,
    PartitionState.OPEN,
    PartitionState.FINISHED,
    PartitionState.FAILED,
    PartitionState.RELEASED,
    PartitionState.RELEASED,
    PartitionState.RELEASED,
]
