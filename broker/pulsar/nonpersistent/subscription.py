"""Subscriptions of non-persistent topics: their consumers, and the choice of the consumer that gets a message.

A subscription has no cursor, so it ignores acknowledgements and seeks, and without consumers it is only a name. A durable
subscription exists until it is deleted or its topic is unloaded; any other ends with its last consumer.

A message is delivered to a consumer at once, or dropped. Nothing is read, acknowledged or redelivered, so the types of
subscriptions differ only in their ``Chooser``:

| type | consumer that gets the entry |
|---|---|
| Exclusive | the only consumer |
| Failover | the active consumer, chosen as for persistent topics, but without the delay |
| Shared | the next in turn, by priority, of the available consumers |
| Key_Shared | the owner of the key's hash |

A consumer is available if it has permits and its connection is not full. If the chosen consumer is not available, the entry is
dropped. Since nothing waits for a consumer, it is not served in slices, because messages between two slices would be dropped:
it gets as much as it has permits for, while at most ``_UNSENT_MAX`` bytes of that are in the broker.

Any thread. The subscription's ``lock`` guards its chooser, too. It is taken below the topic's lock and above those of
connections; nothing blocks under it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import attrs

from broker.network.quota import DeliveryQuota
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.dispatch.assignment import Turns
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery, DispatchSettings, KeySharedPolicy, SubType
from broker.pulsar.dispatch.key_ranges import key_ranges
from broker.pulsar.dispatch.single_active import Choice, OneOfMany, OnlyOne
from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.refusals import NotAllowed
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.subscriptions import Join, check_join, connect
from broker.runtime.threads import Lock

# Bytes that were passed to the connection and have not left. From _ASK_BYTES on, the processor is asked how many have left; from
# _UNSENT_MAX on, nothing more is passed to the connection.
_ASK_BYTES = 128 * 1024
_UNSENT_MAX = 2 * 1024 * 1024


@attrs.define(eq=False)
class PassingConsumer(ConnectedConsumer):
    _gone: int = 0  # bytes that have left, as far as is known; changed on the processor
    _asked: bool = False

    def has_room(self) -> bool:
        """Whether other consumers of the connection leave it room; if not, it is paused. Asked before each delivery, because they
        may have filled the connection since its last. The subscription's lock is held."""
        if self.connection.connection.outgoing_bytes < _UNSENT_MAX:
            return True
        ConnectedConsumer.pause(self)
        return False

    def pause(self) -> None:
        """Called after each delivery, where a persistent subscription ends a slice: pause only if the connection is full. The
        subscription's lock is held."""
        connection = self.connection.connection
        unsent = self.bytes_out - self._gone
        # Bytes of the connection's other consumers count, too.
        if unsent >= _UNSENT_MAX or connection.outgoing_bytes >= _UNSENT_MAX:
            ConnectedConsumer.pause(self)
        elif unsent >= _ASK_BYTES and not self._asked:
            self._asked = True
            self.connection.outbox.call(connection, partial(self._look, self.bytes_out))

    def _look(self, given: int) -> None:
        """On the processor: those of the first ``given`` bytes that are not in the connection have left."""
        self._asked = False
        self._gone = max(self._gone, given - self.connection.connection.outgoing_bytes)

    def go_on(self) -> None:
        """The connection has sent all its bytes."""
        self._gone = max(self._gone, self.bytes_out - self.connection.connection.outgoing_bytes)
        ConnectedConsumer.go_on(self)


class Chooser(Protocol):
    def join(self, consumer: Consumer) -> None:
        """Raises a Refusal, and changes nothing then."""

    def leave(self, consumer: Consumer) -> None: ...

    def offer(self, consumer: Consumer) -> None:
        """The consumer may have become available."""

    def take(self, entry: Entry) -> Consumer | None:
        """The consumer that gets the entry, with its permits reduced by the entry's messages; None if the entry is dropped."""

    @property
    def active(self) -> Consumer | None:
        """The only consumer that is served; None if all are, or there are none."""


