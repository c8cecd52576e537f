"""When a connection is not read from: Kafka's channel mute states, as one table.

Owned by the connection's processor. A connection is muted from the moment a request of it is taken until its response has
been sent, and for as long as a quota throttles it; both may hold at once, in either order of ending.

==========================================  ================  ==========================================
state                                       event             next state
==========================================  ================  ==========================================
NOT_MUTED                                   REQUEST_RECEIVED  MUTED_AND_RESPONSE_PENDING
NOT_MUTED                                   THROTTLE_STARTED  MUTED_AND_THROTTLED
MUTED                                       REQUEST_RECEIVED  MUTED_AND_RESPONSE_PENDING
MUTED                                       THROTTLE_STARTED  MUTED_AND_THROTTLED
MUTED_AND_RESPONSE_PENDING                  RESPONSE_SENT     MUTED
MUTED_AND_RESPONSE_PENDING                  THROTTLE_STARTED  MUTED_AND_THROTTLED_AND_RESPONSE_PENDING
MUTED_AND_THROTTLED                         THROTTLE_ENDED    MUTED
MUTED_AND_THROTTLED                         REQUEST_RECEIVED  MUTED_AND_THROTTLED_AND_RESPONSE_PENDING
MUTED_AND_THROTTLED_AND_RESPONSE_PENDING    RESPONSE_SENT     MUTED_AND_THROTTLED
MUTED_AND_THROTTLED_AND_RESPONSE_PENDING    THROTTLE_ENDED    MUTED_AND_RESPONSE_PENDING
==========================================  ================  ==========================================

``MUTED`` is the state of a connection nothing but the processor holds back: ``unmute`` turns it to NOT_MUTED when there is
memory for its next request. Every pair that is not in the table is a bug of ours (AssertionError).
"""

from enum import IntEnum


class MuteState(IntEnum):
    NOT_MUTED = 0
    MUTED = 1
    MUTED_AND_RESPONSE_PENDING = 2
    MUTED_AND_THROTTLED = 3
    MUTED_AND_THROTTLED_AND_RESPONSE_PENDING = 4


class MuteEvent(IntEnum):
    REQUEST_RECEIVED = 0
    RESPONSE_SENT = 1
    THROTTLE_STARTED = 2
    THROTTLE_ENDED = 3


_S, _E = MuteState, MuteEvent

TABLE: dict[tuple[MuteState, MuteEvent], MuteState] = {
    (_S.NOT_MUTED, _E.REQUEST_RECEIVED): _S.MUTED_AND_RESPONSE_PENDING,
    (_S.NOT_MUTED, _E.THROTTLE_STARTED): _S.MUTED_AND_THROTTLED,
    (_S.MUTED, _E.REQUEST_RECEIVED): _S.MUTED_AND_RESPONSE_PENDING,
    (_S.MUTED, _E.THROTTLE_STARTED): _S.MUTED_AND_THROTTLED,
    (_S.MUTED_AND_RESPONSE_PENDING, _E.RESPONSE_SENT): _S.MUTED,
    (_S.MUTED_AND_RESPONSE_PENDING, _E.THROTTLE_STARTED): _S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING,
    (_S.MUTED_AND_THROTTLED, _E.THROTTLE_ENDED): _S.MUTED,
    (_S.MUTED_AND_THROTTLED, _E.REQUEST_RECEIVED): _S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING,
    (_S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, _E.RESPONSE_SENT): _S.MUTED_AND_THROTTLED,
    (_S.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING, _E.THROTTLE_ENDED): _S.MUTED_AND_RESPONSE_PENDING,
}

# The table as a list per state: two index operations on the path of every request.
_NEXT: list[list[MuteState | None]] = [[TABLE.get((state, event)) for event in MuteEvent] for state in MuteState]


def next_state(state: MuteState, event: MuteEvent) -> MuteState:
    """The table. AssertionError for an event that cannot happen in that state."""
    after = _NEXT[state][event]
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
