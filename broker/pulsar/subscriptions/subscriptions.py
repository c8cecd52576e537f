"""The subscriptions of all topics: loading them, joining them, deleting them.

A topic's table of subscriptions is guarded by the topic's lock. Any thread; nothing here blocks.
"""

import uuid
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Protocol, TypeVar

import attrs

from broker.errors import StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import Done
from broker.network.quota import DeliveryQuota
from broker.part import PartThread
from broker.pulsar.compaction.reader import CompactedReader
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.dispatch.by_key import KeyShared
from broker.pulsar.dispatch.delayed import DelayedTracker
from broker.pulsar.dispatch.dispatcher import Consumer, Dispatcher, DispatchSettings, KeySharedPolicy, SubType
from broker.pulsar.dispatch.rate_limit import RateLimit
from broker.pulsar.dispatch.round_robin import Shared
from broker.pulsar.dispatch.single_active import Exclusive, Failover
from broker.pulsar.refusals import ConsumerBusy, NotAllowed, ServiceNotReady
from broker.pulsar.subscriptions.consumer import ConnectedConsumer, OfConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.cursor_store import CursorStore
from broker.pulsar.subscriptions.subscription import Subscription, SubscriptionSurroundings
from broker.pulsar.subscriptions.waker import Line, Waker
from broker.pulsar.topics.topic import AnyTopic, Topic
from broker.runtime.clock import Clock
from broker.runtime.timers import Timer
from protocol.pulsar.deliveries import Deliveries

log = get_logger("pulsar")

C = TypeVar("C", bound=ConnectedConsumer)


@attrs.frozen(kw_only=True)
class Bounds:
    """0: no bound."""

    subscriptions_of_topic: int = 10_000
    consumers_of_topic: int = 0
    consumers_of_subscription: int = 0


@attrs.frozen(kw_only=True)
class Join:
    """The values of a SUBSCRIBE command."""

    subscription: str
    kind: int  # CommandSubscribe.SubType
    consumer_id: int
    consumer_name: str
    durable: bool = True
    priority: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    policy: KeySharedPolicy | None = None  # of Key_Shared
    epoch: int | None = None
    read_compacted: bool = False
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    properties: Mapping[str, str] = attrs.field(factory=dict)  # of the subscription, if it is made


class Limits(Protocol):
    """The limits of a topic (``broker/pulsar/policies/store.py``)."""

    def bounds(self, topic: Topic) -> Bounds: ...

    def settings(self, topic: Topic) -> DispatchSettings: ...

    def delays(self, topic: Topic) -> bool:
        """Whether messages may be delivered later than they are sent."""

    def rate_limit(self, topic: Topic, subscription: str) -> RateLimit: ...


class Busy(ConsumerBusy):
    """An exclusive subscription has a consumer, whose connection may be dead."""

    def __init__(self, holder: ConnectedConsumer) -> None:
        super().__init__("Exclusive consumer is already connected")
        self.holder = holder


class Joinable(Protocol):
    """A subscription, whether its topic's messages are kept or not."""

    @property
    def closed(self) -> bool: ...

    @property
    def durable(self) -> bool: ...

    @property
    def kind(self) -> int: ...

    @property
    def policy(self) -> object: ...

    @property
    def connected(self) -> Collection[ConnectedConsumer]: ...


def check_subscriptions(bounds: Bounds, topic: AnyTopic) -> None:
    """Raises NotAllowed if the topic may get no further subscription. The topic's lock is held."""
    most = bounds.subscriptions_of_topic
    if most and len(topic.subscriptions) >= most:
        raise NotAllowed(f"The topic has as many subscriptions as a topic may have, {most}.")


def check_consumers(bounds: Bounds, topic: AnyTopic, subscription: Joinable) -> None:
    """Raises ConsumerBusy if the subscription may get no further consumer. The topic's lock is held."""
    if 0 < bounds.consumers_of_subscription <= len(subscription.connected):
        raise ConsumerBusy("Subscription reached max consumers limit")
    if bounds.consumers_of_topic:
        consumers = sum(other.consumer_count for other in topic.subscriptions.values())
        if consumers >= bounds.consumers_of_topic:
            raise ConsumerBusy("Topic reached max consumers limit")


