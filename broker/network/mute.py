"""Why a connection is not read from: its holds, as one table. Kafka's channel mute states are names for some of them.

``ProcessorConnection.holds`` has one bit for each reason. While it is 0 the connection is *receptive*: its processor reads from
it and takes requests out of what it has read. Only the connection's processor sets and clears the bits, in the
methods named here, which are those of `receiving.py`, `sending.py`, `connections.py`, `waiters.py` and
`handshakes.py`, and `Processor.relieve`:

| hold | set by | cleared by | reason |
|---|---|---|---|
| RESPONSE_PENDING | REQUEST_RECEIVED, `dispatch` | RESPONSE_SENT, `answered` | The session takes one request at a time. |
| RESPONSE_UNSENT | RESPONSE_QUEUED, `send` | RESPONSE_SENT, `answered` | Its response lies above the high-water mark. |
| THROTTLED | THROTTLE_STARTED, `throttle` | THROTTLE_ENDED, `throttle` | The client has used up a quota. |
| CHANNEL_FULL | CHANNEL_REFUSED, `ChannelWaiters` | CHANNEL_ACCEPTED, `ChannelWaiters` | A request waits for a handler. |
| MEMORY_SHORT | MEMORY_REFUSED, `MemoryWaiters` | MEMORY_GRANTED, `MemoryWaiters` | A frame waits for request memory. |
| UNWRITABLE | HIGH_WATER_PASSED, `flush` | LOW_WATER_REACHED, `flush` | The peer does not read what is sent. |
| DRAINING | DRAIN_STARTED, `begin_draining` | never | The processor takes no further request. |
| CLOSING | CLOSE_STARTED, `start_closing` | never | It is closed, or will be once the queued bytes have left. |
| HANDSHAKING | HANDSHAKE_STARTED, `Handshakes` | HANDSHAKE_ENDED, `Handshakes` | The TLS handshake has not ended. |
| RELIEVED | THREAD_RELIEVED, `Processor.relieve` | THREAD_RETURNED, `go_on` | The thread that handles its request was relieved. |

RESPONSE_UNSENT is set only beside RESPONSE_PENDING. A service that streams may set UNWRITABLE as well (``Connection.writable``).
An event that changes nothing is a bug: a hold is not set twice, nor cleared twice, and ``next_holds`` raises AssertionError.
The processor carries out the events of every request as plain bit operations instead of calling ``next_holds``, and it may
pass the high-water mark or start to close more than once.

Kafka's states distinguish two of the holds; MUTED is any other reason:

| RESPONSE_PENDING | THROTTLED | other holds | Kafka's state |
|---|---|---|---|
| no | no | no | NOT_MUTED |
| no | no | yes | MUTED |
| yes | no | any | MUTED_AND_RESPONSE_PENDING |
| no | yes | any | MUTED_AND_THROTTLED |
| yes | yes | any | MUTED_AND_THROTTLED_AND_RESPONSE_PENDING |

A further reason is one more bit and one more row: the code that begins it sets the bit, the code that ends it clears the bit and
calls ``Turns.run_later``. Nothing else changes.

Not holds: ``ProcessorConnection.finished`` (the peer sends nothing more, but what it has sent is still served) and ``closed``
(CLOSING without bytes left to send; services read it from any thread).
"""

from enum import IntEnum, IntFlag
from typing import Final


class Hold(IntFlag):
    """The bits by name, for people. Code uses the plain ints below: arithmetic on an IntFlag takes about 1 us."""

    RESPONSE_PENDING = 1
    RESPONSE_UNSENT = 2
    THROTTLED = 4
    CHANNEL_FULL = 8
    MEMORY_SHORT = 16
    UNWRITABLE = 32
    DRAINING = 64
    CLOSING = 128
    HANDSHAKING = 256
    RELIEVED = 512


