"""A subscription of a topic whose messages are not kept: its consumers, and which of them gets what.

It has no cursor: acknowledgements and seeks mean nothing to it, and without consumers it is a name. One that is durable keeps
that name until it is deleted, or its topic goes out of use; any other goes with its last consumer.

Any thread. ``lock`` is taken below the topic's and above those of connections; nothing that blocks happens under it.

A consumer of messages that are not kept.

Nothing waits for it: what its connection cannot take is dropped. So it is not given slices, which would cost it messages
between two of them, but as much as it has permits for, as long as no more than ``_UNSENT_MAX`` bytes of that are in the broker.

Which consumer of a subscription gets a message that is not kept. Pure; the subscription's lock guards it.

The message goes to a consumer at once, or is dropped. So there is nothing to read, to acknowledge or to deliver again, and each
type of subscription is only a way to choose:

| type | who gets the entry |
|---|---|
| Exclusive | the consumer |
| Failover | the active one: the same choice as for topics that are kept, without the delay |
| Shared | the next in turn, by priority, of those that can take it |
| Key_Shared | the owner of the hash of its key |

A consumer can take something if it has permits and its connection is not full. Where the one whose entry it is cannot, nobody
gets it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import attrs

from broker.network.quota import DeliveryQuota
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.dispatch.assignment import Turns
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery, DispatchSettings
from broker.pulsar.dispatch.key_ranges import Halves, KeyRanges, Points, Sticky
from broker.pulsar.dispatch.single_active import Choice, OneOfMany, OnlyOne
from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.refusals import ConsumerBusy, NotAllowed, ServiceNotReady
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.dispatchers import KeySharedPolicy, SubType
from broker.pulsar.subscriptions.subscriptions import Busy, Join
from broker.runtime.threads import Lock
from protocol.pulsar.deliveries import Deliveries

# Bytes that were given to the connection and have not left. From the second on nothing more is given to it; the first is when
# the processor is asked how many have left.
_ASK_BYTES = 128 * 1024
_UNSENT_MAX = 2 * 1024 * 1024


@attrs.define(eq=False)
class PassingConsumer(ConnectedConsumer):
    _gone: int = 0  # bytes that have left, as far as is known; changed on the processor
    _asked: bool = False

    def has_room(self) -> bool:
        """Whether others on the connection leave it any: each may be given something before it finds out by itself. If not, it
        is paused. The subscription's lock is held."""
        if self.connection.connection.outgoing_bytes < _UNSENT_MAX:
            return True
        ConnectedConsumer.pause(self)
        return False

    def pause(self) -> None:
        """After what would have been a slice, each time. The subscription's lock is held."""
        connection = self.connection.connection
        unsent = self.bytes_out - self._gone
        # What others on the connection have been sent counts, too.
        if unsent >= _UNSENT_MAX or connection.outgoing_bytes >= _UNSENT_MAX:
            ConnectedConsumer.pause(self)
        elif unsent >= _ASK_BYTES and not self._asked:
            self._asked = True
            self.connection.outbox.call(connection, partial(self._look, self.bytes_out))

    def _look(self, given: int) -> None:
        """On the processor: of the first ``given`` bytes, what is not in the connection has left."""
        self._asked = False
        self._gone = max(self._gone, given - self.connection.connection.outgoing_bytes)

    def go_on(self) -> None:
        """The connection has sent what it had."""
        self._gone = max(self._gone, self.bytes_out - self.connection.connection.outgoing_bytes)
        ConnectedConsumer.go_on(self)


class Chooser(Protocol):
    def join(self, consumer: Consumer) -> None:
        """Raises a Refusal; then nothing has changed."""

    def leave(self, consumer: Consumer) -> None: ...

    def offer(self, consumer: Consumer) -> None:
        """It may be available, and perhaps was not before."""

    def take(self, entry: Entry) -> Consumer | None:
        """Who gets the entry, with permits that are reduced by its messages. None: nobody."""

    @property
    def active(self) -> Consumer | None:
        """The only one that is served. None: all of them are, or there are none."""


class OneServed:
    """``choice``: which of them it is."""

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
        self._ranges: KeyRanges
        if sticky:
            self._ranges = Sticky()
        elif settings.consistent_hashing:
            self._ranges = Points(settings.hash_points)
        else:
            self._ranges = Halves()

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
    kind: int = -1  # CommandSubscribe.SubType; -1: there was no consumer yet
    policy: KeySharedPolicy | None = None
    connected: dict[PassingConsumer, None] = attrs.Factory(dict)
    closed: bool = False
    messages_out: int = 0  # of consumers that have left, too
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
        """The only consumer that is served; None: all of them are."""
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
        """A new consumer. The topic's lock is held. Raises a Refusal, of which Busy may be worth a second try."""
        with self.lock:
            self._check(join)
            if not self.connected and (self._chooser is None or (self.kind, self.policy) != (join.kind, join.policy)):
                self._chooser = self._new_chooser(join, settings)
                self.kind, self.policy = join.kind, join.policy
            assert self._chooser is not None
            connected = PassingConsumer(
                connection,
                join.consumer_id,
                self,
                Deliveries(join.consumer_id, self.topic.ledger, self.topic.partition),
                self.topic.line,
                since_ms,
                quota,
                epoch=join.epoch,
                metadata=dict(join.metadata),
            )
            connected.consumer = Consumer(
                id=connected, name=join.consumer_name, owner=connected, priority=join.priority, ranges=join.ranges
            )
            before = self._chooser.active
            self._chooser.join(connected.consumer)
            self.connected[connected] = None
            if join.kind == SubType.Failover:
                self._tell_active(before, connected)
            return connected

    def _check(self, join: Join) -> None:
        if self.closed:
            raise ServiceNotReady("The subscription is being closed; try again.")
        if self.durable != join.durable:
            raise NotAllowed("A subscription with the same name exists, and only one of the two is durable.")
        if self.connected:
            if self.kind != join.kind:
                raise ConsumerBusy("Subscription is of different type")
            if self.policy != join.policy:
                raise ConsumerBusy("Subscription is of different type: another Key_Shared policy")
            if join.kind == SubType.Exclusive:
                raise Busy(next(iter(self.connected)))

    def _new_chooser(self, join: Join, settings: DispatchSettings) -> Chooser:
        """Raises NotAllowed for a type that there is not."""
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
        """Failover: those two are told between whom it has changed, and a newcomer in any case. All others know already that
        they are not active: with many consumers it would cost too much to tell them with each one that joins or leaves."""
        active = self.active
        changed = () if active is before else (before, active)
        told = dict.fromkeys(each.owner for each in changed if each is not None)
        if newcomer is not None:
            told[newcomer] = None
        for each in told:
            if each in self.connected:
                each.tell_active(each.consumer is active)

    def leave(self, connected: ConnectedConsumer) -> None:
        """A consumer has left. Unknown: nothing."""
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
        """It is deleted, or its topic goes out of use. Its consumers subscribe again."""
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
        """The consumer's connection has sent what it had."""
        with self.lock:
            if connected in self.connected and connected.paused:
                assert self._chooser is not None
                connected.go_on()
                self._chooser.offer(connected.consumer)

    def redeliver(self, connected: ConnectedConsumer, entries: Sequence[int] | None, epoch: int | None) -> None:
        """Nothing is kept that could be delivered again."""
        if epoch is not None:
            connected.epoch = epoch

    def pass_on(self, entries: Sequence[Entry]) -> None:
        """Give these to the consumers that can take them."""
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