def check_join(subscription: Joinable, join: Join) -> None:
    """Raises a Refusal unless the consumer fits those that are connected. The subscription's lock is held."""
    if subscription.closed:
        raise ServiceNotReady("The subscription is being closed; try again.")
    if subscription.durable != join.durable:
        raise NotAllowed("A subscription with the same name exists, and only one of the two is durable.")
    if subscription.connected:
        if subscription.kind != join.kind:
            raise ConsumerBusy("Subscription is of different type")
        if subscription.policy != join.policy:
            raise ConsumerBusy("Subscription is of different type: another Key_Shared policy")
        if join.kind == SubType.Exclusive:
            raise Busy(next(iter(subscription.connected)))


def connect(
    kind: type[C],
    connection: PulsarConnection,
    join: Join,
    subscription: OfConsumer,
    line: Line,
    since_ms: int,
    quota: DeliveryQuota | None,
) -> C:
    """The consumer, which the caller adds to the subscription."""
    topic = subscription.topic
    heads = Deliveries(join.consumer_id, topic.ledger, topic.partition)
    metadata = dict(join.metadata)
    connected = kind(
        connection, join.consumer_id, subscription, heads, line, since_ms, quota, epoch=join.epoch, metadata=metadata
    )
    connected.consumer = Consumer(
        id=connected, name=join.consumer_name, owner=connected, priority=join.priority, ranges=join.ranges
    )
    return connected


def make_dispatcher(
    kind: int,
    policy: KeySharedPolicy | None,
    topic: Topic,
    cursor: Cursor,
    settings: DispatchSettings,
    limit: RateLimit | None = None,
    delayed: DelayedTracker | None = None,
) -> Dispatcher:
    """Raises NotAllowed for an unknown type."""
    if kind == SubType.Exclusive:
        return Exclusive(cursor, settings, limit)
    if kind == SubType.Failover:
        return Failover(cursor, str(topic.name.whole), topic.partition, settings, limit)
    if kind == SubType.Shared:
        return Shared(cursor, settings, delayed, limit)
    if kind == SubType.Key_Shared:
        assert policy is not None
        return KeyShared(cursor, settings, delayed, limit, sticky=policy.sticky, out_of_order=policy.out_of_order)
    raise NotAllowed(f"There are no subscriptions of the type {kind}.")


class Missing(Exception):
    """The subscription does not exist (any more), and no start position for a new subscription was given."""


