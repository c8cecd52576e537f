"""A client's producer on a topic, with the receipts that it is owed, and the ordered pushes of a connection.

The connection handles a producer's SENDs in sequence. Their receipts and errors leave in the order of the SENDs: each waits in
``owed`` until its entry is durable and everything before it has left. Any thread may call. ``lock`` guards that queue, and bytes
are pushed under it, so that two threads cannot overtake each other.

``OrderedOutbox`` keeps the order of pushes from several threads to a connection. The reactor's ``push`` takes effect at once on
the connection's processor, but a little later from another thread, so a push by the processor could overtake an earlier push by
another thread. Receipts and messages must not overtake each other. Here each push goes to a queue, which the processor empties.

Tests: tests/pulsar/producers/test_publishing.py,
tests/pulsar/producers/test_access.py,
tests/pulsar/test_ordered_outbox.py.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import attrs

from broker.errors import Refusal, StorageError
from broker.network.service import Connection, Outbox, Part, Request
from broker.pulsar.producers.producers import Access
from broker.pulsar.refusals import code_of
from broker.pulsar.topics.topic import AnyTopic
from broker.runtime.threads import Lock
from protocol.pulsar.deliveries import DUPLICATE, Receipts
from protocol.pulsar.frames import UNASKED, write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandCloseProducer, CommandSendError
from protocol.pulsar.sends import UsualSends


class OrderedOutbox:
    """The outbox of a connection. Callers that need an order among their pushes push under a lock of their own."""

    def __init__(self, connection: Connection, outbox: Outbox) -> None:
        self._connection = connection
        self._outbox = outbox
        self._queue: deque[Sequence[Part]] = deque()

    def push(self, connection: Connection, parts: Sequence[Part]) -> None:
        """Send bytes that answer no request."""
        assert connection is self._connection, "the outbox of another connection"
        self._queue.append(parts)
        self._outbox.call(connection, self._leave)

    def call(self, connection: Connection, work: Callable[[], None]) -> None:
        """Run ``work`` on the connection's processor, as ``Outbox.call`` does."""
        self._outbox.call(connection, work)

    def close(self, request: Request) -> None:
        """Close the connection, as ``Outbox.close`` does."""
        self._outbox.call(self._connection, self._leave)
        self._outbox.close(request)

    def _leave(self) -> None:
        """On the processor."""
        queue, push, connection = self._queue, self._outbox.push, self._connection
        while queue:
            push(connection, queue.popleft())


class Owed(NamedTuple):
    """The answers to SENDs of the same append. ``end``: everything before this offset must be durable first. ``receipts``: the
    sequence id, entry id and highest sequence id of each SEND."""

    end: int
    receipts: Sequence[tuple[int, int, int]]
    error: bytes | None = None  # a frame that is sent instead of the only receipt


@attrs.define(eq=False, repr=False)
class Producer:
    id: int  # chosen by the client; unique on its connection
    name: str
    topic: AnyTopic
    connection: Connection
    outbox: OrderedOutbox
    on_closed: Callable[["Producer"], None]  # the broker has closed it, so the connection forgets it
    on_paid: Callable[[int], None]  # so many SENDs were answered
    on_promoted: Callable[["Producer"], None]  # it waited, and is the exclusive producer now
    on_fenced: Callable[["Producer"], None]  # it waited, and was fenced
    access: Access = Access.SHARED
    epoch: int = 0
    topic_epoch: int | None = None
    request_id: int = 0  # of its PRODUCER
    ready: bool = False  # the client was told that it may send
    closed: bool = False  # by either side, or by an error that does not concern a single message: SENDs are ignored
    since_ms: int = 0  # wall clock
    client_version: str = ""
    schema_version: bytes = b""  # of the topic, as the client was told; empty if there is none
    messages_in: int = 0
    bytes_in: int = 0
    owed: deque[Owed] = attrs.Factory(deque)
    lock: Lock = attrs.Factory(Lock)
    usual: UsualSends = attrs.field(init=False)
    _receipts: Receipts = attrs.field(init=False)
    _duplicates: Receipts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.usual = UsualSends(self.id)
        self._receipts = Receipts(self.id, self.topic.ledger)
        self._duplicates = Receipts(self.id, DUPLICATE)

    @property
    def identity(self) -> Hashable:
        return self.connection, self.id

    def leave(self) -> None:
        """The client has closed the producer or disconnected. Any thread."""
        self.closed = True
        topic = self.topic
        with topic.lock:
            promoted = topic.producers.remove(self)
        if promoted is not None:
            promoted.promoted()

    disconnected = leave

    # -- messages to the client: any thread -------------------------------------------------------------------------------

    def close(self) -> None:
        """Tell the client to connect the producer again, and ignore further SENDs. The topic has removed the producer, or is
        about to."""
        if self.closed:
            return
        self.closed = True
        self.on_closed(self)
        if self.ready:
            command = CommandCloseProducer(producer_id=self.id, request_id=UNASKED)
            self.outbox.push(self.connection, [write_command(BaseCommand.Type.CLOSE_PRODUCER, command)])

    def promoted(self) -> None:
        self.on_promoted(self)

    def fenced(self) -> None:
        self.closed = True
        self.on_fenced(self)

    def owe(self, owed: Owed) -> None:
        """Queue these receipts behind those that are already owed."""
        with self.lock:
            self.owed.append(owed)

    def pay(self) -> None:
        """Send the receipts that may leave now."""
        queue = self.owed
        parts = []
        count = 0
        with self.lock:
            durable = self.topic.durable_offset
            while queue and queue[0].end <= durable:
                _, receipts, error = queue.popleft()
                count += len(receipts)
                encoder = self._duplicates if receipts[0][1] == DUPLICATE else self._receipts
                parts.append(error or encoder.receipts(receipts))
            if parts:
                self.outbox.push(self.connection, parts if len(parts) == 1 else [b"".join(parts)])
        if count:
            self.on_paid(count)

    def fail(self, error: StorageError) -> None:
        """Entries that are not durable never will be: send the client an error for the first such SEND. It then sends all of them
        again on a new connection."""
        with self.lock:
            self.closed = True
            count = sum(len(owed.receipts) for owed in self.owed)
            if count:
                sequence_id = self.owed[0].receipts[0][0]
                self.owed.clear()
                self.outbox.push(self.connection, [send_error(self.id, sequence_id, error)])
        if count:
            self.on_paid(count)


def send_error(producer_id: int, sequence_id: int, error: Refusal | StorageError) -> bytes:
    command = CommandSendError(
        producer_id=producer_id,
        sequence_id=sequence_id,
        error=code_of(error),
        message=str(error) or type(error).__name__,
    )
    return write_command(BaseCommand.Type.SEND_ERROR, command)


def duplicate(sequence_id: int, highest_sequence_id: int, end: int) -> Owed:
    """The receipt of a message that is already in the log, before ``end``."""
    return Owed(end, [(sequence_id, DUPLICATE, highest_sequence_id)])
