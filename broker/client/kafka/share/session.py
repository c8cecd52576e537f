"""The share session with one broker, and what may be asked of that broker next. Pure.

The broker keeps the partitions that a member reads from it, so that requests name only changes. Both sides count the requests:
the epoch 0 opens a session, each further ShareFetch or ShareAcknowledge has the next epoch, and -1 closes it. So there is one
request at a time, and only a fetch can open a session. Acknowledgements need an open one.

| state | event | next state |
|---|---|---|
| CLOSED | OPEN_SENT | OPENING |
| OPENING | ANSWERED | OPEN |
| OPENING | LOST | CLOSED |
| OPEN | REQUEST_SENT | BUSY |
| OPEN | CLOSE_SENT | CLOSING |
| OPEN | LOST | CLOSED |
| BUSY | ANSWERED | OPEN |
| BUSY | LOST | CLOSED |
| CLOSING | ANSWERED | CLOSED |
| CLOSING | LOST | CLOSED |

LOST: the connection broke, or the broker does not know the session (any more) or had no place for it. Every other pair is a bug
of the caller (AssertionError).
"""

from collections.abc import Collection
from enum import IntEnum

import attrs

from broker.client.kafka.share.acquired import TopicIdPartition

_CLOSING_EPOCH = -1
_LAST_EPOCH = 2**31 - 1


class SessionState(IntEnum):
    CLOSED = 0
    OPENING = 1
    OPEN = 2
    BUSY = 3
    CLOSING = 4


class SessionEvent(IntEnum):
    OPEN_SENT = 0
    REQUEST_SENT = 1
    CLOSE_SENT = 2
    ANSWERED = 3
    LOST = 4


_S, _E = SessionState, SessionEvent

TABLE: dict[tuple[SessionState, SessionEvent], SessionState] = {
    (_S.CLOSED, _E.OPEN_SENT): _S.OPENING,
    (_S.OPENING, _E.ANSWERED): _S.OPEN,
    (_S.OPENING, _E.LOST): _S.CLOSED,
    (_S.OPEN, _E.REQUEST_SENT): _S.BUSY,
    (_S.OPEN, _E.CLOSE_SENT): _S.CLOSING,
    (_S.OPEN, _E.LOST): _S.CLOSED,
    (_S.BUSY, _E.ANSWERED): _S.OPEN,
    (_S.BUSY, _E.LOST): _S.CLOSED,
    (_S.CLOSING, _E.ANSWERED): _S.CLOSED,
    (_S.CLOSING, _E.LOST): _S.CLOSED,
}


def next_state(state: SessionState, event: SessionEvent) -> SessionState:
    """The table. AssertionError for an event that cannot happen in that state."""
    after = TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after


@attrs.frozen
class FetchPlan:
    """``added`` and ``forgotten`` are what the request names beside its acknowledgements."""

    epoch: int
    added: tuple[TopicIdPartition, ...]
    forgotten: tuple[TopicIdPartition, ...]


class ShareSession:
    """``state``, ``epoch`` (of the next request) and ``partitions`` (that the broker reads for us, as far as we know)."""

    __slots__ = ("_wanted", "epoch", "partitions", "state")

    def __init__(self) -> None:
        self.state = SessionState.CLOSED
        self.epoch = 0
        self.partitions: frozenset[TopicIdPartition] = frozenset()
        self._wanted: frozenset[TopicIdPartition] = frozenset()

    @property
    def is_open(self) -> bool:
        return self.state is SessionState.OPEN

    @property
    def is_waiting(self) -> bool:
        """Whether a request is in flight."""
        return self.state in (SessionState.OPENING, SessionState.BUSY, SessionState.CLOSING)

    def fetch(self, wanted: Collection[TopicIdPartition]) -> FetchPlan:
        """A fetch from ``wanted`` is sent, which opens the session if it is closed."""
        self._feed(SessionEvent.OPEN_SENT if self.state is SessionState.CLOSED else SessionEvent.REQUEST_SENT)
        self._wanted = frozenset(wanted)
        if self._wanted == self.partitions:  # by far the most
            return FetchPlan(self.epoch, (), ())
        added = tuple(sorted(self._wanted - self.partitions))
        return FetchPlan(self.epoch, added, tuple(sorted(self.partitions - self._wanted)))

    def acknowledge(self) -> int:
        """Acknowledgements alone are sent. The epoch of the request."""
        self._feed(SessionEvent.REQUEST_SENT)
        self._wanted = self.partitions
        return self.epoch

    def close(self) -> int:
        """The last request is sent. Its epoch."""
        self._feed(SessionEvent.CLOSE_SENT)
        self._wanted = frozenset()
        return _CLOSING_EPOCH

    def answered(self) -> None:
        """The broker has taken the request."""
        closing = self.state is SessionState.CLOSING
        self._feed(SessionEvent.ANSWERED)
        self.partitions = self._wanted
        # After the last number comes 1: 0 would open another session.
        self.epoch = 0 if closing else 1 if self.epoch == _LAST_EPOCH else self.epoch + 1

    def lost(self) -> None:
        """Nothing is left of the session. Losing a closed one changes nothing."""
        if self.state is not SessionState.CLOSED:
            self._feed(SessionEvent.LOST)
        self.epoch, self.partitions = 0, frozenset()

    def _feed(self, event: SessionEvent) -> None:
        self.state = next_state(self.state, event)