class OneServed:
    """Serves a single consumer, which ``choice`` determines."""

    __slots__ = ("_choice", "_count", "active")

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._count = 0
        self.active: Consumer | None = None

    def join(self, consumer: Consumer) -> None:
        self._choice.join(consumer)
        self._count += 1
        self.active = self._choice.active()

    def leave(self, consumer: Consumer) -> None:
        self._choice.leave(consumer)
        self._count -= 1
        self.active = self._choice.active() if self._count else None

    def offer(self, consumer: Consumer) -> None: ...

    def take(self, entry: Entry) -> Consumer | None:
        consumer = self.active
        if consumer is None or not consumer.available:
            return None
        consumer.permits -= entry.messages
        return consumer


class InTurn:
    __slots__ = ("_turns",)

    active: Consumer | None = None

    def __init__(self) -> None:
        self._turns = Turns()

    def join(self, consumer: Consumer) -> None:
        self._turns.offer(consumer)

    def leave(self, consumer: Consumer) -> None:
        self._turns.remove(consumer)

    def offer(self, consumer: Consumer) -> None:
        self._turns.offer(consumer)

    def take(self, entry: Entry) -> Consumer | None:
        consumer = self._turns.first()
        if consumer is not None:
            consumer.permits -= entry.messages
            self._turns.end_turn(consumer)
        return consumer


class ByHash:
    __slots__ = ("_ranges",)

    active: Consumer | None = None

    def __init__(self, settings: DispatchSettings, *, sticky: bool) -> None:
        self._ranges = key_ranges(settings, sticky=sticky)

    def join(self, consumer: Consumer) -> None:
        self._ranges.join(consumer)

    def leave(self, consumer: Consumer) -> None:
        self._ranges.leave(consumer)

    def offer(self, consumer: Consumer) -> None: ...

    def take(self, entry: Entry) -> Consumer | None:
        consumer = self._ranges.owner(self._ranges.reduce(entry.sticky_hash))
        if consumer is None or not consumer.available:
            return None
        consumer.permits -= entry.messages
        return consumer


