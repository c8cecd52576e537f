"""The policies of all namespaces and topics, in the catalogue: documents of kind "pulsar-policies".

The key is ``namespace/`` and the namespace's name, or ``topic/`` and the topic's id, so that a topic that is made again under
the same name has none of the policies of the last one. All partitions of a topic share its policies.

Any thread. Reading takes no lock. What writes may block; changes are made one after the other, and who has asked to be told is
told after each, on the thread that made it and with the lock held.

What the policies say of one topic, in the terms of its subscriptions and producers.

Any thread. Bounds, rates and the limits of what is not acknowledged follow a change of policies at once. The tick of delayed
delivery holds for dispatchers that are made later, that is, when the first consumer of a subscription comes. Which types of
subscriptions there may be, and whether consumers make them, is asked when somebody subscribes.

What of each log must not be deleted, for the storage's retention (``broker/storage/upkeep/housekeeper.py``).

Kafka deletes by age and size whatever anybody has read; Pulsar keeps what a durable subscription has not acknowledged. Here, a
topic that has durable subscriptions is kept from the oldest offset that one of them has not acknowledged. Only the message TTL
and a backlog quota that evicts move a subscription past what it has not consumed; otherwise, the records stay. What all have
acknowledged goes by the topic's settings, ``retention.ms`` and ``retention.bytes``, or by Pulsar's retention policy where the
topic or its namespace has one. A topic without durable subscriptions is kept as Kafka keeps it.

Housekeeper thread, which may block.

Tests: tests/pulsar/policies/test_upkeep.py.
"""

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

import attrs

from broker.errors import StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.pulsar.compaction.compactions import Compactions
from broker.pulsar.dispatch.dispatcher import DispatchSettings
from broker.pulsar.dispatch.rate_limit import DispatchRate, RateLimit
from broker.pulsar.policies.policies import BROKER, UNLIMITED, Policies, Rate, Retention, decode, encode
from broker.pulsar.refusals import NotAllowed, SubscriptionNotFound
from broker.pulsar.subscriptions.cursor import stored_position
from broker.pulsar.subscriptions.cursor_store import CursorStore
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.subscriptions.subscriptions import Bounds
from broker.pulsar.topic_names import TopicName, pulsar_name
from broker.pulsar.topics.registry import TopicRegistry
from broker.pulsar.topics.topic import AnyTopic, Topic
from broker.runtime.threads import Lock
from broker.storage.log.log import Log
from broker.storage.upkeep.housekeeper import Rule

log = get_logger("pulsar")

KIND: Final = "pulsar-policies"
_NONE: Final = Policies()
# Topics whose policies are remembered; others are put together again each time (10 us).
_EFFECTIVE_MAX: Final = 20_000


class PolicyStore:
    def __init__(self, catalogue: Catalogue, broker: Policies = BROKER) -> None:
        """``broker``: what holds where neither the topic nor the namespace says otherwise."""
        self.broker = broker
        self.on_change: list[Callable[[], None]] = []
        self._catalogue = catalogue
        self._stored: dict[str, Policies] = {}
        self._effective: dict[tuple[str, UUID], Policies] = {}  # replaced as a whole with each change
        self._lock = Lock()

    def load(self, exists: Callable[[UUID], bool]) -> None:
        """Read the catalogue, and remove what belongs to topics that do not exist any more. Raises StorageError."""
        gone: list[tuple[str, str, bytes | None]] = []
        for key, body in self._catalogue.load_documents(KIND):
            kind, _, name = key.partition("/")
            if kind == "topic" and not exists(UUID(name)):
                gone.append((KIND, key, None))
            else:
                self._stored[key] = decode(body)
        if gone:
            self._catalogue.alter_documents(gone)

    def namespace(self, name: str) -> Policies:
        """Those that are set for it. ``name``: tenant/namespace."""
        return self._stored.get(f"namespace/{name}", _NONE)

    def topic(self, topic_id: UUID) -> Policies:
        """Those that are set for it."""
        return self._stored.get(f"topic/{topic_id}", _NONE)

    def of(self, namespace: str, topic_id: UUID) -> Policies:
        """Those that hold for the topic."""
        effective = self._effective
        key = (namespace, topic_id)
        found = effective.get(key)
        if found is None:
            found = self.topic(topic_id).over(self.of_namespace(namespace))
            if len(effective) < _EFFECTIVE_MAX:
                effective[key] = found
        return found

    def of_namespace(self, name: str) -> Policies:
        """Those that hold for the topics of a namespace that say nothing else."""
        return self.namespace(name).over(self.broker)

    # -- changes: may block, raise StorageError -----------------------------------------------------------------------------

    def set_namespace(self, name: str, **policies: Any) -> None:
        """Set these members of Policies; None removes one. A function is given what is set now, and returns what is to be."""
        self._set(f"namespace/{name}", policies)

    def replace_namespace(self, name: str, policies: Policies) -> None:
        """Set these and no others."""
        with self._lock:
            self._write(f"namespace/{name}", None if policies == _NONE else policies)

    def set_topic(self, topic_id: UUID, **policies: Any) -> None:
        """The same for a topic."""
        self._set(f"topic/{topic_id}", policies)

    def remove_namespace(self, name: str) -> None:
        self._remove(f"namespace/{name}")

    def forget(self, topic_id: UUID) -> None:
        """The topic has been deleted. Does not raise: what cannot be removed now goes with the next start."""
        try:
            self._remove(f"topic/{topic_id}")
        except StorageError as error:
            log.warning("policies_not_removed", topic_id=str(topic_id), error=str(error))

    def _set(self, key: str, policies: dict[str, Any]) -> None:
        with self._lock:
            before = self._stored.get(key, _NONE)
            values = {
                name: value(getattr(before, name)) if callable(value) else value for name, value in policies.items()
            }
            changed = attrs.evolve(before, **values)
            self._write(key, None if changed == _NONE else changed)

    def _remove(self, key: str) -> None:
        with self._lock:
            if key in self._stored:
                self._write(key, None)

    def _write(self, key: str, policies: Policies | None) -> None:
        self._catalogue.alter_documents([(KIND, key, None if policies is None else encode(policies))])
        stored = self._stored.copy()
        if policies is None:
            stored.pop(key, None)
        else:
            stored[key] = policies
        self._stored = stored
        self._effective = {}
        for tell in self.on_change:
            tell()


