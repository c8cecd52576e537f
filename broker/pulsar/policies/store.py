"""The policies of all namespaces and topics (``PolicyStore``), as limits of topics (``PolicyLimits``), and as rules for the
storage's retention (``RetentionRules``).

``PolicyStore`` keeps them in the catalogue, as documents of kind "pulsar-policies". The key is ``namespace/`` and the namespace's
name, or ``topic/`` and the topic's id, so that a topic that is created again under the same name does not inherit policies. All
partitions of a topic share its policies. Any thread. Reading takes no lock. Methods that write may block; they make changes in
sequence and call ``on_change`` after each, on their own thread and with the lock held.

``PolicyLimits`` has the bounds, rates and settings of a topic's subscriptions and producers. Any thread. Bounds, rates and the
limits of unacknowledged messages follow a change of policies at once. The tick of delayed delivery applies to dispatchers that
are created later, when the first consumer of a subscription connects. The permitted types of subscriptions, and whether consumers
create them, are checked when a consumer subscribes.

``RetentionRules`` tells the storage's retention (``broker/storage/upkeep/housekeeper.py``) which records of a log it must not
delete. Kafka deletes by age and size, even if nobody has read the records; Pulsar keeps messages that a durable subscription has
not acknowledged. Here, the records of a topic with durable subscriptions are kept from the oldest offset that a subscription has
not acknowledged. Only the message TTL and a backlog quota that evicts move a subscription past messages that it has not consumed.
Records that all subscriptions have acknowledged are subject to the topic's settings ``retention.ms`` and ``retention.bytes``, or
to Pulsar's retention policy if the topic or its namespace has one. A topic without durable subscriptions is subject to Kafka's
rules. Housekeeper thread, which may block.

Tests: tests/pulsar/policies/test_upkeep.py.
"""

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID
from weakref import WeakValueDictionary

import attrs

from broker.cluster.nodes import Nodes, changing
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
# Topics whose effective policies are cached; those of others are merged each time (10 us).
_EFFECTIVE_MAX: Final = 20_000


class PolicyStore:
    def __init__(self, catalogue: Catalogue, broker: Policies = BROKER, nodes: Nodes | None = None) -> None:
        """``broker``: the policies where neither the topic nor the namespace sets any. ``nodes``: set if other nodes change and
        follow the same policies."""
        self._nodes = nodes
        self.broker = broker
        self.on_change: list[Callable[[], None]] = []
        self._catalogue = catalogue
        self._stored: dict[str, Policies] = {}
        self._effective: dict[tuple[str, UUID], Policies] = {}  # replaced as a whole with each change
        self._lock = Lock()

    def load(self, exists: Callable[[UUID], bool]) -> None:
        """Read the catalogue, and remove the policies of topics that no longer exist. Raises StorageError."""
        gone: list[tuple[str, str, bytes | None]] = []
        for key, body in self._catalogue.load_documents(KIND):
            kind, _, name = key.partition("/")
            if kind == "topic" and not exists(UUID(name)):
                gone.append((KIND, key, None))
            else:
                self._stored[key] = decode(body)
        if gone:
            self._catalogue.alter_documents(gone)

    def reload(self) -> None:
        """Put in force what another node has made of the catalogue. Raises StorageError."""
        with self._lock:
            stored = {key: decode(body) for key, body in self._catalogue.load_documents(KIND)}
            if stored != self._stored:
                self._put(stored)

    def namespace(self, name: str) -> Policies:
        """The policies that are set for the namespace itself. ``name``: tenant/namespace."""
        return self._stored.get(f"namespace/{name}", _NONE)

    def topic(self, topic_id: UUID) -> Policies:
        """The policies that are set for the topic itself."""
        return self._stored.get(f"topic/{topic_id}", _NONE)

    def of(self, namespace: str, topic_id: UUID) -> Policies:
        """The policies in force for the topic."""
        effective = self._effective
        key = (namespace, topic_id)
        policies = effective.get(key)
        if policies is None:
            policies = self.topic(topic_id).over(self.of_namespace(namespace))
            if len(effective) < _EFFECTIVE_MAX:
                effective[key] = policies
        return policies

    def of_namespace(self, name: str) -> Policies:
        """The policies in force for topics of the namespace that set none themselves."""
        return self.namespace(name).over(self.broker)

    # -- changes: may block, raise StorageError -----------------------------------------------------------------------------

    def set_namespace(self, name: str, **policies: Any) -> None:
        """Set these members of Policies; None removes a policy. A function gets the present value and returns the new one."""
        self._set(f"namespace/{name}", policies)

    def replace_namespace(self, name: str, policies: Policies) -> None:
        """Set these policies, and remove all others."""
        with changing(self._nodes, self.reload), self._lock:
            self._write(f"namespace/{name}", None if policies == _NONE else policies)

    def set_topic(self, topic_id: UUID, **policies: Any) -> None:
        """As ``set_namespace``, for a topic."""
        self._set(f"topic/{topic_id}", policies)

    def remove_namespace(self, name: str) -> None:
        with changing(self._nodes, self.reload):
            self._remove(f"namespace/{name}")

    def forget(self, topic_id: UUID) -> None:
        """The topic has been deleted. Does not raise: if removing its policies fails, the next start removes them."""
        try:
            self._remove(f"topic/{topic_id}")
        except StorageError as error:
            log.warning("policies_not_removed", topic_id=str(topic_id), error=str(error))

    def _set(self, key: str, policies: dict[str, Any]) -> None:
        with changing(self._nodes, self.reload), self._lock:
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
        self._put(stored)

    def _put(self, stored: dict[str, Policies]) -> None:
        self._stored = stored
        self._effective = {}
        for tell in self.on_change:
            tell()


