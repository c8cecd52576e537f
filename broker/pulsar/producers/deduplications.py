"""The deduplication of all topics: switching it on and off, and its snapshots in the catalogue.

Whether it is on is a policy of the topic or its namespace, which is checked when a producer connects. When it is switched on,
messages that are already in the topic are not noted. The snapshots are documents, by the topic's id and the partition.

Any thread. ``prepare`` may block, under ``_lock``; the catalogue writer's thread writes the snapshots.

Tests: tests/pulsar/producers/test_deduplication.py.
"""

from collections.abc import Callable
from functools import partial
from uuid import UUID

from broker.errors import StorageError
from broker.log import EventLimit, get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter
from broker.pulsar.producers.deduplication import Deduplication
from broker.pulsar.topics.topic import Topic
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer

log = get_logger("pulsar")

KIND = "pulsar-sequence-ids"
# Interval (s) of writing changed tables: Pulsar's brokerDeduplicationSnapshotIntervalSeconds.
_INTERVAL_S = 120.0


class Deduplications:
    def __init__(
        self,
        catalogue: Catalogue,
        writer: CatalogueWriter,
        clock: Clock,
        timer: Timer,
        is_on: Callable[[Topic], bool],
    ) -> None:
        self._catalogue = catalogue
        self._writer = writer
        self._clock = clock
        self._timer = timer
        self._is_on = is_on
        self._stored: dict[str, bytes] = {}  # snapshots as of the start, or when the topic was last unloaded
        self._keys: set[str] = set()  # of all snapshots that the catalogue may have
        self._topics: dict[Topic, None] = {}
        self._lock = Lock()
        self._ticking_lock = Lock()  # the timer's thread must not wait for `_lock`
        self._ticking = False
        self._failures = EventLimit()

    def load(self, exists: Callable[[UUID], bool]) -> None:
        """Read the catalogue, and remove the snapshots of topics that no longer exist. Raises StorageError."""
        gone: list[tuple[str, str, bytes | None]] = []
        for key, body in self._catalogue.load_documents(KIND):
            if exists(UUID(key.partition("/")[0])):
                self._stored[key] = body
                self._keys.add(key)
            else:
                gone.append((KIND, key, None))
        if gone:
            self._catalogue.alter_documents(gone)

    def prepare(self, topic: Topic) -> None:
        """A producer connects: switch deduplication on or off as the policy says. Blocks. Raises StorageError, Refusal."""
        wanted = self._is_on(topic)
        if wanted == (topic.deduplication is not None):
            return
        with self._lock:
            if wanted == (topic.deduplication is not None):
                return
            key = _key(topic)
            if not wanted:
                topic.deduplication = None
                self._topics.pop(topic, None)
                self._stored.pop(key, None)
                self._catalogue.alter_documents([(KIND, key, None)])
                self._keys.discard(key)
                return
            deduplication = Deduplication(topic.log)
            self._keys.add(key)
            stored = self._stored.get(key)
            if stored is not None:
                deduplication.restore(stored)
            else:
                # Store the offset, so that a restart replays the log from here.
                self._catalogue.alter_documents([(KIND, key, deduplication.snapshot())])
            topic.deduplication = deduplication
            self._topics[topic] = None
        self._tick_later()

    def save(self, topic: Topic) -> None:
        """Write a snapshot soon. Never blocks."""
        deduplication = topic.deduplication
        if deduplication is not None:
            self._writer.change(partial(self._write, _key(topic), deduplication), self._written)

    def _write(self, key: str, deduplication: Deduplication, catalogue: Catalogue) -> None:
        """On the writer's thread."""
        catalogue.alter_documents([(KIND, key, deduplication.snapshot())])

    def _written(self, error: StorageError | None) -> None:
        if error is None:
            return
        # Nothing is lost: the next snapshot has the whole table.
        unlogged = self._failures.take(self._clock.monotonic())
        if unlogged is not None:
            log.error("sequence_ids_not_written", error=str(error), unlogged_before=unlogged)

    def unloaded(self, topic: Topic) -> None:
        """The topic is being unloaded."""
        deduplication = topic.deduplication
        if deduplication is None:
            return
        self._topics.pop(topic, None)
        if not topic.log.deleted:
            self._stored[_key(topic)] = deduplication.snapshot()
            self.save(topic)

    def deleted(self, topic_id: UUID) -> None:
        """A topic was deleted. If removing its snapshots fails, the next start removes them."""
        keys = [key for key in self._keys.copy() if key.startswith(f"{topic_id}/")]
        self._keys.difference_update(keys)
        for key in keys:
            self._stored.pop(key, None)

        def write(catalogue: Catalogue) -> None:
            catalogue.alter_documents([(KIND, key, None) for key in keys])

        if keys:
            self._writer.change(write, self._written)

    def _tick_later(self) -> None:
        with self._ticking_lock:
            if self._ticking:
                return
            self._ticking = True
        self._timer.at(self._clock.monotonic() + _INTERVAL_S, self._tick)

    def _tick(self) -> None:
        """On the timer's thread."""
        self._ticking = False
        topics = list(self._topics)
        for topic in topics:
            if topic.deduplication is not None and topic.deduplication.changed:
                self.save(topic)
        if topics:
            self._tick_later()


def _key(topic: Topic) -> str:
    return f"{topic.log.topic_id}/{topic.log.partition}"
