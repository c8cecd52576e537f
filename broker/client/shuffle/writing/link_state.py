"""The states of a writer's current connection to its broker, as one table. The state is guarded by the writer's lock.

============  ============  ============
state         event         next
============  ============  ============
UNCONNECTED   CONNECT       CONNECTING
CONNECTING    CONNECTED     OPENING
CONNECTING    LOST          UNCONNECTED
OPENING       OPENED        OPEN
OPENING       READERS_LEFT  VOID
OPENING       LOST          UNCONNECTED
OPEN          OPEN_AGAIN    OPENING
OPEN          SEND_FINISH   FINISH_SENT
OPEN          PART          PARTING
OPEN          READERS_LEFT  VOID
OPEN          LOST          UNCONNECTED
FINISH_SENT   PART          PARTING
FINISH_SENT   READERS_LEFT  VOID
FINISH_SENT   LOST          UNCONNECTED
PARTING       SEND_PARTING  PARTING_SENT
PARTING       READERS_LEFT  VOID
PARTING       LOST          UNCONNECTED
PARTING_SENT  DRAINED       PARTED
PARTING_SENT  READERS_LEFT  VOID
PARTING_SENT  LOST          UNCONNECTED
PARTED        READERS_LEFT  VOID
PARTED        LOST          UNCONNECTED
VOID          LOST          UNCONNECTED
============  ============  ============

In OPENING, the writer has sent OpenPartition and the broker has not answered. From OPEN to PARTED, the broker's handle for the
partition is valid; the writer sends pushes only in OPEN. The parting frame is the last one, FailPartition or CloseWriter; in
PARTED, the kernel has taken it. In VOID, all readers have left and the writer sends nothing more. At OPEN_AGAIN, the writer
sends OpenPartition again, because it waits for an acknowledgement that does not come. PartitionOpened states what was received.

LOST is any end of the connection, by either side. Whether the writer connects again depends on its state (``writer_state.py``).
"""

from enum import IntEnum


class LinkState(IntEnum):
    """The order matters: from OPEN to PARTED, the broker's handle is valid."""

    UNCONNECTED = 0
    CONNECTING = 1
    OPENING = 2
    VOID = 3
    OPEN = 4
    FINISH_SENT = 5
    PARTING = 6
    PARTING_SENT = 7
    PARTED = 8


class LinkEvent(IntEnum):
    CONNECT = 0
    CONNECTED = 1
    OPENED = 2
    OPEN_AGAIN = 3
    SEND_FINISH = 4
    PART = 5
    SEND_PARTING = 6
    DRAINED = 7
    READERS_LEFT = 8
    LOST = 9


_S, _E = LinkState, LinkEvent

TABLE: dict[tuple[LinkState, LinkEvent], LinkState] = {
    (_S.UNCONNECTED, _E.CONNECT): _S.CONNECTING,
    (_S.CONNECTING, _E.CONNECTED): _S.OPENING,
    (_S.CONNECTING, _E.LOST): _S.UNCONNECTED,
    (_S.OPENING, _E.OPENED): _S.OPEN,
    (_S.OPENING, _E.READERS_LEFT): _S.VOID,
    (_S.OPENING, _E.LOST): _S.UNCONNECTED,
    (_S.OPEN, _E.OPEN_AGAIN): _S.OPENING,
    (_S.OPEN, _E.SEND_FINISH): _S.FINISH_SENT,
    (_S.OPEN, _E.PART): _S.PARTING,
    (_S.OPEN, _E.READERS_LEFT): _S.VOID,
    (_S.OPEN, _E.LOST): _S.UNCONNECTED,
    (_S.FINISH_SENT, _E.PART): _S.PARTING,
    (_S.FINISH_SENT, _E.READERS_LEFT): _S.VOID,
    (_S.FINISH_SENT, _E.LOST): _S.UNCONNECTED,
    (_S.PARTING, _E.SEND_PARTING): _S.PARTING_SENT,
    (_S.PARTING, _E.READERS_LEFT): _S.VOID,
    (_S.PARTING, _E.LOST): _S.UNCONNECTED,
    (_S.PARTING_SENT, _E.DRAINED): _S.PARTED,
    (_S.PARTING_SENT, _E.READERS_LEFT): _S.VOID,
    (_S.PARTING_SENT, _E.LOST): _S.UNCONNECTED,
    (_S.PARTED, _E.READERS_LEFT): _S.VOID,
    (_S.PARTED, _E.LOST): _S.UNCONNECTED,
    (_S.VOID, _E.LOST): _S.UNCONNECTED,
}


def next_state(state: LinkState, event: LinkEvent) -> LinkState:
    """Look up the next state. Raises AssertionError for an event that cannot happen in that state."""
    after = TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
