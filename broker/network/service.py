"""The plug between the reactor and a protocol: what a service gives the reactor, and what it is given.

The reactor cuts a connection's bytes into frames, bounds and accounts them, mutes, parks, answers in order and flow-controls;
a ``Session`` says how long a frame is and what it means; a ``Service`` acts on it. Nothing here knows any protocol.

Tests: tests/network/test_processor.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from broker.network.mailbox import Mailbox
from broker.runtime.disk import Buffer, FileRegion

Part = Buffer | FileRegion


@attrs.frozen(slots=True)
class Peer:
    """The other end of a connection, and the listener that accepted it."""

    host: str
    port: int
    listener: str  # the listener's name, e.g. "kafka"
    local: tuple[str, int]  # the broker's address on this connection


class Connection(Protocol):
    """A connection as services see it.

    The flags may be read from any thread, where they are advice: they may change the moment after. The rest is read and
    written on the thread of the connection's processor only.
    """

    data: Any  # the service's own
    keep: bool  # the service's: do not close the connection for being idle
    # False while more than the high-water mark is queued. A service that has more to send than it may queue sets it to False
    # itself, on the processor's thread, and is called back (`Service.writable`) when the queue has drained.
    writable: bool

    @property
    def peer(self) -> Peer: ...

    @property
    def session(self) -> "Session": ...

    @property
    def finished(self) -> bool:
        """The peer sends nothing more. What came whole is answered."""

    @property
    def closed(self) -> bool:
        """Answers are dropped."""

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that are queued and not sent."""

    @property
    def last_active(self) -> float:
        """When bytes last came or left: Clock.monotonic() s."""

    @property
    def processor(self) -> Mailbox:
        """For the outbox and the handlers."""


class Request:
    """One frame on its way through the broker. Subclassed by each protocol with what it parsed.

    A request refers to its bytes through ``frame`` only (by offsets, not by slices it keeps): the reactor may move a frame
    between ``inline`` and ``handle``. ``frame`` is valid until ``handle`` returns or the request is answered, whichever comes
    first, and not a moment longer: its memory is used again.
    """

    __slots__ = ("connection", "done", "frame", "lane", "prepared", "received_at")

    connection: Connection  # set by the processor
    frame: memoryview  # writable; header included
    received_at: float  # Clock.monotonic(), set by the processor
    done: bool  # of a request for the handlers only, and theirs: False until ``handle`` has returned
    # Of a request for the handlers only, and set by the processor: what its `Handover` says.
    lane: str | None
    prepared: Any


@attrs.frozen
class Handover:
    """How a request goes to a handler thread: the answer of ``Service.inline`` for one that is not handled at once."""

    lane: str | None = None  # of the request channel (see ``broker.network.request_channel``); None: no lane
    prepared: Any = None  # for ``Service.handle``; it must not refer to the request's frame, which may move


class Session(Protocol):
    """One connection's protocol state. Pure; used by its processor only."""

    in_flight_max: int  # Kafka 1: muted while its request is out. 0: never muted for requests.

    def frame_size(self, data: memoryview) -> int:
        """Whole size in bytes of the frame that begins ``data``, its header included; 0 if more bytes are needed to tell.

        Raises ProtocolError for a size that can't be right. The reactor checks it against the listener's limit.
        """

    def receive(self, frame: memoryview) -> Request:
        """Parse one whole frame as far as needed to route it. Raises ProtocolError: the connection closes."""


class Outbox(Protocol):
    """How a service answers. Every method may be called from any thread, once per request for the first four.

    On the thread of the request's own processor the answer takes effect at once; from any other it goes through the
    processor's inbox.
    """

    def send(self, request: Request, parts: Sequence[Part]) -> None:
        """Answer with these bytes, in order, and unmute when they have left."""

    def no_op(self, request: Request) -> None:
        """No answer is due (Kafka's acks=0): unmute."""

    def close(self, request: Request) -> None:
        """Close the connection; what was queued before is sent first."""

    def hand_over(self, request: Request, handover: Handover) -> None:
        """Have ``Service.handle`` called for it on a handler thread: again, and without its frame, for a request that was
        parked. It is still owed its answer."""

    def push(self, connection: Connection, parts: Sequence[Part]) -> None:
        """Bytes that answer no request (streams). Look at ``connection.writable`` first: it is advice, not a bound."""

    def call(self, connection: Connection, work: Callable[[], None]) -> None:
        """Run ``work`` on the connection's own processor; it must not block. Dropped if the connection is gone."""

    def start_throttling(self, connection: Connection) -> None:
        """Mute for a quota until ``end_throttling``."""

    def end_throttling(self, connection: Connection) -> None: ...


class Service(Protocol):
    def connect(self, peer: Peer) -> Session: ...

    def inline(self, request: Request) -> Any:
        """May the processor handle this request itself, because that is cheap and cannot block? A ``Handover`` says no. Anything
        else says yes, and is what ``handle`` is given as ``prepared``: what was found out on the way.

        Called on the processor, once per request. It changes nothing, the request included.
        """

    def handle(self, request: Request, outbox: Outbox, prepared: Any) -> None:
        """Act, and answer through ``outbox`` now or later, from any thread. An exception closes the connection and is logged.

        ``prepared``: what ``inline`` has returned, or what the ``Handover`` holds.
        """

    def writable(self, connection: Connection) -> None:
        """The outgoing queue has drained below its low-water mark after having been above the high one."""

    def stopping(self, connection: Connection) -> None:
        """The broker stops, or the peer sends nothing more: answer now what waits for something to happen.

        On the connection's processor. What begins to wait later must look at ``connection.finished`` for itself.
        """

    def disconnected(self, connection: Connection) -> None:
        """The connection is gone. Parked requests of it need no answer any more (answers are dropped)."""
