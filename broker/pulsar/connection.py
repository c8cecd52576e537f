"""A connection of a client: its frames (``PulsarSession``), and the service's state of it (``PulsarConnection``): the client's
properties, its producers and its consumers.

The session is pure and belongs to the connection's processor. Small commands are parsed there. Large commands are parsed by the
handler, because that takes up to 80 ms for the largest. SENDs, ACKs and FLOWs are only recognised: their bytes are read when they
are handled, because the reactor may move them. SENDs that arrive together are taken as a single frame, so that they share an
append, an fsync and a push of receipts.

The commands of a connection are handled one after the other, on its processor or on a handler. Other threads fence producers,
close consumers and end the connection; ``lock`` guards the two tables and ``closed``.

Tests: tests/pulsar/test_connection.py, tests/pulsar/test_connection_session.py.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Protocol

import attrs

from broker.network.service import Connection, Part, Request
from broker.network.work import BULK_BYTES
from broker.pulsar.producers.producer import OrderedOutbox, Producer
from broker.pulsar.refusals import ServiceNotReady, TooManyRequests
from broker.runtime.threads import Lock
from broker.runtime.timers import TimerHandle
from protocol.errors import ProtocolError
from protocol.pulsar import frames
from protocol.pulsar.pulsar_pb2 import BaseCommand

_SEND = int(BaseCommand.Type.SEND)
# Commands whose handlers read the frame.
_RAW = frozenset({_SEND, int(BaseCommand.Type.ACK), int(BaseCommand.Type.FLOW)})
# The longest frame before CONNECTED: a CONNECT with a token takes a few KB.
_BEFORE_CONNECT_BYTES = 64 * 1024
# The type of a large command that does not begin with its type: unknown until a handler parses it.
_UNKNOWN = -1
# The first bytes of a SEND's command: its type. Clients write the type first; all other SENDs are taken singly.
_AS_SEND = 0x0806
_START = struct.Struct(">IIH")  # the sizes of frame and command, and the first two bytes of the command
# SENDs that are taken together: about 1 ms of work, as for a turn of the processor.
_TOGETHER_MAX = 128
# The limit of bytes of several SENDs, because all of them may be metadata.
_TOGETHER_BYTES = 256 * 1024


class PulsarRequest(Request):
    """A frame. ``body`` is its command, or None if its bytes are read when it is handled."""

    __slots__ = ("body", "may_wait", "type")

    def __init__(self, type: int, body: Any) -> None:
        self.type = type
        self.may_wait = type == _SEND
        self.body = body

    @property
    def unparsed(self) -> bool:
        """The command is so large that the processor leaves parsing to a handler."""
        return self.body is None and self.type not in _RAW

    def parse(self) -> None:
        """Raises ProtocolError."""
        self.type = frames.command_type(self.frame)
        if self.unparsed:
            self.type, self.body = frames.read_command(self.frame)


class PulsarSession:
    in_flight_max = 1

    def __init__(self, max_message_bytes: int, deadline: float) -> None:
        """``deadline``: the time (Clock.monotonic() s) at which the processor closes the connection unless the client has
        connected."""
        self.deadline = deadline
        self.client_words: Mapping[str, str] = {}  # the client's description of itself, for people. Any thread
        self._connected = False
        self._max_message_bytes = max_message_bytes
        # The largest frame, as in `frames.frame_size`.
        self._most = max_message_bytes + frames.FRAME_PADDING

    def connected(self) -> None:
        """The client has been accepted. On the thread that handles its CONNECT."""
        self._connected = True
        self.deadline = inf

    def frame_size(self, data: memoryview) -> int:
        """The size of a frame, or of several whole SENDs together."""
        size = frames.frame_size(data, self._max_message_bytes)
        if not self._connected and size > _BEFORE_CONNECT_BYTES:
            raise ProtocolError(f"a frame of {size} bytes before CONNECT")
        end = min(len(data), max(size, _TOGETHER_BYTES))
        if not size or size + 10 > end or data[8] != 0x08 or data[9] != _SEND:
            return size
        most, unpack = self._most, _START.unpack_from
        for _ in range(_TOGETHER_MAX - 1):
            if size + 10 > end:
                break
            length, _, command = unpack(data, size)
            if command != _AS_SEND or length > most or size + 4 + length > end or length < 6:
                break
            size += 4 + length
        return size

    def receive(self, frame: memoryview) -> Request:
        # If these are several frames, all of them are SENDs, and the size in the first is that of the first only.
        if len(frame) >= 10 and frame[8] == 0x08 and frame[9] == _SEND:
            return PulsarRequest(_SEND, None)
        if len(frame) > BULK_BYTES and frame[8] != 0x08:
            return PulsarRequest(_UNKNOWN, None)
        kind = frames.command_type(frame)
        if kind in _RAW or len(frame) > BULK_BYTES:
            return PulsarRequest(kind, None)
        return PulsarRequest(*frames.read_command(frame))


# Producers and consumers of a connection. The C++ client's suite has some hundred; each takes about 2 KB.
_MOST_ATTACHED = 20_000
# SENDs without a receipt. A client may have more under way, in its and in the system's buffers, but the broker takes no more of
# them while the disk hangs.
_MOST_OWED = 4000
# Remembered producers that the broker has closed. SENDs that their clients sent before they knew are ignored.
_MOST_REMEMBERED = 1000


class AttachedConsumer(Protocol):
    """A consumer as its connection sees it. ``subscriptions/`` has the class."""

    def disconnected(self) -> None:
        """The connection is closed. On its processor."""

    def disconnected_later(self) -> None:
        """The same, for a consumer among many: the work is done on another thread."""

    def writable(self) -> None:
        """The connection takes more bytes again. On its processor."""


@attrs.define(eq=False, repr=False)
class PulsarConnection:
    """``Connection.data`` of every connection, from its first frame on."""

    connection: Connection
    outbox: OrderedOutbox  # for unsolicited commands
    # From CONNECT. `protocol_version` is the version that both sides speak.
    connected: bool = False
    protocol_version: int = 0
    client_version: str = ""
    broker_entry_metadata: bool = False  # the client understands it
    auth_refresh: bool = False  # the client answers AUTH_CHALLENGE
    producers: dict[int, Producer] = attrs.Factory(dict)
    consumers: dict[int, AttachedConsumer] = attrs.Factory(dict)
    closed: bool = False
    # SENDs without an answer, and the command that is answered when there are fewer of them.
    owed: int = 0
    parked: Callable[[], None] | None = None
    # How long (s) the connection is not read, because a topic to which it has just sent is above its publish rate.
    publish_wait_s: float = 0.0
    # The number of the client's present proof of its identity, counted from 1, and the timer for the proof's end.
    proof: int = 0
    expiry: TimerHandle | None = None
    heard_at: float = 0.0  # when the last command came: Clock.monotonic() s
    lock: Lock = attrs.Factory(Lock)
    _closed_producers: OrderedDict[int, None] = attrs.Factory(OrderedDict)

    @property
    def is_cpp(self) -> bool:
        """A client of the C++ core (also Python's and Node.js's), which closes the connection at an unknown command."""
        return self.client_version.startswith("Pulsar-CPP")

    def push(self, *parts: Part) -> None:
        """Send bytes that answer no request. Any thread."""
        self.outbox.push(self.connection, parts)

    # -- producers and consumers -----------------------------------------------------------------------------------------

    def add_producer(self, producer: Producer) -> None:
        """Raises ServiceNotReady if the connection was closed meanwhile, TooManyRequests. Then the caller undoes the rest."""
        with self.lock:
            self._check_room()
            self.producers[producer.id] = producer

    def remove_producer(self, producer: Producer) -> None:
        """An unknown producer is ignored."""
        with self.lock:
            if self.producers.get(producer.id) is producer:
                del self.producers[producer.id]
                self._closed_producers[producer.id] = None
                if len(self._closed_producers) > _MOST_REMEMBERED:
                    self._closed_producers.popitem(last=False)

    def check_was_producer(self, producer_id: int) -> None:
        """Raises ProtocolError unless there is a producer with this number, or was a short time ago."""
        if producer_id not in self._closed_producers:
            producer = self.producers.get(producer_id)
            if producer is None or not producer.ready:
                raise ProtocolError(f"a SEND of producer {producer_id}, which is not open")

    # -- unanswered SENDs -------------------------------------------------------------------------------------------------

    def owe(self, count: int) -> None:
        with self.lock:
            self.owed += count

    def park(self, done: Callable[[], None]) -> None:
        """Call ``done`` when the client may send more, because few SENDs are unanswered: usually at once."""
        with self.lock:
            if self.owed > _MOST_OWED:
                self.parked = done
                return
        done()

    def paid(self, count: int) -> None:
        """``count`` SENDs have been answered. Any thread."""
        with self.lock:
            self.owed -= count
            if self.parked is None or self.owed > _MOST_OWED // 2:
                return
            done, self.parked = self.parked, None
        done()

    def add_consumer(self, consumer_id: int, consumer: AttachedConsumer) -> None:
        """Raises ServiceNotReady if the connection was closed meanwhile, TooManyRequests. Then the caller undoes the rest."""
        with self.lock:
            self._check_room()
            self.consumers[consumer_id] = consumer

    def remove_consumer(self, consumer_id: int, consumer: AttachedConsumer) -> None:
        """An unknown consumer is ignored."""
        with self.lock:
            if self.consumers.get(consumer_id) is consumer:
                del self.consumers[consumer_id]

    def close(self) -> tuple[list[Producer], list[AttachedConsumer]]:
        """The connection is closed, and nothing can be added any more. Returns its producers and consumers."""
        with self.lock:
            self.closed = True
            producers, consumers = list(self.producers.values()), list(self.consumers.values())
            self.producers, self.consumers = {}, {}
        return producers, consumers

    def _check_room(self) -> None:
        if self.closed:
            raise ServiceNotReady("The connection is closed.")
        if len(self.producers) + len(self.consumers) >= _MOST_ATTACHED:
            raise TooManyRequests(f"A connection may have {_MOST_ATTACHED} producers and consumers.")
