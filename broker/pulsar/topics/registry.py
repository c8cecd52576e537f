"""The topics of Pulsar's clients: which exist and are in use (``TopicRegistry``), and their documents (``TopicDocuments``).

A topic is a topic of Kafka's (``storage/log_manager.py``) with a document in the catalogue, by the topic's id, for Pulsar's
additional properties. The document is made with the topic, or when Pulsar first uses a topic of Kafka's. Its ledger id comes from
a counter in the catalogue that is raised by a block before any number of the block is used, so no ledger id is ever used again,
whatever becomes of the topic.

The registry has a ``Topic`` for each partition in use. A topic comes into use when a client asks for it, and goes out of use when
nobody has been connected to it for a while, when it is unloaded, or when a client of either protocol deletes it.

Any thread. Methods that say so may block, because a topic is made or the catalogue is written. ``TopicDocuments._lock`` guards
its table and is held for moments only. The registry holds ``_making`` while it makes a topic, so that two clients that ask for
the same topic make it once; the documents hold theirs while ``ensure`` or ``new_record`` blocks. Only the writer's thread changes
existing documents, so that they are written in the order of their changes.

Of several nodes, only the one with a topic's first partition changes the topic's document; the others read it anew then
(``reload``). The epochs of exclusive producers belong to partitions, so the node of a partition writes a document of its own for
them. Ledger ids, and documents of topics that Pulsar had not used, are made while no other node makes any.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from uuid import UUID

import attrs

from broker.cluster.nodes import Nodes
from broker.errors import StorageError
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, Change
from broker.metadata.writer import CatalogueWriter, Done
from broker.pulsar.entries.reader import EntryReader
from broker.pulsar.producers.producers import Producers
from broker.pulsar.refusals import Elsewhere, NamespaceFull, NotAllowed, TopicNotFound
from broker.pulsar.topic_names import TopicName, check_legal, kafka_name, pulsar_name
from broker.pulsar.topics.topic import LoadedTopics, Topic, TopicRecord
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.storage.config import TopicInfo
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager
from broker.storage.refusals import TopicExists

KIND = "pulsar-topic"
# Of several nodes: the epoch of a partition's exclusive producers, by the topic's id and the partition.
EPOCH_KIND = "pulsar-topic-epoch"
_COUNTER = "pulsar-next-ledger"
_BLOCK = 64


class TopicDocuments:
    def __init__(self, catalogue: Catalogue, writer: CatalogueWriter, nodes: Nodes | None = None) -> None:
        """``writer`` makes all changes of existing documents, in the order of the requests. ``nodes``: set if there are other
        nodes."""
        self._nodes = nodes
        self._bodies: dict[str, bytes] = {}  # of several nodes: as they were last read, by key
        self._catalogue = catalogue
        self._writer = writer
        self._records: dict[UUID, TopicRecord] = {}
        self._lock = Lock()
        self._making = Lock()
        self._next_ledger = 0
        self._block_ends = 0

    def load(self, exists: Callable[[UUID], bool]) -> None:
        """Load the documents. Those of topics that no longer exist are removed: the broker died between the two deletions.
        Raises StorageError."""
        gone = []
        for key, body in self._catalogue.load_documents(KIND):
            topic_id = UUID(key)
            if exists(topic_id):
                self._records[topic_id] = decode(body)
            else:
                gone.append((KIND, key, None))
        for key, body in self._catalogue.load_documents(EPOCH_KIND):
            topic, _, partition = key.partition("/")
            record = self._records.get(UUID(topic))
            if record is None:
                gone.append((EPOCH_KIND, key, None))
            else:
                self._records[UUID(topic)] = with_epoch(record, int(partition), int(body))
        if gone:
            self._catalogue.alter_documents(gone)

    def reload(self, is_first_here: Callable[[UUID], bool]) -> dict[UUID, TopicRecord]:
        """Read what other nodes have made of the catalogue, and return the records that are new or different. ``is_first_here``:
        whether this node has the topic's first partition, so that it alone changes the document. Raises StorageError."""
        different: dict[UUID, TopicRecord] = {}
        bodies = dict(self._catalogue.load_documents(KIND))
        with self._lock:
            for key, body in bodies.items():
                if self._bodies.get(key) == body:
                    continue
                topic_id = UUID(key)
                known = self._records.get(topic_id)
                if known is None or not is_first_here(topic_id):
                    record = decode(body)
                    for partition, epoch in ({} if known is None else known.epochs).items():
                        record = with_epoch(record, partition, epoch)
                    self._records[topic_id] = different[topic_id] = record
            self._bodies = bodies
        return different

    def get(self, topic_id: UUID) -> TopicRecord | None:
        return self._records.get(topic_id)

    def is_partitioned(self, topic_id: UUID) -> bool:
        record = self._records.get(topic_id)
        return record is not None and record.partitioned

    # -- making documents: may block ---------------------------------------------------------------------------------------

    def new_record(self, *, partitioned: bool, properties: Mapping[str, str] | None = None) -> TopicRecord:
        """A record for a topic that is about to be made. Raises StorageError."""
        with self._alone(), self._making:
            return TopicRecord(self._take_ledger(), partitioned, dict(properties or {}))

    def adding(self, topic_id: UUID, record: TopicRecord) -> Change:
        """The change of the catalogue that makes the document of a new topic; the topic is made in the same step."""

        def change(catalogue: Catalogue) -> None:
            catalogue.alter_documents([(KIND, str(topic_id), encode(record))])

        # Before anybody can see the topic. If making it fails, nobody will ask for this id.
        with self._lock:
            self._records[topic_id] = record
        return change

    def ensure(self, topic_id: UUID) -> TopicRecord:
        """The record of a topic; it is made if none exists. Raises StorageError."""
        record = self._records.get(topic_id)
        if record is not None:
            return record
        with self._alone(), self._making:
            if self._nodes is not None:  # another node may have made it
                self.reload(lambda _: True)
            record = self._records.get(topic_id)
            if record is None:
                record = TopicRecord(self._take_ledger())
                self._catalogue.alter_documents([(KIND, str(topic_id), encode(record))])
                with self._lock:
                    self._records[topic_id] = record
        return record

    def forget(self, topic_id: UUID, *, removed_elsewhere: bool = False) -> None:
        """The topic has been deleted. ``removed_elsewhere``: another node removes the document. Raises StorageError; then the
        next start removes it."""
        with self._lock:
            known = self._records.pop(topic_id, None)
        if known is not None and not removed_elsewhere:
            self._catalogue.alter_documents([(KIND, str(topic_id), None)])
            if self._nodes is not None:
                self._catalogue.delete_documents(EPOCH_KIND, f"{topic_id}/")

    def _alone(self) -> AbstractContextManager[None]:
        """No other node makes documents meanwhile. May wait."""
        return nullcontext() if self._nodes is None else self._nodes.changing_topics()

    def _take_ledger(self) -> int:
        if self._next_ledger >= self._block_ends:
            start = int(self._catalogue.meta(_COUNTER) or "1")
            self._catalogue.set_meta(_COUNTER, str(start + _BLOCK))
            self._next_ledger, self._block_ends = start, start + _BLOCK
        ledger = self._next_ledger
        self._next_ledger += 1
        return ledger

    # -- changing documents ------------------------------------------------------------------------------------------------

    def save_epoch(self, topic_id: UUID, partition: int, epoch: int, done: Done) -> TopicRecord | None:
        """As ``change``, of the epoch of a partition's exclusive producers."""

        def write(catalogue: Catalogue) -> None:
            latest = self._records.get(topic_id)
            if latest is not None:
                saved = str(latest.epochs[partition]).encode()
                catalogue.alter_documents([(EPOCH_KIND, f"{topic_id}/{partition}", saved)])

        own = None if self._nodes is None else write
        return self.change(topic_id, lambda record: with_epoch(record, partition, epoch), done, own)

    def change(
        self, topic_id: UUID, change: Callable[[TopicRecord], TopicRecord], done: Done, write: Change | None = None
    ) -> TopicRecord | None:
        """Change a record, now in memory and soon in the catalogue: ``done`` is called on the writer's thread then. Never
        blocks. Returns the new record; None if the topic has been deleted, and then ``done`` gets an error at once. ``write``:
        what writes it; None: its document is written."""
        with self._lock:
            before = self._records.get(topic_id)
            record = None if before is None else change(before)
            if record is not None:
                self._records[topic_id] = record
        if record is None:
            done(StorageError("the topic has been deleted"))
            return None

        def write_document(catalogue: Catalogue) -> None:
            # The present record, which may be newer; only this thread writes it.
            latest = self._records.get(topic_id)
            if latest is not None:
                catalogue.alter_documents([(KIND, str(topic_id), encode(latest))])

        self._writer.change(write_document if write is None else write, done)
        return record