_UNLIMITED: Final = Rate()
# Consumers whose SUBSCRIBEs are counted for their topic's rate, some 500 bytes each; the oldest are forgotten.
_SUBSCRIBERS_MAX: Final = 10_000
# Namespace, topic id, partition, and subscription, or None for all subscriptions of the topic together.
_Key = tuple[str, UUID, int, str | None]


class PolicyLimits:
    def __init__(self, policies: PolicyStore, bounds: Bounds, settings: DispatchSettings) -> None:
        """``bounds`` and ``settings`` apply where no policy is set."""
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
        """Check that this type of subscription may be used, and that the consumer (its address, name and number) may subscribe
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
        """Check that a client may create a subscription by using it. Raises SubscriptionNotFound."""
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
        """Whether delayed delivery is on."""
        return self._of(topic).delayed_delivery is not False

    def rate_limit(self, topic: Topic, subscription: str) -> RateLimit:
        """The rate limit of a dispatcher: those of the broker, the topic and the subscription."""
        of_topic = (topic.name.namespace, topic.log.topic_id, topic.log.partition)
        return RateLimit([self.broker_rate, self._rate((*of_topic, None)), self._rate((*of_topic, subscription))])

    def publish_rate(self, topic: AnyTopic) -> DispatchRate:
        """The rate of all producers of the topic, which follows the policies."""
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
        # Logs that had no subscription at the last look.
        self._without: set[tuple[UUID, int]] = set()

    def rule(self, log: Log) -> Rule | None:
        topic_id = log.topic_id
        policies = self._policies.of(pulsar_name(log.topic).namespace, topic_id)
        retention = policies.retention
        needed_from = self._needed_from(log) if topic_id in self._store.topics() else None
        to_compact = self._compactions.needed_from(log)
        if to_compact is None and policies.compaction_threshold_bytes:
            to_compact = 0  # the log has not been compacted yet
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
        # While a topic is loaded or unloaded, its subscriptions may be in neither place for a moment, so look twice.
        if key in self._without:
            return None
        self._without.add(key)
        return 0

    def _loaded(self, log: Log) -> Topic | None:
        name = pulsar_name(log.topic)
        for candidate in (name, name.of_partition(log.partition)):
            topic = self._topics.get(candidate)
            if topic is not None and topic.log is log:
                return topic
        return None


def _positions(topic: Topic) -> list[int]:
    with topic.lock:
        subscriptions = list(topic.subscriptions.values())
    return [
        each.cursor.acknowledged_before for each in subscriptions if isinstance(each, Subscription) and each.durable
    ]


def _limits(retention: Retention) -> tuple[int, int]:
    minutes, megabytes = retention.minutes, retention.megabytes
    # As in Pulsar, a limit of 0 beside another that is not 0 has no effect.
    if minutes == 0 and megabytes != 0:
        minutes = UNLIMITED
    if megabytes == 0 and minutes != 0:
        megabytes = UNLIMITED
    return (
        UNLIMITED if minutes < 0 else minutes * 60_000,
        UNLIMITED if megabytes < 0 else megabytes * 1024 * 1024,
    )
