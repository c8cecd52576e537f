"""One producer: a client's, on one topic.

Its SENDs are handled one after the other by its connection. Receipts leave in the order of the SENDs when the entries are
durable, on whatever thread learns that; ``lock`` guards the queue of those that are owed.

Tests: tests/pulsar/producers/test_producer.py.
"""

from collections import deque

import attrs

from broker.network.service import Connection, Outbox
from broker.pulsar.topics.topic import Topic
from broker.runtime.threads import Lock
from protocol.pulsar.frames import write_command
from protocol.pulsar.pulsar_pb2 import BaseCommand, CommandCloseProducer
from protocol.pulsar.receipts import Receipts

# The request id of what the broker says unasked: -1 as an unsigned number.
UNASKED = 2**64 - 1


@attrs.define(eq=False)
class Producer:
    id: int  # the client's number for it, on its connection
    name: str
    topic: Topic
    connection: Connection
    outbox: Outbox
    epoch: int = 0
    closed: bool = False  # by either side: nothing more is taken
    # (sequence id, highest sequence id, first offset, end offset) of each SEND that has no receipt yet.
    pending: deque[tuple[int, int, int, int]] = attrs.Factory(deque)
    lock: Lock = attrs.Factory(Lock)
    _receipts: Receipts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._receipts = Receipts(self.id, self.topic.ledger)

    def close(self) -> None:
        """Tell the client to look the topic up again, and take nothing more from this producer. Any thread."""
        if not self.closed:
            self.closed = True
            command = CommandCloseProducer(producer_id=self.id, request_id=UNASKED)
            self.outbox.push(self.connection, [write_command(BaseCommand.Type.CLOSE_PRODUCER, command)])

    def leave(self) -> None:
        """The client has closed it, or is gone. Any thread."""
        self.closed = True
        with self.topic.lock:
            self.topic.producers.remove(self)

    disconnected = leave

    def owe(self, sequence: int, highest: int, offset: int, end: int) -> None:
        """The entry with this sequence id lies in the log from ``offset`` to ``end``: there is to be a receipt."""
        with self.lock:
            self.pending.append((sequence, highest, offset, end))

    def durable(self) -> None:
        """Send the receipts of what is durable now. Any thread."""
        topic, receipts = self.topic, []
        with self.lock:
            pending, durable = self.pending, topic.log.durable_offset
            while pending and pending[0][3] <= durable:
                sequence, highest, offset, _ = pending.popleft()
                receipts.append(self._receipts.receipt(sequence, offset, highest))
            # Under the lock, so that the receipts of two calls do not overtake each other.
            if receipts:
                self.outbox.push(self.connection, [b"".join(receipts)])
