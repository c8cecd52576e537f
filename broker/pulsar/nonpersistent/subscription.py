"""A subscription of a topic whose messages are not kept: its consumers, and which of them gets what.

It has no cursor: acknowledgements and seeks mean nothing to it, and without consumers it is a name. One that is durable keeps
that name until it is deleted, or its topic goes out of use; any other goes with its last consumer.

Any thread. ``lock`` is taken below the topic's and above those of connections; nothing that blocks happens under it.
"""

from collections.abc import Sequence

import attrs

from broker.network.delivery_quota import DeliveryQuota
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery
from broker.pulsar.dispatch.exclusive import OnlyOne
from broker.pulsar.dispatch.failover import OneOfMany
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.entry import Entry
from broker.pulsar.nonpersistent.choosing import ByHash, Chooser, InTurn, OneServed
from broker.pulsar.nonpersistent.consumer import PassingConsumer
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.refusals import ConsumerBusy, NotAllowed, ServiceNotReady
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.dispatchers import KeySharedPolicy, SubType
from broker.pulsar.subscriptions.subscriptions import Busy, Join
from broker.runtime.threads import Lock
from protocol.pulsar.deliveries import Deliveries


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
