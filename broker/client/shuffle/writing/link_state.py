"""How far a writer and its broker have got on the present connection, as one table. Guarded by the writer's lock.

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

In OPENING the broker was sent OpenPartition and has not answered. From OPEN to PARTED the broker's handle for the partition is
valid; pushes are sent in OPEN only. The parting frame is the last one, FailPartition or CloseWriter; in PARTED the kernel has it.
In VOID all readers have left, and nothing more is sent. OPEN_AGAIN sends OpenPartition a second time, because only an
acknowledgement can come and none does: PartitionOpened says what the broker has.

LOST is any end of the connection, by either side. Whether it is made anew depends on the writer's own state, in
``writer_state.py``.
"""

from enum import IntEnum


class LinkState(IntEnum):
    """In order: from OPEN to PARTED the broker's handle is valid."""

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
    """The table. AssertionError for an event that cannot happen in that state."""
    after = TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
