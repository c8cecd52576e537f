"""A connected consumer: sends it its entries, and pauses it while its connection has not taken them.

``deliver`` and ``pause`` run under the subscription's lock, on any thread; ``writable`` and ``disconnected`` are called on the
connection's processor.

After a slice of entries the consumer is paused until its connection has sent them. So a consumer with a large backlog takes turns
with the other connections of its processor, and a consumer that does not read its socket costs a slice of memory. A consumer
whose client is above its quota of bytes is held in the same way, until the debt is paid.

Tests: tests/pulsar/subscriptions/test_consumer.py.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs

from broker.network.quota import DeliveryQuota
from broker.network.service import Part
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery
from broker.pulsar.subscriptions.waker import Line
from broker.pulsar.topics.topic import AnyTopic
from broker.runtime.disk import Buffer, FileRegion
from protocol.pulsar.deliveries import Deliveries
from protocol.pulsar.frames import UNASKED, write_command
from protocol.pulsar.pulsar_pb2 import (
    BaseCommand,
    CommandActiveConsumerChange,
    CommandCloseConsumer,
    CommandReachedEndOfTopic,
)

_SLICE_BYTES = 512 * 1024
_SLICE_ENTRIES = 1000  # the cost of small entries depends on their number
# Entries up to this size are joined with their neighbours, because a copy costs less than a part of its own.
_COPIED_BYTES = 4096


class OfConsumer(Protocol):
    """A subscription as its consumers see it."""

    @property
    def name(self) -> str: ...

    @property
    def topic(self) -> AnyTopic: ...

    def leave(self, connected: "ConnectedConsumer") -> None: ...

    def flow(self, connected: "ConnectedConsumer", permits: int) -> None: ...

    def resume(self, connected: "ConnectedConsumer") -> None: ...


@attrs.define(eq=False)
class ConnectedConsumer:
    connection: PulsarConnection
    id: int  # the client's number for it, on its connection
    subscription: OfConsumer
    heads: Deliveries
    line: Line  # of the waker
    since_ms: int  # wall clock
    quota: DeliveryQuota | None = None  # None: clients have none
    epoch: int | None = None  # the client's, which MESSAGE repeats; None: the client sent none
    consumer: Consumer = attrs.field(init=False)
    metadata: dict[str, str] = attrs.Factory(dict)
    paused: bool = False
    held: bool = False  # paused because of its client's quota
    left: bool = False  # it is no longer in the subscription
    messages_out: int = 0
    bytes_out: int = 0
    redelivered: int = 0
    told_end: bool = False  # REACHED_END_OF_TOPIC has been sent
    _slice_bytes: int = 0
    _slice_entries: int = 0

    # -- on the connection's processor ----------------------------------------------------------------------------------

    def disconnected(self) -> None:
        self.subscription.leave(self)

    def disconnected_later(self) -> None:
        self.line.call(self.disconnected)

    def writable(self) -> None:
        if self.paused and not self.held:
            self.subscription.resume(self)

    # -- under the subscription's lock ----------------------------------------------------------------------------------

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        heads, epoch = self.heads, self.epoch
        parts: list[Part] = []
        copied: list[Buffer] = []  # since the last large entry
        size = messages = 0
        known = known_size = -1  # offset >> 7 and size for which `before`, `first` and `after` hold
        before = after = b""
        first: Sequence[bytes] = ()
        for entry, count, ack_set in deliveries:
            offset, entry_size, data = entry.offset, entry.size, entry.data
            if count or ack_set or epoch is not None:
                copied.append(heads.head(offset, entry_size, count, ack_set or (), epoch))
            else:
                if entry_size != known_size or offset >> 7 != known:
                    known, known_size = offset >> 7, entry_size
                    before, first, after = heads.plain(offset, entry_size)
                copied += (before, first[offset & 0x7F], after)
            if entry_size <= _COPIED_BYTES and not isinstance(data, FileRegion):
                copied.append(data)
            else:
                parts.append(b"".join(copied))
                parts.append(data)
                copied.clear()
            size += entry_size
            messages += entry.messages
            if count:
                self.redelivered += entry.messages
        if copied:
            parts.append(b"".join(copied))
        self.messages_out += messages
        self.bytes_out += size
        connection = self.connection
        connection.outbox.push(connection.connection, parts)
        self._slice_bytes += size
        self._slice_entries += len(deliveries)
        if (
            self._slice_bytes >= _SLICE_BYTES
            or self._slice_entries >= _SLICE_ENTRIES
            or not connection.connection.writable
        ):
            self.pause()
        if self.quota is not None and self.quota.delivered(connection.connection.principal.name, size):
            self._hold()

    def pause(self) -> None:
        """Send nothing more until the connection has sent its queued bytes."""
        if not self.paused:
            self.paused = True
            self.consumer.writable = False
            self.connection.outbox.call(self.connection.connection, self._ask_to_be_called)

    def _hold(self) -> None:
        """Send nothing more until the client's debt is paid."""
        if not self.held:
            self.held = self.paused = True
            self.consumer.writable = False
            self._release_or_wait()

    def _release_or_wait(self) -> None:
        """Called by ``_hold`` and on the timer's thread."""
        if self.left:
            return
        connection = self.connection.connection
        if self.quota is None or not self.quota.when_to_look(connection.principal.name, self._release_or_wait):
            self.held = False
            self.connection.outbox.call(connection, self._ask_to_be_called)

    def go_on(self) -> None:
        """Begin a new slice."""
        self.paused = False
        self._slice_bytes = self._slice_entries = 0
        self.consumer.writable = True

    def _ask_to_be_called(self) -> None:
        """On the processor. If everything has been sent meanwhile, the processor would not call ``writable``."""
        connection = self.connection.connection
        if connection.outgoing_bytes:
            connection.writable = False
        else:
            self.line.call(self.writable)  # not here: the subscription's lock may be held

    def close(self) -> None:
        """Have the client look up the topic and subscribe again. The caller removes the consumer from the subscription."""
        self.connection.remove_consumer(self.id, self)
        self._tell(BaseCommand.Type.CLOSE_CONSUMER, CommandCloseConsumer(consumer_id=self.id, request_id=UNASKED))

    def tell_active(self, active: bool) -> None:
        self._tell(
            BaseCommand.Type.ACTIVE_CONSUMER_CHANGE,
            CommandActiveConsumerChange(consumer_id=self.id, is_active=active),
        )

    def tell_end_of_topic(self) -> None:
        """Sent once, and not to clients of the C++ core, which do not know the command and would close the connection."""
        if not self.told_end and not self.connection.is_cpp:
            self.told_end = True
            self._tell(BaseCommand.Type.REACHED_END_OF_TOPIC, CommandReachedEndOfTopic(consumer_id=self.id))

    def _tell(self, type: int, command: object) -> None:
        self.connection.push(write_command(type, command))  # type: ignore[arg-type]
