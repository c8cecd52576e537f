"""One producer: a client's, on one topic.

Its SENDs are handled one after the other by its connection. What it is owed for them, receipts and errors, leaves in the order
of the SENDs: each waits in ``owed`` until its entry is durable and everything before it has left. ``lock`` guards that queue,
and bytes are pushed under it, so that two threads cannot overtake each other.

What a connection is sent without having asked for it, in the order in which it was said, whichever threads say it.

The reactor's ``push`` takes effect at once on the connection's processor and a little later from any other thread, so that what
the processor pushes can overtake what another thread has pushed before. Receipts and messages must not overtake each other. Here
each push is put into a queue, and the processor empties it.

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
    """For one connection. Callers whose pushes belong together make them under a lock of theirs."""

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
    """For SENDs of one append. ``end``: everything before this offset must be durable first. ``receipts``: of each SEND its
    sequence id, its entry id and its highest sequence id."""

    end: int
    receipts: Sequence[tuple[int, int, int]]
    error: bytes | None = None  # instead of the one receipt


@attrs.define(eq=False, repr=False)
class Producer:
    id: int  # the client's number for it, on its connection
    name: str
    topic: AnyTopic
    connection: Connection
    outbox: OrderedOutbox
    on_closed: Callable[["Producer"], None]  # the broker has closed it: the connection forgets it
    on_paid: Callable[[int], None]  # so many SENDs were answered
    on_promoted: Callable[["Producer"], None]  # it has waited, and is the exclusive producer now
    on_fenced: Callable[["Producer"], None]  # it has waited in vain
    access: Access = Access.SHARED
    epoch: int = 0
    topic_epoch: int | None = None
    request_id: int = 0  # of its PRODUCER
    ready: bool = False  # the client was told that it may send
    closed: bool = False  # by either side, or after an error that is not a message's own: nothing more is taken
    since_ms: int = 0  # wall clock
    client_version: str = ""
    schema_version: bytes = b""  # of the topic, as its client was told; empty: none
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
        """The client has closed it, or is gone. Any thread."""
        self.closed = True
        topic = self.topic
        with topic.lock:
            promoted = topic.producers.remove(self)
        if promoted is not None:
            promoted.promoted()

    disconnected = leave

    # -- what its client is told: any thread ------------------------------------------------------------------------------

    def close(self) -> None:
        """Tell the client to connect the producer again, and take nothing more from this one. The topic does not have it any
        more, or is about to forget it."""
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
        """There are to be receipts for these, after all that it is owed already."""
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
                of = self._duplicates if receipts[0][1] == DUPLICATE else self._receipts
                parts.append(error or of.receipts(receipts))
            if parts:
                self.outbox.push(self.connection, parts if len(parts) == 1 else [b"".join(parts)])
        if count:
            self.on_paid(count)

    def fail(self, error: StorageError) -> None:
        """What is not durable will never be: the client gets the error of the first SEND, and sends all again on a new
        connection."""
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
    """The receipt of a message that is in the log already, before ``end``."""
    return Owed(end, [(sequence_id, DUPLICATE, highest_sequence_id)])