class MuteEvent(IntEnum):
    REQUEST_RECEIVED = 0
    RESPONSE_QUEUED = 1
    RESPONSE_SENT = 2
    THROTTLE_STARTED = 3
    THROTTLE_ENDED = 4
    CHANNEL_REFUSED = 5
    CHANNEL_ACCEPTED = 6
    MEMORY_REFUSED = 7
    MEMORY_GRANTED = 8
    HIGH_WATER_PASSED = 9
    LOW_WATER_REACHED = 10
    DRAIN_STARTED = 11
    CLOSE_STARTED = 12
    HANDSHAKE_STARTED = 13
    HANDSHAKE_ENDED = 14
    THREAD_RELIEVED = 15
    THREAD_RETURNED = 16


class MuteState(IntEnum):
    """Kafka's."""

    NOT_MUTED = 0
    MUTED = 1
    MUTED_AND_RESPONSE_PENDING = 2
    MUTED_AND_THROTTLED = 3
    MUTED_AND_THROTTLED_AND_RESPONSE_PENDING = 4


_E = MuteEvent

# The events that set and clear each hold.
TABLE: Final[dict[Hold, tuple[MuteEvent, MuteEvent | None]]] = {
    Hold.RESPONSE_PENDING: (_E.REQUEST_RECEIVED, _E.RESPONSE_SENT),
    Hold.RESPONSE_UNSENT: (_E.RESPONSE_QUEUED, _E.RESPONSE_SENT),
    Hold.THROTTLED: (_E.THROTTLE_STARTED, _E.THROTTLE_ENDED),
    Hold.CHANNEL_FULL: (_E.CHANNEL_REFUSED, _E.CHANNEL_ACCEPTED),
    Hold.MEMORY_SHORT: (_E.MEMORY_REFUSED, _E.MEMORY_GRANTED),
    Hold.UNWRITABLE: (_E.HIGH_WATER_PASSED, _E.LOW_WATER_REACHED),
    Hold.DRAINING: (_E.DRAIN_STARTED, None),
    Hold.CLOSING: (_E.CLOSE_STARTED, None),
    Hold.HANDSHAKING: (_E.HANDSHAKE_STARTED, _E.HANDSHAKE_ENDED),
    Hold.RELIEVED: (_E.THREAD_RELIEVED, _E.THREAD_RETURNED),
}

RESPONSE_PENDING: Final = int(Hold.RESPONSE_PENDING)
RESPONSE_UNSENT: Final = int(Hold.RESPONSE_UNSENT)
THROTTLED: Final = int(Hold.THROTTLED)
CHANNEL_FULL: Final = int(Hold.CHANNEL_FULL)
MEMORY_SHORT: Final = int(Hold.MEMORY_SHORT)
UNWRITABLE: Final = int(Hold.UNWRITABLE)
DRAINING: Final = int(Hold.DRAINING)
CLOSING: Final = int(Hold.CLOSING)
HANDSHAKING: Final = int(Hold.HANDSHAKING)
RELIEVED: Final = int(Hold.RELIEVED)

# By event: the bits that it sets and the bits that it clears.
_SETS = [sum(int(hold) for hold, (set_by, _) in TABLE.items() if set_by is event) for event in MuteEvent]
_CLEARS = [sum(int(hold) for hold, (_, cleared_by) in TABLE.items() if cleared_by is event) for event in MuteEvent]


def next_holds(holds: int, event: MuteEvent) -> int:
    """The table. AssertionError for an event that cannot happen with these holds."""
    after = (holds | _SETS[event]) & ~_CLEARS[event]
    if after == holds:
        raise AssertionError(f"{event.name} in state {mute_state(holds).name} ({Hold(holds)!r})")
    return after


def mute_state(holds: int) -> MuteState:
    """What Kafka calls it."""
    if holds & RESPONSE_PENDING:
        if holds & THROTTLED:
            return MuteState.MUTED_AND_THROTTLED_AND_RESPONSE_PENDING
        return MuteState.MUTED_AND_RESPONSE_PENDING
    if holds & THROTTLED:
        return MuteState.MUTED_AND_THROTTLED
    return MuteState.MUTED if holds else MuteState.NOT_MUTED
