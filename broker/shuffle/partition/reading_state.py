"""The state of a subpartition with regard to its reader, as one table.

``Subpartition.reading`` holds the state; it is guarded by the partition's lock. Only subpartitions of PIPELINED partitions leave
UNREAD: each can be read once, by one reader. BLOCKING partitions are read any number of times, and their subpartitions do not
know their readers.

READING: it has a reader, and every buffer is kept. CONSUMING: it has a reader, and sent buffers are dropped, so no other reader
can start over. LOST: the reader's connection was lost; every buffer is kept, and another reader may start over. LOST_AT_END:
the same, after everything had been sent: if no other reader comes, the lost reader may have received everything. ABANDONED: it
has no reader and cannot get one; pushes to it are counted but not kept.

A reader of a range claims its subpartitions in steps. If it leaves before it has claimed all of them, the rest are UNREAD, LOST
or LOST_AT_END, and get READER_LEFT or READER_LOST as well, because they were requested. A pair that is not in the table is a bug
in the broker (AssertionError).
"""

from enum import IntEnum

from broker.transitions import Transitions


class ReadingState(IntEnum):
    UNREAD = 0
    READING = 1
    CONSUMING = 2
    LOST = 3
    LOST_AT_END = 4
    ABANDONED = 5


class ReadingEvent(IntEnum):
    READER_CAME = 0
    BUFFERS_DROPPED = 1
    READER_LEFT = 2
    READER_LOST = 3
    READER_LOST_AT_END = 4
    WAIT_ENDED = 5


TABLE = Transitions(
    ReadingState,
    ReadingEvent,
    """
    UNREAD       READER_CAME         READING
    UNREAD       READER_LEFT         ABANDONED
    UNREAD       READER_LOST         LOST
    READING      BUFFERS_DROPPED     CONSUMING
    READING      READER_LEFT         ABANDONED
    READING      READER_LOST         LOST
    READING      READER_LOST_AT_END  LOST_AT_END
    CONSUMING    READER_LEFT         ABANDONED
    LOST         READER_CAME         READING
    LOST         READER_LEFT         ABANDONED
    LOST         READER_LOST         LOST
    LOST         WAIT_ENDED          ABANDONED
    LOST_AT_END  READER_CAME         READING
    LOST_AT_END  READER_LEFT         ABANDONED
    LOST_AT_END  READER_LOST         LOST
    LOST_AT_END  WAIT_ENDED          ABANDONED
    """,
)
next_state = TABLE.next