class Subscriptions:
    def __init__(
        self,
        clock: Clock,
        timer: Timer,
        catalogue: Catalogue,
        limits: Limits,
        *,
        quota: DeliveryQuota | None = None,
        compacted: Callable[[Topic], CompactedReader] | None = None,
    ) -> None:
        """``quota``: of clients; None: no quotas. ``compacted``: gives the reader for consumers that read compacted."""
        self.store = CursorStore(catalogue, clock, timer)
        self.waker = Waker()
        self._clock = clock
        self._around = SubscriptionSurroundings(clock, timer, self.store)
        self.limits = limits
        self.quota = quota
        self._compacted = compacted

    def threads(self) -> Sequence[PartThread]:
        return [
            PartThread("cursor-writer", self.store.writer, waited_for=True),
            PartThread("pulsar-waker", self.waker, waited_for=True),
        ]

    def open(
        self,
        topic_ids: Container[uuid.UUID],
        is_here: Callable[[uuid.UUID, int], bool] = lambda topic_id, partition: True,
    ) -> None:
        """Load the cursors. ``topic_ids``: the ids of all existing topics. ``is_here``: whether this node has a partition of
        one of them. Raises StorageError."""
        self.store.open(topic_ids, is_here)

    def close(self) -> None:
        """Write all remaining changes. The threads have ended."""
        self.store.flush()

    def topic_deleted(self, topic_id: uuid.UUID) -> None:
        """Delete the topic's cursors. If the topic is in use, the registry tells its subscriptions."""
        self.store.topics_deleted([topic_id])

    def load(self, topic: Topic) -> None:
        """Add the subscriptions of a topic that comes into use; no other thread sees it yet."""
        line = topic.tail.line = self.waker.line()
        for name, (state, saved) in self.store.take(topic.log.topic_id, topic.log.partition).items():
            try:
                cursor = Cursor.decode(state)
            except StorageError as error:
                # Messages are rather consumed again than lost.
                log.error("cursor_not_readable", topic=str(topic.name), subscription=name, error=str(error))
                cursor = Cursor(topic.log.log_start_offset)
            subscription = Subscription(self._around, topic, line, name, cursor, durable=True)
            topic.subscriptions[name] = subscription
            subscription.saving.loaded(saved)

    def find(self, topic: Topic, name: str) -> Subscription | None:
        subscription = topic.subscriptions.get(name)
        assert subscription is None or isinstance(subscription, Subscription)
        return subscription

    def make(
        self, topic: Topic, name: str, start: int, *, durable: bool = True, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """A new subscription, or the existing one; ``topic.lock`` is held. Raises NotAllowed, ServiceNotReady."""
        topic.check_open()
        subscription = self.find(topic, name)
        if subscription is None:
            check_subscriptions(self.limits.bounds(topic), topic)
            line = topic.tail.line
            assert line is not None  # since it was loaded
            subscription = Subscription(self._around, topic, line, name, Cursor(start, properties), durable=durable)
            topic.subscriptions[name] = subscription
        return subscription

    def create(
        self, topic: Topic, name: str, start: int, done: Done, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make a durable subscription without consumers unless it exists, and call ``done`` when it is durable. Raises a
        Refusal."""
        with topic.lock:
            subscription = self.make(topic, name, start, properties=properties)
        subscription.saving.save(done)

    def join(self, topic: Topic, connection: PulsarConnection, join: Join, start: int | None) -> ConnectedConsumer:
        """Add a consumer to the subscription, which starts at ``start`` if it is new. Raises Missing or a Refusal; after Busy,
        a second try may succeed."""
        compacted = self._compacted(topic) if join.read_compacted and self._compacted is not None else None
        if compacted is not None and start == topic.log.log_start_offset:
            start = compacted.first
        with topic.lock:
            new = join.subscription not in topic.subscriptions
            if new and start is None:
                topic.check_open()
                raise Missing
            subscription = self.make(
                topic, join.subscription, start or 0, durable=join.durable, properties=join.properties
            )
            try:
                check_consumers(self.limits.bounds(topic), topic, subscription)
                with subscription.lock:
                    if not subscription.connected:
                        subscription.compacted = compacted
                    return self._join(subscription, connection, join)
            except BaseException:
                if new:
                    subscription.closed = subscription.saving.gone = True
                    del topic.subscriptions[join.subscription]
                raise

    def _join(self, subscription: Subscription, connection: PulsarConnection, join: Join) -> ConnectedConsumer:
        check_join(subscription, join)
        if not subscription.connected and (subscription.kind, subscription.policy) != (join.kind, join.policy):
            topic, limits = subscription.topic, self.limits
            settings = limits.settings(topic)
            if not join.durable:
                settings = attrs.evolve(settings, unacked_max_per_consumer=0, unacked_max_per_subscription=0)
            dispatcher = make_dispatcher(
                join.kind,
                join.policy,
                topic,
                subscription.cursor,
                settings,
                limits.rate_limit(topic, subscription.name),
                DelayedTracker(settings.delayed_tick_ms, settings.delayed_strict) if limits.delays(topic) else None,
            )
            subscription.use(dispatcher, join.kind, join.policy)
        now_ms = self._clock.time_ms()
        connected = connect(ConnectedConsumer, connection, join, subscription, subscription.line, now_ms, self.quota)
        subscription.add(connected)
        return connected

    def remove(self, subscription: Subscription, done: Done) -> None:
        """Delete a subscription, even with consumers. ``done`` is called when the deletion is durable, or has failed in the
        catalogue; then the subscription returns with the next start."""
        topic = subscription.topic
        with topic.lock:
            if topic.subscriptions.get(subscription.name) is subscription:
                del topic.subscriptions[subscription.name]
            subscription.deleted()
        subscription.saving.delete(done)
