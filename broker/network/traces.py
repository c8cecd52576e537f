"""Which requests are traced, and what is noted of them, without ever holding a thread of the reactor up.

A processor offers each request that it has measured when it has been answered (``request_times.py``): all that waited or that a
handler had, and of the others as many as are measured. It also offers each connection that it has got from the acceptor. Of both,
the share ``ratio`` is *noted*: a value with the times and what the peer says of itself goes into a queue with a bound. Beyond the
bound it is dropped and counted. ``trace_export.py`` makes spans of the notes, on a thread of its own. A note has neither payload
nor keys, and no text that may be secret.

``offer`` and ``arrived`` are called by any thread, ``take`` by the exporter's.
"""

from collections import deque
from typing import Any, NamedTuple

from broker.network.new_connection import NewConnection

# Notes that wait to be exported: a second of the most that a busy broker measures.
QUEUE_MAX = 4096
# Of a request that names more partitions, the rest of the work on logs is not noted.
LOG_CALLS_MAX = 32
_CLIENT_ID_MAX = 100


class LogCall(NamedTuple):
    """Work on a log for a request. The times are Clock.monotonic() s."""

    verb: str  # "append", "read", or "load": from the disk into the page cache
    topic: str
    partition: int
    offset: int | None  # the first
    began: float
    ended: float


class Arrival(NamedTuple):
    """A connection on its way through the acceptor. The times are Clock.monotonic() s, in their order."""

    peer: str
    listener: str
    processor: int
    accepted_at: float
    handed_at: float  # there was room in the processor's queue
    taken_at: float  # the processor has registered it


class Note(NamedTuple):
    """An answered request. The times are Clock.monotonic() s, in their order."""

    kind: str  # of the request, as in the metrics
    client_id: str | None
    api_version: int | None
    peer: str
    listener: str
    processor: int
    received_at: float  # the processor was told that bytes are there
    taken_at: float  # a thread began to handle it
    handled_at: float  # that was done
    answered_at: float
    by_handler: bool
    log_calls: tuple[LogCall, ...]


class Traces:
    """``ratio``: the share of the requests that is noted, from 0 to 1."""

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._credit = 0.0
        self._arrivals_credit = 0.0
        self._notes: deque[Note | Arrival] = deque()
        self.dropped = 0

    def offer(self, request: Any, processor: int, taken_at: float, handled_at: float, answered_at: float) -> None:
        """A request was answered. Threads that call it at the same time may note one more or less."""
        self._credit += self._ratio
        if self._credit < 1.0:
            return
        self._credit -= 1.0
        if self._full():
            return
        client_id = getattr(request, "client_id", None)
        peer = request.connection.peer
        self._notes.append(
            Note(
                request.kind,
                None if client_id is None else str(client_id)[:_CLIENT_ID_MAX],
                getattr(request, "api_version", None),
                peer.host,
                peer.listener,
                processor,
                min(request.received_at, taken_at),
                taken_at,
                max(taken_at, handled_at),
                max(taken_at, handled_at, answered_at),
                getattr(request, "done", None) is not None,
                tuple(getattr(request, "log_calls", ())[:LOG_CALLS_MAX]),
            )
        )

    def arrived(self, new: NewConnection, processor: int, taken_at: float) -> None:
        """A processor has registered a new connection."""
        self._arrivals_credit += self._ratio
        if self._arrivals_credit < 1.0:
            return
        self._arrivals_credit -= 1.0
        if not self._full():
            peer, handed_at = new.peer, max(new.accepted_at, new.handed_at)
            self._notes.append(
                Arrival(peer.host, peer.listener, processor, new.accepted_at, handed_at, max(handed_at, taken_at))
            )

    def _full(self) -> bool:
        if len(self._notes) < QUEUE_MAX:
            return False
        self.dropped += 1
        return True

    def take(self) -> list[Note | Arrival]:
        """What was noted since the last call."""
        notes = self._notes
        return [notes.popleft() for _ in range(len(notes))]