def with_epoch(record: TopicRecord, partition: int, epoch: int) -> TopicRecord:
    """Of several epochs of a partition, the highest counts."""
    highest = max(epoch, record.epochs.get(partition, -1))
    return attrs.evolve(record, epochs={**record.epochs, partition: highest})


def encode(record: TopicRecord) -> bytes:
    return json.dumps(attrs.asdict(record), separators=(",", ":"), sort_keys=True).encode()


def decode(body: bytes) -> TopicRecord:
    fields = json.loads(body)
    fields["epochs"] = {int(partition): epoch for partition, epoch in fields.get("epochs", {}).items()}
    return TopicRecord(**fields)


log = get_logger("pulsar")


@attrs.frozen
class Place:
    """The location of a topic's messages: a partition of a topic of Kafka."""

    info: TopicInfo
    partition: int  # Kafka's
    name: TopicName  # its `partition` is -1 where Pulsar sees a topic that is not partitioned


@attrs.frozen
class Creation:
    """How topics that clients ask for are made."""

    on_demand: bool = True
    partitions: int = 0  # 0: not partitioned


class TopicRegistry:
    def __init__(
        self,
        logs: LogManager,
        documents: TopicDocuments,
        clock: Clock,
        timer: Timer,
        open_reader: Callable[[Log], EntryReader],
        creation: Callable[[str], Creation],
        topics_max: Callable[[str], int],
        has_namespace: Callable[[str], bool],
        *,
        on_load: Iterable[Callable[[Topic], None]],
        on_unload: Iterable[Callable[[Topic], None]],
    ) -> None:
        """Called with a namespace as tenant/namespace: ``creation``, how clients make topics in it; ``topics_max``, how many
        topics it may have (0: any number); ``has_namespace``, whether it exists.

        ``on_load`` are called with each topic that comes into use, before other threads see it, and add its subscriptions. They
        may block. ``on_unload`` are called with each topic that has gone out of use, after its producers and consumers have been
        told. They must not block."""
        self._logs = logs
        self._documents = documents
        self._open_reader = open_reader
        self.creation = creation
        self.topics_max = topics_max
        self.has_namespace = has_namespace
        self.on_load = list(on_load)
        self.on_unload = list(on_unload)
        self._topics: LoadedTopics[Topic] = LoadedTopics(clock, timer, self.unload)
        self._making = Lock()

    # -- looking up: never blocks ----------------------------------------------------------------------------------------

    def get(self, name: TopicName) -> Topic | None:
        """The topic, if it is in use."""
        return self._topics.get(name)

    def loaded(self) -> list[Topic]:
        """All topics that are in use."""
        return self._topics.all()

    def check_namespace(self, name: TopicName) -> None:
        """Raises TopicNotFound if the namespace does not exist."""
        if not self.has_namespace(name.namespace):
            raise TopicNotFound(f"Namespace {name.namespace} does not exist")

    def place(self, name: TopicName) -> Place | None:
        """The location of the messages of this topic or partition. None: it does not exist, or it is a partitioned topic and the
        name does not name a partition."""
        if not name.persistent:
            return None
        info = self._logs.topic(kafka_name(name))
        if name.partition >= 0:
            if info is not None and self.is_partitioned(info) and name.partition < info.partitions:
                return Place(info, name.partition, name)
            # An unpartitioned topic may have such a name, too.
            name = name.as_local
            info = self._logs.topic(kafka_name(name))
        if info is None or self.is_partitioned(info):
            return None
        return Place(info, 0, name)

    def partition_of(self, name: TopicName) -> tuple[str, int]:
        """The partition of Kafka that this name opens or would make: which node has the topic depends on it. For the name of a
        partitioned topic, its first partition."""
        place = self.place(name)
        return (kafka_name(name.as_local), 0) if place is None else (place.info.name, place.partition)

    def check_here(self, name: TopicName) -> None:
        """Raises Elsewhere if another node has the topic."""
        nodes = self._logs.nodes
        if nodes is not None:
            topic, partition = self.partition_of(name)
            if not nodes.has_partition(topic, partition):
                raise Elsewhere(topic, partition)

    def kafka_name(self, name: TopicName) -> str:
        """The name in Kafka of the topic that this name opens or would make; rights are checked for that name.
        ``X-partition-5`` is a partition of X only if X has it."""
        whole = kafka_name(name)
        if name.partition < 0:
            return whole
        info = self._logs.topic(whole)
        if info is not None and self.is_partitioned(info) and name.partition < info.partitions:
            return whole
        return kafka_name(name.as_local)

    def info(self, name: TopicName) -> TopicInfo | None:
        """The topic of Kafka that this name opens as a whole, or a partition of it."""
        return self._logs.topic(self.kafka_name(name)) if name.persistent else None

    def partitions(self, name: TopicName) -> int | None:
        """The number of the topic's partitions for Pulsar, 0 if it is not partitioned. None: the topic does not exist."""
        if name.partition >= 0 or not name.persistent:
            return None if self.place(name) is None else 0
        info = self._logs.topic(kafka_name(name))
        if info is None:
            return None
        return info.partitions if self.is_partitioned(info) else 0

    def is_partitioned(self, info: TopicInfo) -> bool:
        """A topic with several partitions is partitioned; a topic with a single partition is if it was made as such."""
        return info.partitions > 1 or self._documents.is_partitioned(info.topic_id)

    def kafka_names(self) -> set[str]:
        """The names of all topics in Kafka."""
        return {info.name for info in self._logs.topics()}

    def topics(self, namespace: str) -> list[TopicName]:
        """All topics of a namespace, with each partition listed."""
        names: list[TopicName] = []
        for info in self._logs.topics():
            name = pulsar_name(info.name)
            if name.namespace == namespace:
                names += name.partitions(info.partitions if self.is_partitioned(info) else 0)
        return names

    # -- making topics: may block ----------------------------------------------------------------------------------------

    def creates_partitioned(self, name: TopicName) -> bool:
        """Whether a request for the partitions of a missing topic makes the topic."""
        creation = self.creation(name.namespace)
        return name.persistent and creation.on_demand and creation.partitions > 0 and name.partition < 0

    def create_on_demand(self, name: TopicName) -> int:
        """Make a partitioned topic, unless it was made meanwhile, and return the number of its partitions. Raises refusals,
        StorageError."""
        try:
            return self.create_partitioned(name, self.creation(name.namespace).partitions).partitions
        except TopicExists:
            return self.partitions(name) or 0

    def create_partitioned(
        self, name: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> TopicInfo:
        """Make a partitioned topic. Raises TopicExists and other refusals, StorageError."""
        with self._making:
            return self._make(kafka_name(name), partitions, partitioned=True, properties=properties)

    def create(self, name: TopicName, properties: Mapping[str, str] | None = None) -> TopicInfo:
        """Make an unpartitioned topic. Raises TopicExists and other refusals, StorageError."""
        with self._making:
            return self._make(kafka_name(name.as_local), 1, partitioned=False, properties=properties)

    def _make(
        self, topic: str, partitions: int, *, partitioned: bool, properties: Mapping[str, str] | None = None
    ) -> TopicInfo:
        check_legal(topic)
        self.check_room(pulsar_name(topic).namespace, partitions)
        record = self._documents.new_record(partitioned=partitioned, properties=properties)
        # The topic's row and its document in one step, so that the broker always knows whether the topic is partitioned.
        return self._logs.create_topic(
            topic, partitions, also=lambda info: self._documents.adding(info.topic_id, record)
        )

    def check_room(self, namespace: str, partitions: int) -> None:
        """Raises NamespaceFull if the namespace may not get ``partitions`` more topics. Each partition counts as a topic."""
        most = self.topics_max(namespace)
        if most:
            infos = self._logs.topics()
            there = sum(info.partitions for info in infos if pulsar_name(info.name).namespace == namespace)
            if there + partitions > most:
                raise NamespaceFull(f"Exceed maximum number of topics in namespace: {namespace} may have {most}.")

    # -- coming into use: may block ---------------------------------------------------------------------------------------

    def get_or_create(self, name: TopicName, *, create: bool = True) -> Topic:
        """The topic; a missing topic is made if both ``create`` and the settings allow it. Raises TopicNotFound and other
        refusals, StorageError."""
        topic = self._topics.use(name)
        if topic is not None:
            return topic
        self.check_namespace(name)
        if not name.persistent:
            raise NotAllowed("This can be done with persistent topics only.")
        self.check_here(name)
        place = self.place(name)
        if place is None:
            if not (create and self.creation(name.namespace).on_demand):
                raise TopicNotFound(f"Topic {name} does not exist")
            place = self._create(name)
        return self._load(place)

    def _create(self, name: TopicName) -> Place:
        with self._making:
            place = self.place(name)
            if place is not None:
                return place
            info = self._logs.topic(kafka_name(name))
            if info is not None and self.is_partitioned(info):
                if name.partition < 0:
                    raise NotAllowed(f"{name} is a partitioned topic: name one of its partitions.")
                raise TopicNotFound(f"Topic {name.whole} has {info.partitions} partitions")
            local = name.as_local
            try:
                return Place(self._make(kafka_name(local), 1, partitioned=False), 0, local)
            except TopicExists:  # another node has just made it
                place = self.place(local)
                if place is None:
                    raise
                return place

    def _load(self, place: Place) -> Topic:
        """By one thread at a time, so that no topic is loaded twice."""
        with self._making:
            topic = self._topics.get(place.name)
            if topic is not None:
                return topic
            self.check_here(place.name)
            record = self._documents.ensure(place.info.topic_id)
            store = self._logs.get(place.info.name, place.partition)
            if store is None:
                raise TopicNotFound(f"Topic {place.name} has been deleted")
            producers = Producers(record.epochs.get(place.partition, -1))
            topic = Topic(store, self._open_reader(store), record, name=place.name, producers=producers)
            for prepare in self.on_load:
                prepare(topic)
            self._topics.add(topic)
            if (
                self._logs.get(place.info.name, place.partition) is not store
            ):  # deleted meanwhile, and ``on_topic_deleted`` did not see this topic
                self._close(topic, deleted=True)
                raise TopicNotFound(f"Topic {place.name} has been deleted")
        return topic

    # -- records of topics --------------------------------------------------------------------------------------------------

    def record(self, name: TopicName) -> TopicRecord | None:
        """None: the topic does not exist, or Pulsar has never used it."""
        info = self.info(name)
        return None if info is None else self._documents.get(info.topic_id)

    def change(self, topic: Topic, change: Callable[[TopicRecord], TopicRecord], done: Done) -> None:
        """Change the record of this partition's topic, then call ``done`` on the writer's thread. Never blocks."""
        topic_id = topic.log.topic_id
        self._changed(topic_id, self._documents.change(topic_id, change, done))

    def _changed(self, topic_id: UUID, record: TopicRecord | None) -> None:
        if record is not None:
            for each in self.loaded():
                if each.log.topic_id == topic_id:
                    each.record = record

    def reload(self) -> None:
        """Read the documents that other nodes have made or changed. May block. Raises StorageError."""
        for topic_id, record in self._documents.reload(self._is_first_here).items():
            self._changed(topic_id, record)

    def _is_first_here(self, topic_id: UUID) -> bool:
        info = self._logs.topic_by_id(topic_id)
        return info is not None and (info.name, 0) in self._logs.partitions

    def save_epoch(self, topic: Topic, epoch: int, done: Done) -> None:
        """Make the epoch of a topic's exclusive producers durable, then call ``done`` on the writer's thread. Never blocks."""
        topic_id = topic.log.topic_id
        self._changed(topic_id, self._documents.save_epoch(topic_id, topic.log.partition, epoch, done))

    def open(self) -> None:
        """End the logs of terminated topics. Called once, after the documents have been loaded."""
        for info in self._logs.topics():
            record = self._documents.get(info.topic_id)
            if record is not None and record.terminated:
                for log in self._logs_of(info.name):
                    log.appender.end()

    def terminate(self, topic: Topic, done: Done) -> None:
        """Allow no more writes to the topic by producers of either protocol, which are told at their next send. ``done`` is
        called on the writer's thread when this is durable."""

        for log in self._logs_of(topic.log.topic):
            log.appender.end()

        def durable(error: StorageError | None) -> None:
            topic.tail.wake()  # consumers that have read everything are told that this is the end
            done(error)

        self.change(topic, lambda record: attrs.evolve(record, terminated=True), durable)

    def _logs_of(self, topic: str) -> list[Log]:
        return [log for (name, _), log in list(self._logs.partitions.items()) if name == topic]

    # -- going out of use -------------------------------------------------------------------------------------------------

    def unload(self, topic: Topic) -> None:
        """Have all its clients look it up again."""
        self._close(topic, deleted=False)

    def delete_unused(self, info: TopicInfo, ends: Sequence[int]) -> bool:
        """Delete a topic that nobody used a moment ago, if its logs still end at ``ends``; clients that have connected since look
        it up again. Returns whether it was deleted: if anything was written since, it is kept. May block. Raises UnknownTopic,
        StorageError."""
        with self._making:  # nothing comes into use meanwhile
            for topic in self.loaded():
                if topic.log.topic_id == info.topic_id:
                    self._close(topic, deleted=False)
            logs = [self._logs.get(info.name, number) for number in range(info.partitions)]
            if [None if each is None else each.log_end_offset for each in logs] != list(ends):
                return False
            self._logs.delete_topic(info.name)
        return True

    def on_topic_deleted(self, info: TopicInfo) -> None:
        """A topic of Kafka is deleted: its clients look it up again. On the deleting thread, which may block."""
        for topic in self.loaded():
            if topic.log.topic_id == info.topic_id:
                self._close(topic, deleted=True)
        try:
            nodes = self._logs.nodes
            elsewhere = nodes is not None and not nodes.has_partition(info.name, 0)
            self._documents.forget(info.topic_id, removed_elsewhere=elsewhere)
        except StorageError as error:  # the next start removes it
            log.error("topic_document_not_removed", topic=info.name, error=str(error))

    def close(self) -> None:
        """The broker stops; the threads have ended."""
        for topic in self.loaded():
            for ended in self.on_unload:
                ended(topic)

    def _close(self, topic: Topic, *, deleted: bool) -> None:
        with topic.lock:
            if topic.closed:
                return
            producers = list(topic.producers)
            # Before ``closed`` is set: a thread that loads the topic again must find the states of all its subscriptions.
            for subscription in list(topic.subscriptions.values()):
                if deleted:
                    subscription.deleted()
                else:
                    subscription.close()
            topic.closed = True
        self._topics.remove(topic)
        for producer in producers:
            producer.close()
        topic.reader.close()
        for ended in self.on_unload:
            ended(topic)
