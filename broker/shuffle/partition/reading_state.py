"""The state of a subpartition with regard to its reader, as one table.

``Subpartition.reading`` holds the state; it is guarded by the partition's lock. Only subpartitions of PIPELINED partitions leave
UNREAD: each can be read once, by one reader. BLOCKING partitions are read any number of times, and their subpartitions do not
know their readers.

===========  ==================  ===========
state        event               next state
===========  ==================  ===========
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
===========  ==================  ===========

READING: it has a reader, and every buffer is kept. CONSUMING: it has a reader, and sent buffers are dropped, so no other reader
can start over. LOST: the reader's connection was lost; every buffer is kept, and another reader may start over. LOST_AT_END:
the same, after everything had been sent: if no other reader comes, the lost reader may have received everything. ABANDONED: it
has no reader and cannot get one; pushes to it are counted but not kept.

A reader of a range claims its subpartitions in steps. If it leaves before it has claimed all of them, the rest are UNREAD, LOST
or LOST_AT_END, and get READER_LEFT or READER_LOST as well, because they were requested. A pair that is not in the table is a bug
in the broker (AssertionError).
"""

from enum import IntEnum


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


_S, _E = ReadingState, ReadingEvent

TABLE: dict[tuple[ReadingState, ReadingEvent], ReadingState] = {
    (_S.UNREAD, _E.READER_CAME): _S.READING,
    (_S.UNREAD, _E.READER_LEFT): _S.ABANDONED,
    (_S.UNREAD, _E.READER_LOST): _S.LOST,
    (_S.READING, _E.BUFFERS_DROPPED): _S.CONSUMING,
    (_S.READING, _E.READER_LEFT): _S.ABANDONED,
    (_S.READING, _E.READER_LOST): _S.LOST,
    (_S.READING, _E.READER_LOST_AT_END): _S.LOST_AT_END,
    (_S.CONSUMING, _E.READER_LEFT): _S.ABANDONED,
    (_S.LOST, _E.READER_CAME): _S.READING,
    (_S.LOST, _E.READER_LEFT): _S.ABANDONED,
    (_S.LOST, _E.READER_LOST): _S.LOST,
    (_S.LOST, _E.WAIT_ENDED): _S.ABANDONED,
    (_S.LOST_AT_END, _E.READER_CAME): _S.READING,
    (_S.LOST_AT_END, _E.READER_LEFT): _S.ABANDONED,
    (_S.LOST_AT_END, _E.READER_LOST): _S.LOST,
    (_S.LOST_AT_END, _E.WAIT_ENDED): _S.ABANDONED,
}

_NEXT: list[list[ReadingState | None]] = [
    [TABLE.get((state, event)) for event in ReadingEvent] for state in ReadingState
]


def next_state(state: ReadingState, event: ReadingEvent) -> ReadingState:
    """Looks up the table. AssertionError for an event that cannot happen in that state."""
    after = _NEXT[state][event]
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