_UNLIMITED: Final = Rate()
# Consumers whose latest SUBSCRIBE is remembered for the rate of their topic, some 500 bytes each; the oldest are forgotten.
_SUBSCRIBERS_MAX: Final = 10_000
# Namespace, topic, partition, and the subscription; None: all of the topic together.
_Key = tuple[str, UUID, int, str | None]


class PolicyLimits:
    def __init__(self, policies: PolicyStore, bounds: Bounds, settings: DispatchSettings) -> None:
        """``bounds`` and ``settings`` hold where no policy says otherwise."""
        self.broker_rate = DispatchRate()
        self._policies = policies
        self._bounds = bounds
        self._settings = settings
        self._lock = Lock()
        self._rates: WeakValueDictionary[_Key, DispatchRate] = WeakValueDictionary()
        self._publish_rates: WeakValueDictionary[tuple[TopicName, UUID], DispatchRate] = WeakValueDictionary()
        self._subscribers: dict[object, DispatchRate] = {}
        policies.on_change.append(self._changed)

    def bounds(self, topic: AnyTopic) -> Bounds:
        policies, bounds = self._of(topic), self._bounds
        return Bounds(
            subscriptions_of_topic=_first(policies.max_subscriptions, bounds.subscriptions_of_topic),
            consumers_of_topic=_first(policies.max_consumers, bounds.consumers_of_topic),
            consumers_of_subscription=_first(policies.max_consumers_per_subscription, bounds.consumers_of_subscription),
        )

    def producers_max(self, topic: AnyTopic, otherwise: int) -> int:
        return _first(self._of(topic).max_producers, otherwise)

    def check_subscribing(self, topic: AnyTopic, kind: str, consumer: object, now: float) -> None:
        """Whether this type of subscription may be used, and whether the consumer (its address, name and number) may subscribe
        again at this time (monotonic, s). Raises NotAllowed."""
        policies = self._of(topic)
        if policies.subscription_types and kind not in policies.subscription_types:
            raise NotAllowed(f"Topic {topic.name} doesn't support {kind} subscriptions.")
        wanted = policies.subscribe_rate
        if wanted is None or wanted.messages <= 0:
            return
        key = topic.name, consumer
        with self._lock:
            rate = self._subscribers.pop(key, None) or DispatchRate()
            self._subscribers[key] = rate
            if len(self._subscribers) > _SUBSCRIBERS_MAX:
                del self._subscribers[next(iter(self._subscribers))]
            if not rate.is_set_to(wanted.messages, 0, wanted.period_s):
                rate.set(wanted.messages, 0, wanted.period_s)
            if rate.available(now)[0] < 1:
                raise NotAllowed("The consumer has subscribed as often as the topic's subscribe rate allows.")
            rate.consumed(1, 0, now)

    def check_new_subscription(self, topic: AnyTopic) -> None:
        """Whether a client may make one by using it. Raises SubscriptionNotFound."""
        if self._of(topic).auto_subscription_creation is False:
            raise SubscriptionNotFound(
                "Subscription does not exist, and consumers do not make subscriptions of this topic."
            )

    def settings(self, topic: AnyTopic) -> DispatchSettings:
        policies, settings = self._of(topic), self._settings
        if (
            policies.max_unacked_per_consumer is None
            and policies.max_unacked_per_subscription is None
            and policies.delayed_delivery_tick_ms is None
        ):
            return settings
        return attrs.evolve(
            settings,
            unacked_max_per_consumer=_first(policies.max_unacked_per_consumer, settings.unacked_max_per_consumer),
            unacked_max_per_subscription=_first(
                policies.max_unacked_per_subscription, settings.unacked_max_per_subscription
            ),
            delayed_tick_ms=_first(policies.delayed_delivery_tick_ms, settings.delayed_tick_ms),
        )

    def delays(self, topic: Topic) -> bool:
        """Whether messages may be delivered later than they are sent."""
        return self._of(topic).delayed_delivery is not False

    def rate_limit(self, topic: Topic, subscription: str) -> RateLimit:
        """For one dispatcher."""
        of_topic = (topic.name.namespace, topic.log.topic_id, topic.log.partition)
        return RateLimit([self.broker_rate, self._rate((*of_topic, None)), self._rate((*of_topic, subscription))])

    def publish_rate(self, topic: AnyTopic) -> DispatchRate:
        """For all producers of the topic. It follows the policies."""
        key = topic.name, topic.topic_id
        with self._lock:
            rate = self._publish_rates.get(key)
            if rate is None:
                rate = self._publish_rates[key] = DispatchRate()
                _set_publish(rate, self._of(topic))
            return rate

    def _rate(self, key: _Key) -> DispatchRate:
        with self._lock:
            rate = self._rates.get(key)
            if rate is None:
                rate = self._rates[key] = DispatchRate()
                _set(rate, self._policies.of(key[0], key[1]), key[3])
            return rate

    def _changed(self) -> None:
        with self._lock:
            rates = list(self._rates.items())
            publish_rates = list(self._publish_rates.items())
        for key, rate in rates:
            _set(rate, self._policies.of(key[0], key[1]), key[3])
        for (name, topic_id), rate in publish_rates:
            _set_publish(rate, self._policies.of(name.namespace, topic_id))

    def _of(self, topic: AnyTopic) -> Policies:
        return self._policies.of(topic.name.namespace, topic.topic_id)


