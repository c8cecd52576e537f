"""The service's state of a connection: the client's properties, and its producers and consumers.

The commands of a connection are handled one after the other, on its processor or on a handler. Other threads fence producers,
close consumers and end the connection; ``lock`` guards the two tables and ``closed``.

Tests: tests/pulsar/test_connection.py.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import attrs

from broker.network.service import Connection, Part
from broker.pulsar.producers.producer import OrderedOutbox, Producer
from broker.pulsar.refusals import ServiceNotReady, TooManyRequests
from broker.runtime.threads import Lock
from broker.runtime.timers import TimerHandle
from protocol.errors import ProtocolError

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
