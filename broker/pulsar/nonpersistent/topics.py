"""The registry of non-persistent topics, and joining their subscriptions.

Such a topic exists from a client's first request for it until no client has been connected to it for a while, or it is deleted
or unloaded. Only the number of partitions of a partitioned topic is stored: a document of the catalogue for each, of kind
"pulsar-non-persistent" by TENANT/NAMESPACE/TOPIC. Kafka's clients do not see these topics.

Any thread. Only methods that write the catalogue block; they say so. ``_lock`` is held for moments, to make
a topic or to change a number of partitions; ``_making`` is held while a document is written.

Tests: tests/pulsar/nonpersistent/test_topics.py.
"""

import json
from collections.abc import Callable
from typing import Final

from broker.cluster.nodes import Nodes, changing
from broker.errors import StorageError
from broker.metadata.catalogue import Catalogue
from broker.network.quota import DeliveryQuota
from broker.pulsar.connection import PulsarConnection
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription, PassingConsumer
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.policies.store import PolicyLimits
from broker.pulsar.refusals import Elsewhere, NotAllowed, TooManyRequests, TopicNotFound
from broker.pulsar.subscriptions.subscriptions import Join, check_consumers, check_subscriptions
from broker.pulsar.subscriptions.waker import Waker
from broker.pulsar.topic_names import NON_PERSISTENT, TopicName, kafka_name, parse_topic
from broker.pulsar.topics.topic import LoadedTopics
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.storage.refusals import TopicExists

KIND: Final = "pulsar-non-persistent"

# A topic takes about 2 KB.
TOPICS_MAX: Final = 100_000
PARTITIONED_MAX: Final = 10_000
PARTITIONS_MAX: Final = 10_000
ALL_PARTITIONS_MAX: Final = 100_000  # listing each of them takes 0.3 s


