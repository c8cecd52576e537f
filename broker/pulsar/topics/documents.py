"""What Pulsar knows of each topic beyond Kafka's row, in the catalogue: one document for each topic, by its id.

A document is made when Pulsar first uses a topic. Its ledger id comes from a counter in the catalogue that is raised by a block
before any number of the block is used, so no ledger id is ever used again, whatever happens to the topic.

Any thread. ``ensure`` may block, with ``_making`` held; ``_lock`` guards changes and is held for moments.

Tests: tests/pulsar/topics/test_documents.py.
"""

import json
from collections.abc import Callable
from uuid import UUID

import attrs

from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter, Done
from broker.pulsar.topics.topic import TopicRecord
from broker.runtime.threads import Lock

KIND = "pulsar-topic"
_COUNTER = "pulsar-next-ledger"
_BLOCK = 64


class TopicDocuments:
    def __init__(self, catalogue: Catalogue, writer: CatalogueWriter) -> None:
        """``writer`` makes all changes of documents that are there, in the order in which they were asked for."""
        self._writer = writer
        self._catalogue = catalogue
        self._records: dict[UUID, TopicRecord] = {}
        self._lock = Lock()
        self._making = Lock()
        self._next_ledger = 0
        self._block_ends = 0

    def load(self) -> None:
        for key, body in self._catalogue.load_documents(KIND):
            self._records[UUID(key)] = decode(body)

    def get(self, topic_id: UUID) -> TopicRecord | None:
        return self._records.get(topic_id)

    def is_partitioned(self, topic_id: UUID) -> bool:
        record = self._records.get(topic_id)
        return record is not None and record.partitioned

    def ensure(self, topic_id: UUID, *, partitioned: bool = False) -> TopicRecord:
        """The record of a topic, made if there is none. May block. Raises StorageError."""
        record = self._records.get(topic_id)
        if record is not None:
            return record
        with self._making:
            record = self._records.get(topic_id)
            if record is None:
                record = TopicRecord(self._take_ledger(), partitioned)
                self._write(topic_id, record)
        return record

    def change(self, topic_id: UUID, change: Callable[[TopicRecord], TopicRecord], done: Done) -> TopicRecord:
        """Change a record, now in memory and soon in the catalogue: ``done`` is called on the writer's thread then. Any thread;
        never blocks."""
        with self._lock:
            record = self._records[topic_id] = change(self._records[topic_id])

        def write(catalogue: Catalogue) -> None:
            # What the record is by now: this thread is the only one that writes it.
            latest = self._records.get(topic_id)
            if latest is not None:
                catalogue.alter_documents([(KIND, str(topic_id), encode(latest))])

        self._writer.change(write, done)
        return record

    def _write(self, topic_id: UUID, record: TopicRecord) -> None:
        self._catalogue.alter_documents([(KIND, str(topic_id), encode(record))])
        self._records[topic_id] = record

    def _take_ledger(self) -> int:
        if self._next_ledger >= self._block_ends:
            start = int(self._catalogue.meta(_COUNTER) or "1")
            self._catalogue.set_meta(_COUNTER, str(start + _BLOCK))
            self._next_ledger, self._block_ends = start, start + _BLOCK
        ledger = self._next_ledger
        self._next_ledger += 1
        return ledger


def encode(record: TopicRecord) -> bytes:
    return json.dumps(attrs.asdict(record), separators=(",", ":"), sort_keys=True).encode()


def decode(body: bytes) -> TopicRecord:
    fields = json.loads(body)
    fields["epochs"] = {int(partition): epoch for partition, epoch in fields.get("epochs", {}).items()}
    return TopicRecord(**fields)
