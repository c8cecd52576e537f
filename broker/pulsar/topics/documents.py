"""What Pulsar knows of each topic beyond Kafka's row, in the catalogue: one document for each topic, by its id.

A document is made with the topic, or when Pulsar first uses a topic of Kafka's. Its ledger id comes from a counter in the
catalogue that is raised by a block before any number of the block is used, so no ledger id is ever used again, whatever becomes
of the topic.

Any thread. ``ensure``, ``new_record`` and ``forget`` may block, with ``_making`` held; ``_lock`` guards the table and is held
for moments. What is there is changed by the writer's thread only, so that documents are written in the order of their changes.

Tests: tests/pulsar/topics/test_documents.py.
"""

import json
from collections.abc import Callable, Mapping
from uuid import UUID

import attrs

from broker.errors import StorageError
from broker.metadata.catalogue import Catalogue, Change
from broker.metadata.writer import CatalogueWriter, Done
from broker.pulsar.topics.topic import TopicRecord
from broker.runtime.threads import Lock

KIND = "pulsar-topic"
_COUNTER = "pulsar-next-ledger"
_BLOCK = 64


class TopicDocuments:
    def __init__(self, catalogue: Catalogue, writer: CatalogueWriter) -> None:
        """``writer`` makes all changes of documents that are there, in the order in which they were asked for."""
        self._catalogue = catalogue
        self._writer = writer
        self._records: dict[UUID, TopicRecord] = {}
        self._lock = Lock()
        self._making = Lock()
        self._next_ledger = 0
        self._block_ends = 0

    def load(self, exists: Callable[[UUID], bool]) -> None:
        """Documents of topics that are gone are removed: the broker died between the two deletions. Raises StorageError."""
        gone = []
        for key, body in self._catalogue.load_documents(KIND):
            topic_id = UUID(key)
            if exists(topic_id):
                self._records[topic_id] = decode(body)
            else:
                gone.append((KIND, key, None))
        if gone:
            self._catalogue.alter_documents(gone)

    def get(self, topic_id: UUID) -> TopicRecord | None:
        return self._records.get(topic_id)

    def is_partitioned(self, topic_id: UUID) -> bool:
        record = self._records.get(topic_id)
        return record is not None and record.partitioned

    # -- documents that are made: may block --------------------------------------------------------------------------------

    def new_record(self, *, partitioned: bool, properties: Mapping[str, str] | None = None) -> TopicRecord:
        """The record of a topic that is to be made. Raises StorageError."""
        with self._making:
            return TopicRecord(self._take_ledger(), partitioned, dict(properties or {}))

    def adding(self, topic_id: UUID, record: TopicRecord) -> Change:
        """The change of the catalogue that makes the document of a new topic; the topic is made in the same step."""

        def change(catalogue: Catalogue) -> None:
            catalogue.alter_documents([(KIND, str(topic_id), encode(record))])

        # Before anybody can see the topic. If it is not made after all, nobody will ask for this id.
        with self._lock:
            self._records[topic_id] = record
        return change

    def ensure(self, topic_id: UUID) -> TopicRecord:
        """The record of a topic, made if there is none. Raises StorageError."""
        record = self._records.get(topic_id)
        if record is not None:
            return record
        with self._making:
            record = self._records.get(topic_id)
            if record is None:
                record = TopicRecord(self._take_ledger())
                self._catalogue.alter_documents([(KIND, str(topic_id), encode(record))])
                with self._lock:
                    self._records[topic_id] = record
        return record

    def forget(self, topic_id: UUID) -> None:
        """The topic has been deleted. Raises StorageError; then the next start does it."""
        with self._lock:
            known = self._records.pop(topic_id, None)
        if known is not None:
            self._catalogue.alter_documents([(KIND, str(topic_id), None)])

    def _take_ledger(self) -> int:
        if self._next_ledger >= self._block_ends:
            start = int(self._catalogue.meta(_COUNTER) or "1")
            self._catalogue.set_meta(_COUNTER, str(start + _BLOCK))
            self._next_ledger, self._block_ends = start, start + _BLOCK
        ledger = self._next_ledger
        self._next_ledger += 1
        return ledger

    # -- documents that are there ------------------------------------------------------------------------------------------

    def change(self, topic_id: UUID, change: Callable[[TopicRecord], TopicRecord], done: Done) -> TopicRecord | None:
        """Change a record, now in memory and soon in the catalogue: ``done`` is called on the writer's thread then. Never
        blocks. Returns the new one; None if the topic has been deleted, and then ``done`` gets an error at once."""
        with self._lock:
            before = self._records.get(topic_id)
            record = None if before is None else change(before)
            if record is not None:
                self._records[topic_id] = record
        if record is None:
            done(StorageError("the topic has been deleted"))
            return None

        def write(catalogue: Catalogue) -> None:
            # What the record is by now; only this thread writes it.
            latest = self._records.get(topic_id)
            if latest is not None:
                catalogue.alter_documents([(KIND, str(topic_id), encode(latest))])

        self._writer.change(write, done)
        return record


def encode(record: TopicRecord) -> bytes:
    return json.dumps(attrs.asdict(record), separators=(",", ":"), sort_keys=True).encode()


def decode(body: bytes) -> TopicRecord:
    fields = json.loads(body)
    fields["epochs"] = {int(partition): epoch for partition, epoch in fields.get("epochs", {}).items()}
    return TopicRecord(**fields)
