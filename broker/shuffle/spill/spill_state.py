"""What the spiller does with one partition, as one table.

``Spill.state`` holds the state; it is guarded by the partition's lock.

==============  ==============  ==============
state           event           next state
==============  ==============  ==============
IDLE            GARBAGE_FOUND   UNTIDY
IDLE            FINISH_ASKED    FINISHING
IDLE            REMOVE_ASKED    RELEASED
UNTIDY          FILE_REWRITTEN  IDLE
UNTIDY          REWRITE_FAILED  LEFT_UNTIDY
UNTIDY          REMOVE_ASKED    RELEASED
LEFT_UNTIDY     PIECE_WRITTEN   IDLE
LEFT_UNTIDY     REMOVE_ASKED    RELEASED
FINISHING       STORE_DONE      STORED
FINISHING       STORE_FAILED    NOT_STORED
FINISHING       REMOVE_ASKED    RELEASED
STORED          REMOVE_ASKED    RELEASED
NOT_STORED      REMOVE_ASKED    RELEASED
RELEASED        FILES_REMOVED   REMOVED
==============  ==============  ==============

IDLE: a piece of its memory is moved to its file when memory is scarce, or, of a blocking partition, when much of it is in
memory; that happens in the other states before RELEASED as well. UNTIDY (pipelined only): most of its file belongs to buffers
that were dropped, and it is queued to be rewritten. LEFT_UNTIDY: the disk refused that; it is tried again when another piece
has been written and garbage is found again. FINISHING (blocking only): its writer has pushed everything, and it is queued, or
being written to the end with its index. STORED: data, index and their names are durable. NOT_STORED: the disk refused that; its
producer fails. RELEASED: its buffers have been dropped, and its files are queued to be removed.

A pair that is not in the table is a bug in the broker (AssertionError).
"""

from enum import IntEnum


class SpillState(IntEnum):
    IDLE = 0
    UNTIDY = 1
    LEFT_UNTIDY = 2
    FINISHING = 3
    STORED = 4
    NOT_STORED = 5
    RELEASED = 6
    REMOVED = 7


class SpillEvent(IntEnum):
    GARBAGE_FOUND = 0
    FILE_REWRITTEN = 1
    REWRITE_FAILED = 2
    PIECE_WRITTEN = 3
    FINISH_ASKED = 4
    STORE_DONE = 5
    STORE_FAILED = 6
    REMOVE_ASKED = 7
    FILES_REMOVED = 8


_S, _E = SpillState, SpillEvent

TABLE: dict[tuple[SpillState, SpillEvent], SpillState] = {
    (_S.IDLE, _E.GARBAGE_FOUND): _S.UNTIDY,
    (_S.IDLE, _E.FINISH_ASKED): _S.FINISHING,
    (_S.IDLE, _E.REMOVE_ASKED): _S.RELEASED,
    (_S.UNTIDY, _E.FILE_REWRITTEN): _S.IDLE,
    (_S.UNTIDY, _E.REWRITE_FAILED): _S.LEFT_UNTIDY,
    (_S.UNTIDY, _E.REMOVE_ASKED): _S.RELEASED,
    (_S.LEFT_UNTIDY, _E.PIECE_WRITTEN): _S.IDLE,
    (_S.LEFT_UNTIDY, _E.REMOVE_ASKED): _S.RELEASED,
    (_S.FINISHING, _E.STORE_DONE): _S.STORED,
    (_S.FINISHING, _E.STORE_FAILED): _S.NOT_STORED,
    (_S.FINISHING, _E.REMOVE_ASKED): _S.RELEASED,
    (_S.STORED, _E.REMOVE_ASKED): _S.RELEASED,
    (_S.NOT_STORED, _E.REMOVE_ASKED): _S.RELEASED,
    (_S.RELEASED, _E.FILES_REMOVED): _S.REMOVED,
}


def next_state(state: SpillState, event: SpillEvent) -> SpillState:
    """The table. AssertionError for an event that cannot happen in that state."""
    after = TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
