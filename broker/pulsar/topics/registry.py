"""The topics that are in use, by name.

Topics themselves are Kafka's (``storage/log_manager.py``), and what Pulsar adds to them is in ``documents.py``; this is which
of their partitions have a ``Topic`` in memory. Any thread. Methods that say so may block, because a topic is made or the
catalogue is written. ``_lock`` is held for moments only; ``_making`` while a topic is made, so that two clients that ask for
the same one make it once.

Tests: tests/pulsar/topics/test_registry.py.
"""

from collections.abc import Callable, Iterable

import attrs

from broker.metadata.writer import Done
from broker.pulsar.entries.reader import EntryReader
from broker.pulsar.producers.producers import Producers
from broker.pulsar.refusals import NotAllowed, TopicNotFound
from broker.pulsar.topic_names import TopicName, check_legal, kafka_name, pulsar_name
from broker.pulsar.topics.documents import TopicDocuments
from broker.pulsar.topics.topic import Topic, TopicRecord
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager
from broker.storage.refusals import TopicExists
from broker.storage.topic import TopicInfo


@attrs.frozen
class Place:
    """Where a topic's messages are: a partition of a topic of Kafka."""

    info: TopicInfo
    partition: int  # Kafka's
    name: TopicName  # its `partition` is -1 where Pulsar sees a topic that is not partitioned


class TopicRegistry:
    def __init__(
        self,
        logs: LogManager,
        documents: TopicDocuments,
        clock: Clock,
        open_reader: Callable[[Log], EntryReader],
    ) -> None:
        self._logs = logs
        self._documents = documents
        self._clock = clock
        self._open_reader = open_reader
        self._topics: dict[TopicName, Topic] = {}
        self._lock = Lock()
        self._making = Lock()
        # Called with each topic that comes into use, before anybody else sees it: its subscriptions are put into it.
        self.on_load: list[Callable[[Topic], None]] = []

    # -- looking up: never blocks ----------------------------------------------------------------------------------------

    def get(self, name: TopicName) -> Topic | None:
        """The topic if it is in use."""
        return self._topics.get(name)

    def loaded(self) -> list[Topic]:
        """All topics that are in use."""
        return list(self._topics.values())

    def place(self, name: TopicName) -> Place | None:
        """Where the messages of this topic are, or of this partition. None: it does not exist, or it is a partitioned topic and
        the name is not that of a partition."""
        info = self._logs.topic(kafka_name(name))
        if name.partition >= 0:
            if info is not None and self.is_partitioned(info) and name.partition < info.partitions:
                return Place(info, name.partition, name)
            # A topic that is not partitioned may have such a name, too.
            name = name.as_local
            info = self._logs.topic(kafka_name(name))
        if info is None or self.is_partitioned(info):
            return None
        return Place(info, 0, name)

    def partitions(self, name: TopicName) -> int | None:
        """How many partitions the topic has for Pulsar, 0 if it is not partitioned. None: there is no such topic."""
        info = self._logs.topic(kafka_name(name.whole))
        if name.partition >= 0 and (info is None or not self.is_partitioned(info)):
            return 0 if self.place(name) is not None else None
        if info is None:
            return None
        if name.partition >= 0:
            return 0 if name.partition < info.partitions else None
        return info.partitions if self.is_partitioned(info) else 0

    def is_partitioned(self, info: TopicInfo) -> bool:
        """A topic of several partitions is partitioned, and one of a single partition if it was made so."""
        return info.partitions > 1 or self._documents.is_partitioned(info.topic_id)

    def topics(self, namespace: str) -> list[TopicName]:
        """All topics of a namespace, partitions one by one."""
        names: list[TopicName] = []
        for info in self._logs.topics():
            name = pulsar_name(info.name)
            if name.namespace == namespace:
                names += self._names_of(info, name)
        return names

    def _names_of(self, info: TopicInfo, name: TopicName) -> Iterable[TopicName]:
        if self.is_partitioned(info):
            return [name.of_partition(number) for number in range(info.partitions)]
        return [name]

    # -- coming into use: may block ---------------------------------------------------------------------------------------

    def get_or_create(self, name: TopicName, *, create: bool = True) -> Topic:
        """The topic, made if there is none and ``create`` is true. Raises TopicNotFound and other refusals, StorageError."""
        topic = self._topics.get(name)
        if topic is not None and not topic.closed:
            return topic
        place = self.place(name)
        if place is None:
            if not create:
                raise TopicNotFound(f"Topic {name} does not exist")
            place = self._create(name)
        return self._load(place)

    def _create(self, name: TopicName) -> Place:
        whole = kafka_name(name.whole)
        with self._making:
            place = self.place(name)
            if place is not None:
                return place
            info = self._logs.topic(whole)
            if info is not None and name.partition < 0:
                raise NotAllowed(f"{name} is a partitioned topic: name one of its partitions.")
            local = kafka_name(name.as_local)
            check_legal(local)
            try:
                info = self._logs.create_topic(local, 1)
            except TopicExists:
                info = self._logs.topic(local)
                if info is None:
                    raise
            return Place(info, 0, name.as_local)

    def create_partitioned(self, name: TopicName, partitions: int) -> TopicInfo:
        """Make a partitioned topic. Raises TopicExists and other refusals, StorageError."""
        with self._making:
            whole = kafka_name(name)
            check_legal(whole)
            info = self._logs.create_topic(whole, partitions)
            self._documents.ensure(info.topic_id, partitioned=True)
            return info

    def save_epoch(self, topic: Topic, epoch: int, done: Done) -> None:
        """Make the epoch of a topic's exclusive producers durable, then call ``done`` on the writer's thread. Never blocks."""
        partition = topic.log.partition

        def change(record: TopicRecord) -> TopicRecord:
            epochs = {**record.epochs, partition: max(epoch, record.epochs.get(partition, -1))}
            return attrs.evolve(record, epochs=epochs)

        topic.record = self._documents.change(topic.log.topic_id, change, done)

    def _load(self, place: Place) -> Topic:
        record = self._documents.ensure(place.info.topic_id)
        log = self._logs.get(place.info.name, place.partition)
        if log is None:
            raise TopicNotFound(f"Topic {place.name} has been deleted")
        with self._lock:
            topic = self._topics.get(place.name)
            if topic is not None and not topic.closed:
                return topic
            producers = Producers(record.epochs.get(place.partition, -1))
            topic = Topic(place.name, log, self._open_reader(log), record, producers)
            topic.idle_since = self._clock.monotonic()
            for prepare in self.on_load:
                prepare(topic)
            self._topics[place.name] = topic
        return topic