class NonPersistentTopics:
    def __init__(
        self,
        catalogue: Catalogue,
        clock: Clock,
        timer: Timer,
        waker: Waker,
        limits: PolicyLimits,
        require_namespace: Callable[[str], None],
        *,
        on_demand: Callable[[str], bool],
        quota: DeliveryQuota | None = None,
        nodes: Nodes | None = None,
    ) -> None:
        """``require_namespace`` raises TopicNotFound. ``on_demand``: whether clients create topics in a namespace, named
        tenant/namespace, by using them. ``quota``: of clients; None if they have none. ``nodes``: set if other nodes have a part
        of the topics."""
        self._nodes = nodes
        self._catalogue = catalogue
        self._clock = clock
        self._waker = waker
        self._limits = limits
        self._require_namespace = require_namespace
        self._on_demand = on_demand
        self._quota = quota
        self._topics: LoadedTopics[NonPersistentTopic] = LoadedTopics(clock, timer, self.close)
        self._partitions: dict[TopicName, int] = {}
        self._lock = Lock()
        self._making = Lock()

    def load(self) -> None:
        """Read the catalogue. Raises StorageError."""
        self._partitions = self._stored()

    def _stored(self) -> dict[TopicName, int]:
        """Raises StorageError."""
        stored = {}
        for key, body in self._catalogue.load_documents(KIND):
            try:
                partitions = json.loads(body)["partitions"]
            except (ValueError, KeyError, TypeError):
                raise StorageError("The catalogue has a partitioned topic that cannot be read.") from None
            stored[parse_topic(f"{NON_PERSISTENT}://{key}").as_local] = partitions
        return stored

    def reload(self) -> None:
        """Put in force what another node has made of the catalogue. Raises StorageError."""
        with self._lock:
            before, self._partitions = self._partitions, self._stored()
        for name in before.keys() - self._partitions.keys():
            self._close_partitions(name, before[name])
        self._close_renamed()

    # -- questions: never block -----------------------------------------------------------------------------------------

    def get(self, name: TopicName) -> NonPersistentTopic | None:
        """The topic if it is loaded."""
        return self._topics.get(name)

    def loaded(self) -> list[NonPersistentTopic]:
        return self._topics.all()

    def partitions(self, name: TopicName) -> int | None:
        """The number of partitions, 0 if the topic is not partitioned, None if it does not exist."""
        if name.partition < 0 and name in self._partitions:
            return self._partitions[name]
        if name.partition < self._partitions.get(name.whole, 0) and name.partition >= 0:
            return 0
        return 0 if self.get(name) is not None else None

    def exists(self, name: TopicName) -> bool:
        return self.partitions(name) is not None

    def kafka_name(self, name: TopicName) -> str:
        """The name for checking rights: that of the partitioned topic, if it has this partition."""
        is_partition = 0 <= name.partition < self._partitions.get(name.whole, 0)
        return kafka_name(name.whole if is_partition else name.as_local)

    def partition_of(self, name: TopicName) -> tuple[str, int]:
        """Which node has the topic depends on it: the name in Kafka that it would have, and the partition."""
        is_partition = 0 <= name.partition < self._partitions.get(name.whole, 0)
        return self.kafka_name(name), name.partition if is_partition else 0

    def check_here(self, name: TopicName) -> None:
        """Raises Elsewhere if another node has the topic."""
        if self._nodes is not None:
            topic, partition = self.partition_of(name)
            if not self._nodes.has_partition(topic, partition):
                raise Elsewhere(topic, partition)

    def topics(self, namespace: str) -> list[TopicName]:
        """All topics of a namespace, with each partition."""
        with self._lock:
            names = dict.fromkeys(topic.name for topic in self.loaded() if topic.name.namespace == namespace)
            for whole, count in self._partitions.items():
                if whole.namespace == namespace:
                    names.update(dict.fromkeys(whole.of_partition(number) for number in range(count)))
        return list(names)

    # -- creating -------------------------------------------------------------------------------------------------------

    def get_or_create(self, name: TopicName, *, create: bool = True) -> NonPersistentTopic:
        """The topic, created if it does not exist and both ``create`` and the settings allow it. Never blocks. Raises
        TopicNotFound and other refusals."""
        topic = self._topics.use(name)
        if topic is not None:
            return topic
        self._require_namespace(name.namespace)
        if name.partition < 0 and name in self._partitions:
            raise NotAllowed(f"{name} is a partitioned topic: name one of its partitions.")
        if name.partition >= self._partitions.get(name.whole, name.partition + 1):
            raise TopicNotFound(f"Topic {name.whole} has {self._partitions[name.whole]} partitions")
        self.check_here(name)
        if not self.exists(name) and not (create and self._on_demand(name.namespace)):
            raise TopicNotFound(f"Topic {name} does not exist")
        return self.make(name)

    def make(self, name: TopicName) -> NonPersistentTopic:
        """The topic, created if it does not exist. Raises TooManyRequests, Elsewhere."""
        self.check_here(name)
        with self._lock:
            topic = self._topics.use(name)
            if topic is None:
                if len(self._topics) >= TOPICS_MAX:
                    raise TooManyRequests(f"There may be {TOPICS_MAX} topics whose messages are not kept.")
                topic = NonPersistentTopic(self._waker.line(), self.kafka_name(name), name=name)
                topic.publish_rate = self._limits.publish_rate(topic)
                self._topics.add(topic)
        return topic

    # -- partitions: may block, raise StorageError ------------------------------------------------------------------------

    def create_partitioned(self, name: TopicName, partitions: int) -> None:
        """Raises TopicExists, NotAllowed, TooManyRequests."""
        with changing(self._nodes, self.reload), self._making:
            if self.exists(name):
                raise TopicExists("This topic already exists")
            if len(self._partitions) >= PARTITIONED_MAX:
                raise TooManyRequests(f"There may be {PARTITIONED_MAX} partitioned topics whose messages are not kept.")
            self._write(name, partitions)

    def add_partitions(self, name: TopicName, total: int) -> None:
        """Raises TopicNotFound, NotAllowed."""
        with changing(self._nodes, self.reload), self._making:
            now = self._partitions.get(name)
            if now is None:
                raise TopicNotFound(f"Topic {name} is not a partitioned topic")
            if total <= now:
                raise NotAllowed(f"The topic has {now} partitions already.")
            self._write(name, total)

    def delete_partitioned(self, name: TopicName) -> None:
        """Also closes the connected producers and consumers. Raises TopicNotFound."""
        with changing(self._nodes, self.reload), self._making:
            count = self._partitions.get(name)
            if count is None:
                raise TopicNotFound("Partitioned topic does not exist")
            self._write(name, None)
        self._close_partitions(name, count)

    def _close_partitions(self, name: TopicName, count: int) -> None:
        for number in range(count):
            topic = self.get(name.of_partition(number))
            if topic is not None:
                self.close(topic)

    def delete_namespace(self, namespace: str) -> None:
        """Delete all topics of the namespace."""
        for name in dict.fromkeys(name.whole for name in self.topics(namespace)):
            if name in self._partitions:
                self.delete_partitioned(name)
        for topic in self.loaded():
            if topic.name.namespace == namespace:
                self.close(topic)

    def _write(self, name: TopicName, partitions: int | None) -> None:
        if partitions is not None and partitions > PARTITIONS_MAX:
            raise NotAllowed(f"A topic whose messages are not kept may have {PARTITIONS_MAX} partitions.")
        if partitions is not None:
            others = sum(count for other, count in list(self._partitions.items()) if other != name)
            if others + partitions > ALL_PARTITIONS_MAX:
                raise TooManyRequests(
                    f"Topics whose messages are not kept may have {ALL_PARTITIONS_MAX} partitions together."
                )
        body = None if partitions is None else json.dumps({"partitions": partitions}).encode()
        self._catalogue.alter_documents([(KIND, f"{name.namespace}/{name.local}", body)])
        with self._lock:
            if partitions is None:
                self._partitions.pop(name, None)
            else:
                self._partitions[name] = partitions
        self._close_renamed()

    def _close_renamed(self) -> None:
        for topic in self.loaded():
            # This topic has become a partition of another topic, so its clients need other rights.
            if topic.kafka_name != self.kafka_name(topic.name):
                self.close(topic)

    # -- going away -----------------------------------------------------------------------------------------------------

    def close(self, topic: NonPersistentTopic) -> None:
        """Forget the topic. Its clients look it up again, and create it again if they may."""
        with topic.lock:
            if topic.closed:
                return
            topic.closed = True
            producers, subscriptions = list(topic.producers), list(topic.subscriptions.values())
        self._topics.remove(topic)
        for subscription in subscriptions:
            subscription.close()
        for producer in producers:
            producer.close()

    # -- consumers ------------------------------------------------------------------------------------------------------

    def join(self, topic: NonPersistentTopic, connection: PulsarConnection, join: Join) -> PassingConsumer:
        """Add a consumer to the subscription, which is created if it does not exist. Never blocks. Raises a Refusal; after Busy a
        second try may succeed."""
        if join.read_compacted:
            raise NotAllowed("readCompacted only valid on persistent topics")
        bounds, settings = self._limits.bounds(topic), self._limits.settings(topic)
        with topic.lock:
            topic.check_open()
            known = topic.subscriptions.get(join.subscription)
            if known is None:
                check_subscriptions(bounds, topic)
                subscription = NonPersistentSubscription(topic, join.subscription, join.durable, self._clock.time_ms())
            else:
                assert isinstance(known, NonPersistentSubscription)
                subscription = known
            check_consumers(bounds, topic, subscription)
            connected = subscription.join(connection, join, settings, self._quota, self._clock.time_ms())
            if known is None:
                topic.add(subscription)
            return connected

    def subscribe(self, topic: NonPersistentTopic, name: str) -> None:
        """Create a durable subscription without consumers, if it does not exist. Raises NotAllowed."""
        bounds = self._limits.bounds(topic)
        with topic.lock:
            topic.check_open()
            if name in topic.subscriptions:
                return
            check_subscriptions(bounds, topic)
            topic.add(NonPersistentSubscription(topic, name, True, self._clock.time_ms()))

    def unsubscribe(self, subscription: NonPersistentSubscription) -> None:
        """Delete it even if it has consumers."""
        topic = subscription.topic
        with topic.lock:
            topic.remove(subscription)
        subscription.close()