@attrs.define(eq=False, repr=False)
class NonPersistentSubscription:
    topic: NonPersistentTopic
    name: str
    durable: bool
    since_ms: int  # wall clock
    kind: int = -1  # CommandSubscribe.SubType; -1: it has had no consumer yet
    policy: KeySharedPolicy | None = None
    connected: dict[PassingConsumer, None] = attrs.Factory(dict)
    closed: bool = False
    messages_out: int = 0  # also of consumers that have left
    bytes_out: int = 0
    dropped: int = 0  # messages
    lock: Lock = attrs.Factory(Lock)
    _chooser: Chooser | None = None

    @property
    def has_consumers(self) -> bool:
        return bool(self.connected)

    @property
    def consumer_count(self) -> int:
        return len(self.connected)

    @property
    def active(self) -> Consumer | None:
        """The only consumer that is served; None if all are."""
        return None if self._chooser is None else self._chooser.active

    # -- consumers ----------------------------------------------------------------------------------------------------------

    def join(
        self,
        connection: PulsarConnection,
        join: Join,
        settings: DispatchSettings,
        quota: DeliveryQuota | None,
        since_ms: int,
    ) -> PassingConsumer:
        """Add a consumer. The topic's lock is held. Raises a Refusal; after Busy a second try may succeed."""
        with self.lock:
            check_join(self, join)
            if not self.connected and (self._chooser is None or (self.kind, self.policy) != (join.kind, join.policy)):
                self._chooser = self._new_chooser(join, settings)
                self.kind, self.policy = join.kind, join.policy
            assert self._chooser is not None
            connected = connect(PassingConsumer, connection, join, self, self.topic.line, since_ms, quota)
            before = self._chooser.active
            self._chooser.join(connected.consumer)
            self.connected[connected] = None
            if join.kind == SubType.Failover:
                self._tell_active(before, connected)
            return connected

    def _new_chooser(self, join: Join, settings: DispatchSettings) -> Chooser:
        """Raises NotAllowed for an unknown type."""
        topic = self.topic
        if join.kind == SubType.Exclusive:
            return OneServed(OnlyOne())
        if join.kind == SubType.Failover:
            return OneServed(OneOfMany(str(topic.name.whole), topic.partition, 0.0))
        if join.kind == SubType.Shared:
            return InTurn()
        if join.kind == SubType.Key_Shared:
            assert join.policy is not None
            return ByHash(settings, sticky=join.policy.sticky)
        raise NotAllowed(f"There are no subscriptions of the type {join.kind}.")

    def _tell_active(self, before: Consumer | None, newcomer: PassingConsumer | None) -> None:
        """Failover: tell the old and the new active consumer if it has changed, and a newcomer in any case. The others know that
        they are not active; with many consumers it would cost too much to tell them whenever a consumer joins or leaves."""
        active = self.active
        changed = () if active is before else (before, active)
        told = dict.fromkeys(each.owner for each in changed if each is not None)
        if newcomer is not None:
            told[newcomer] = None
        for each in told:
            if each in self.connected:
                each.tell_active(each.consumer is active)

    def leave(self, connected: ConnectedConsumer) -> None:
        """A consumer has left. Does nothing for an unknown consumer."""
        with self.lock:
            if connected not in self.connected:
                return
            self._remove(connected)
            ends = not self.connected and not self.durable
        if ends:
            self.topic.drop(self)

    def _remove(self, connected: ConnectedConsumer) -> None:
        assert isinstance(connected, PassingConsumer)
        assert self._chooser is not None
        before = self._chooser.active
        del self.connected[connected]
        connected.left = True
        self._chooser.leave(connected.consumer)
        if self.kind == SubType.Failover and self.connected:
            self._tell_active(before, None)

    def close(self) -> None:
        """The subscription is deleted, or its topic unloaded. Its consumers subscribe again."""
        with self.lock:
            self.closed = True
            for connected in list(self.connected):
                connected.close()
                self._remove(connected)

    # -- events -------------------------------------------------------------------------------------------------------------

    def flow(self, connected: ConnectedConsumer, permits: int) -> None:
        with self.lock:
            if connected in self.connected:
                assert self._chooser is not None
                connected.consumer.permits += permits
                self._chooser.offer(connected.consumer)

    def resume(self, connected: ConnectedConsumer) -> None:
        """The consumer's connection has sent all its bytes."""
        with self.lock:
            if connected in self.connected and connected.paused:
                assert self._chooser is not None
                connected.go_on()
                self._chooser.offer(connected.consumer)

    def redeliver(self, connected: ConnectedConsumer, entries: Sequence[int] | None, epoch: int | None) -> None:
        """Only note the epoch: no messages are kept for redelivery."""
        if epoch is not None:
            connected.epoch = epoch

    def pass_on(self, entries: Sequence[Entry]) -> None:
        """Deliver these to available consumers, and drop the rest."""
        with self.lock:
            chooser = self._chooser
            if chooser is None or not self.connected:
                self.dropped += sum(entry.messages for entry in entries)
                return
            batches: dict[Consumer, list[Delivery]] = {}
            for entry in entries:
                if entry.marker:
                    continue
                consumer = chooser.take(entry)
                if consumer is None:
                    self.dropped += entry.messages
                    continue
                batches.setdefault(consumer, []).append(Delivery(entry))
            for consumer, deliveries in batches.items():
                self._give(consumer, deliveries)

    def _give(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        connected = consumer.owner
        messages = sum(each.entry.messages for each in deliveries)
        if connected.has_room():
            self.messages_out += messages
            self.bytes_out += sum(each.entry.size for each in deliveries)
            connected.deliver(deliveries)
        else:
            self.dropped += messages
            consumer.permits += messages