def _set_publish(rate: DispatchRate, policies: Policies) -> None:
    wanted = policies.publish_rate or _UNLIMITED
    if not rate.is_set_to(wanted.messages, wanted.bytes, wanted.period_s):
        rate.set(wanted.messages, wanted.bytes, wanted.period_s)


def _set(rate: DispatchRate, policies: Policies, subscription: str | None) -> None:
    wanted = policies.dispatch_rate
    if subscription is not None:
        wanted = (policies.subscription_dispatch_rates or {}).get(subscription) or policies.subscription_dispatch_rate
    wanted = wanted or _UNLIMITED
    if not rate.is_set_to(wanted.messages, wanted.bytes, wanted.period_s):  # its debt stays
        rate.set(wanted.messages, wanted.bytes, wanted.period_s)


def _first(policy: int | None, otherwise: int) -> int:
    return otherwise if policy is None else policy


class RetentionRules:
    def __init__(
        self, topics: TopicRegistry, store: CursorStore, policies: PolicyStore, compactions: Compactions
    ) -> None:
        self._compactions = compactions
        self._topics = topics
        self._store = store
        self._policies = policies
        # Logs for which no subscription was seen the last time.
        self._without: set[tuple[UUID, int]] = set()

    def rule(self, log: Log) -> Rule | None:
        topic_id = log.topic_id
        policies = self._policies.of(pulsar_name(log.topic).namespace, topic_id)
        retention = policies.retention
        needed_from = self._needed_from(log) if topic_id in self._store.topics() else None
        to_compact = self._compactions.needed_from(log)
        if to_compact is None and policies.compaction_threshold_bytes:
            to_compact = 0  # it was not compacted yet
        if to_compact is not None:
            needed_from = to_compact if needed_from is None else min(needed_from, to_compact)
        if retention is None:
            return None if needed_from is None else Rule(needed_from)
        return Rule(needed_from, *_limits(retention))

    def _needed_from(self, log: Log) -> int | None:
        key = (log.topic_id, log.partition)
        topic = self._loaded(log)
        positions = [] if topic is None else _positions(topic)
        positions += [stored_position(state) for state in self._store.states(*key)]
        if positions:
            self._without.discard(key)
            return min(positions)
        # It may just be coming into use or going out of it, and be in neither place for a moment.
        if key in self._without:
            return None
        self._without.add(key)
        return 0

    def _loaded(self, log: Log) -> Topic | None:
        name = pulsar_name(log.topic)
        for one in (name, name.of_partition(log.partition)):
            topic = self._topics.get(one)
            if topic is not None and topic.log is log:
                return topic
        return None


def _positions(topic: Topic) -> list[int]:
    with topic.lock:
        subscriptions = list(topic.subscriptions.values())
    return [one.cursor.acknowledged_before for one in subscriptions if isinstance(one, Subscription) and one.durable]


def _limits(retention: Retention) -> tuple[int, int]:
    minutes, megabytes = retention.minutes, retention.megabytes
    # As in Pulsar, a limit that is 0 beside one that is not means nothing more than the other one.
    if minutes == 0 and megabytes != 0:
        minutes = UNLIMITED
    if megabytes == 0 and minutes != 0:
        megabytes = UNLIMITED
    return (
        UNLIMITED if minutes < 0 else minutes * 60_000,
        UNLIMITED if megabytes < 0 else megabytes * 1024 * 1024,
    )
