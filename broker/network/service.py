"""The interface between the reactor and a protocol.

A ``Session`` says how long a frame is and parses it; a ``Service`` acts on it. The reactor does the rest: it delimits and
bounds the frames, accounts for their memory, mutes connections, keeps responses in order, and controls the flow. Nothing here
knows a protocol.

``Mailbox`` is the interface by which other threads leave work with a processor. A verb is never called by others. It goes through
``submit`` with its two arguments, which runs it on the processor's thread. This module is below requests and connections, so a
verb's arguments have no types here: the parts of `Processor` declare them.

Tests: tests/network/test_processor.py,
tests/network/test_sending_outbox.py.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from broker.log import EventLimit, Logger
from broker.runtime.disk import Buffer, FileRegion
from broker.security.principal import Principal

Verb = Callable[[Any, Any], None]


class Mailbox(Protocol):
    def submit(self, verb: Verb, target: Any, argument: Any) -> None:
        """From any thread: run ``verb(target, argument)`` on the processor's thread, at once if this is it, else soon."""

    # -- verbs on a request -------------------------------------------------------------------------------------------

    @property
    def send(self) -> Verb:
        """(request, parts): answer it."""

    @property
    def no_op(self) -> Verb:
        """(request, None): it needs no answer."""

    @property
    def close_connection(self) -> Verb:
        """(request, None): close its connection once the bytes queued so far have been sent."""

    @property
    def hand_over(self) -> Verb:
        """(request, its handover): a parked request goes to a handler."""

    @property
    def go_on(self) -> Verb:
        """(connection, a `Rest`): go on behind a request that a relieved thread has handled."""

    @property
    def give_back(self) -> Verb:
        """(request, None): its handler has returned; release the memory of its frame if it was lent to the handler."""

    # -- verbs on a connection ----------------------------------------------------------------------------------------

    @property
    def push(self) -> Verb:
        """(connection, parts): send bytes that answer no request."""

    @property
    def call(self) -> Verb:
        """(connection, callable): run a service's own work."""

    @property
    def throttle(self) -> Verb:
        """(connection, event): a quota begins or ends to mute the connection."""


Part = Buffer | FileRegion


@attrs.frozen(slots=True)
class Peer:
    """The other end of a connection, and the listener that accepted it."""

    host: str
    port: int
    listener: str  # the listener's name, e.g. "kafka"
    local: tuple[str, int]  # the broker's address on this connection
    suspensions: int = 0  # how often the broker had been suspended before (``ConnectionQuotas.suspend``)


class Connection(Protocol):
    """A connection as services see it.

    The flags may be read from any thread, where they are advice: they may change the moment after. The rest is read and
    written on the thread of the connection's processor only.
    """

    data: Any  # for the service
    # The client's principal: ANONYMOUS until a TLS certificate or the service sets it. Any thread may read it.
    principal: Principal
    # Set by the service, on any thread: called with the time (s) of each send, and Clock.monotonic() after it.
    on_flushed: Callable[[float, float], object] | None
    keep: bool  # set by the service: do not close the connection when it is idle
    # False while more than the high-water mark is queued. A service that has more to send than it may queue sets it to False
    # itself, on the processor's thread, and is called back (`Service.writable`) when the queue has drained.
    writable: bool

    @property
    def peer(self) -> Peer: ...

    @property
    def session(self) -> "Session": ...

    @property
    def busy(self) -> bool:
        """A request of a session that takes one at a time is being handled."""

    @property
    def finished(self) -> bool:
        """The peer sends nothing more. Frames that arrived whole are still answered."""

    @property
    def closed(self) -> bool:
        """The connection is closed, and responses to it are dropped."""

    @property
    def outgoing_bytes(self) -> int:
        """Bytes that are queued and not sent yet."""

    @property
    def last_active(self) -> float:
        """When bytes were last received or sent: Clock.monotonic() s."""

    @property
    def processor(self) -> Mailbox:
        """Used by the outbox and the handlers."""


class Violations:
    """Writes that a peer broke the protocol, as often as an ``EventLimit`` allows. Any thread."""

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._limit = EventLimit()

    def report(self, connection: Connection, error: str, now: float, **more: str) -> None:
        unlogged = self._limit.take(now)
        if unlogged is not None:
            log, peer = self._log, connection.peer
            log.info(
                "protocol_violated",
                peer=peer.host,
                listener=peer.listener,
                error=error,
                unlogged_before=unlogged,
                **more,
            )


