"""The states of a gate's channel, as one table. The state is guarded by the gate's lock.

=========  =======  =========
state      event    next
=========  =======  =========
WAITING    START    RUNNING
WAITING    FAIL     FAILED
WAITING    RELEASE  RELEASED
RUNNING    FAIL     FAILED
RUNNING    RELEASE  RELEASED
FAILED     RELEASE  RELEASED
=========  =======  =========

START is the sender's first message; for a channel within the process, it is the moment at which its partition is found. FAIL is
the first error: the reader gets the items that were received before it, and then the error. The gate sends RELEASE when the
channel has ended, when its error was given to the reader, or when the gate is closed. The callers never use another pair: a
channel ignores later errors and a second release.
"""

from enum import IntEnum


class ChannelState(IntEnum):
    WAITING = 0
    RUNNING = 1
    FAILED = 2
    RELEASED = 3


class ChannelEvent(IntEnum):
    START = 0
    FAIL = 1
    RELEASE = 2


_S, _E = ChannelState, ChannelEvent

TABLE: dict[tuple[ChannelState, ChannelEvent], ChannelState] = {
    (_S.WAITING, _E.START): _S.RUNNING,
    (_S.WAITING, _E.FAIL): _S.FAILED,
    (_S.WAITING, _E.RELEASE): _S.RELEASED,
    (_S.RUNNING, _E.FAIL): _S.FAILED,
    (_S.RUNNING, _E.RELEASE): _S.RELEASED,
    (_S.FAILED, _E.RELEASE): _S.RELEASED,
}


def next_state(state: ChannelState, event: ChannelEvent) -> ChannelState:
    """Look up the next state. Raises AssertionError for an event that cannot happen in that state."""
    after = TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