class Request:
    """One frame that is being handled. Each protocol has a subclass with the fields that it parses.

    A request refers to its bytes only through ``frame``, by offsets and not by slices, because the reactor may move the frame
    between ``inline`` and ``handle``. ``frame`` is valid until ``handle`` returns or the request is answered, whichever comes
    first; then its memory is reused. In sessions that take one request at a time, a request that a handler has handled keeps its
    frame until it is answered or its connection is closed.
    """

    __slots__ = ("connection", "done", "frame", "handled_at", "lane", "prepared", "received_at", "taken_at")

    # The kind of request, for the metrics: one of a bounded number of texts.
    kind: str = "other"
    # How many of the client's requests it stands for, for the metrics.
    count: int = 1
    # Whether a processor that handles it may be kept by a disk. Then a handler could handle it as well, with what ``inline`` has
    # returned, and it does not change the connection but through the outbox (see ``relief.py``).
    may_wait: bool = False

    connection: Connection  # set by the processor
    frame: memoryview  # writable; header included
    received_at: float  # Clock.monotonic(), set by the processor
    # Clock.monotonic() when a thread began to handle it, and when ``handle`` returned: only of requests that were not answered at
    # once by their processor. 0 = not yet.
    taken_at: float
    handled_at: float
    # Only for requests that go to a handler, or whose processor's thread was relieved: False until ``handle`` has returned.
    done: bool
    # Only for requests that go to a handler: set by the processor from their `Handover`.
    lane: str | None
    prepared: Any


@attrs.frozen
class Handover:
    """What ``Service.inline`` returns for a request that a handler thread must handle."""

    lane: str | None = None  # of the request channel (see ``broker.network.request_channel``); None: no lane
    prepared: Any = None  # for ``Service.handle``; it must not refer to the request's frame, which may move


class Session(Protocol):
    """One connection's protocol state. Pure; used by its processor only.

    A session may have a ``deadline`` (Clock.monotonic() s), which it may change: from then on the processor closes the
    connection, whatever it does, within about a second, or ten if the processor has thousands of connections. It may have
    ``client_words``, a mapping: the client's own ``client_id``, ``software`` and ``version``, which any thread
    ``software`` and ``version``, which any thread may read.
    """

    in_flight_max: int  # 1 (Kafka): muted while a request is being handled. 0: never muted for requests.

    def frame_size(self, data: memoryview) -> int:
        """The size in bytes of the frame at the beginning of ``data``, including its header; 0 if more bytes are needed to tell.

        Raises ProtocolError for an impossible size. The reactor compares the size with the listener's limit.
        """

    def receive(self, frame: memoryview) -> Request:
        """Parse one whole frame as far as its routing requires. Raises ProtocolError: the connection is closed."""


class Outbox(Protocol):
    """How a service answers. Any thread may call any method, the first three once for each request.

    On the thread of the connection's processor a call takes effect at once; from any other thread it goes through the
    processor's inbox.
    """

    def send(self, request: Request, parts: Sequence[Part]) -> None:
        """Send these bytes, in order, as the response, and unmute the connection when they have been sent."""

    def no_op(self, request: Request) -> None:
        """The request gets no response (Kafka's acks=0): unmute the connection."""

    def close(self, request: Request) -> None:
        """Close the connection after the bytes that are already queued have been sent."""

    def hand_over(self, request: Request, handover: Handover) -> None:
        """Have a handler thread call ``Service.handle`` again for a request that was parked. It still needs a response. Its frame
        is valid only if it was a handler that parked it."""

    def push(self, connection: Connection, parts: Sequence[Part]) -> None:
        """Send bytes that answer no request (streams). Check ``connection.writable`` first; it is advice, not a bound."""

    def call(self, connection: Connection, work: Callable[[], None]) -> None:
        """Run ``work``, which must not block, on the connection's processor. It is dropped if the connection is closed."""

    def start_throttling(self, connection: Connection) -> None:
        """Mute the connection for a quota, until ``end_throttling``."""

    def end_throttling(self, connection: Connection) -> None: ...


class Service(Protocol):
    def connect(self, peer: Peer) -> Session: ...

    def inline(self, request: Request) -> Any:
        """Whether the processor may handle this request itself, because that is cheap and cannot block.

        A ``Handover`` means no. Any other value means yes and is passed to ``handle`` as ``prepared``. The processor calls
        this once for each request. It must not change anything, including the request.
        """

    def handle(self, request: Request, outbox: Outbox, prepared: Any) -> None:
        """Act on the request and answer it through ``outbox``, now or later, from any thread. An exception is logged and closes
        the connection.

        ``prepared`` is the value that ``inline`` has returned, or that in its ``Handover``.
        """

    def held_up(self) -> None:
        """A request that ``may_wait`` has waited on a processor, and does still. Called again and again until it is handled. On
        a thread of its own: the service should have handlers take such requests for about a second."""

    def writable(self, connection: Connection) -> None:
        """The outgoing queue was above its high-water mark and is now below the low-water mark."""

    def stopping(self, connection: Connection) -> None:
        """The broker is stopping, or the peer sends nothing more: answer parked requests now.

        Called on the connection's processor. A request that would be parked later must check ``connection.finished`` first.
        """

    def disconnected(self, connection: Connection) -> None:
        """The connection is closed. Its parked requests need no response any more; responses would be dropped."""
