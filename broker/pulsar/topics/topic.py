"""A topic in use: one partition's log with the producers and subscriptions that are on it.

``registry.py`` makes a ``Topic`` when the first client asks for it, and drops it when nobody has used it for a while. What must
outlive it is elsewhere: the records in the log, the cursors in the catalogue, the rest in the topic's document.

Any thread. ``lock`` guards the tables; whoever holds it may take a subscription's lock, never the other way round, and nothing
that blocks happens under either.

Tests: tests/pulsar/topics/test_topic.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs

from broker.pulsar.entry import Entry
from broker.pulsar.producers.producers import Producers
from broker.pulsar.refusals import ServiceNotReady
from broker.pulsar.topic_names import TopicName
from broker.runtime.threads import Lock
from broker.storage.log.log import Log


class EntryReader(Protocol):
    """Reads a log as entries (``broker/pulsar/entries/reader.py``)."""

    @property
    def end(self) -> int:
        """The end of what consumers may read: the last stable offset."""

    def read(self, offset: int, max_entries: int, max_bytes: int) -> Sequence[Entry] | None:
        """From the cache, at once. None: it is not there."""

    def read_later(
        self, offset: int, max_entries: int, max_bytes: int, done: Callable[[Sequence[Entry] | Exception], None]
    ) -> None:
        """On a thread that may block, which calls ``done``."""

    def replay(self, offsets: Sequence[int]) -> Sequence[Entry] | None:
        """The entries that begin at these offsets, from the cache. None: not all are there."""

    def replay_later(self, offsets: Sequence[int], done: Callable[[Sequence[Entry] | Exception], None]) -> None: ...

    def appended(self, entries: Sequence[Entry]) -> None:
        """These have just been appended."""


class AttachedSubscription(Protocol):
    """A subscription as its topic sees it. ``subscriptions/`` has the class."""

    def close(self) -> None:
        """The topic is unloaded: its consumers are told to look it up again."""

    def deleted(self) -> None:
        """The topic is gone, and so is the subscription."""

    @property
    def has_consumers(self) -> bool: ...


@attrs.frozen
class TopicRecord:
    """What Pulsar knows of a topic beyond Kafka's row. All partitions share it. ``documents.py`` keeps it in the catalogue."""

    ledger: int  # the generation of the topic: the ledger id of its messages, never used again
    partitioned: bool = False
    properties: Mapping[str, str] = attrs.field(factory=dict)
    terminated: bool = False
    epoch: int = -1  # of the exclusive producers; -1: there was none yet


@attrs.define(eq=False)
class Topic:
    name: TopicName  # of this partition
    log: Log
    reader: EntryReader
    record: TopicRecord  # replaced by the registry when it changes
    producers: Producers
    subscriptions: dict[str, AttachedSubscription] = attrs.Factory(dict)
    lock: Lock = attrs.Factory(Lock)
    closed: bool = False  # unloaded or deleted: get it from the registry again
    idle_since: float = 0.0  # Clock.monotonic() s
    # Called after an append, with no lock held: those who wait for entries. By token.
    _waiting: dict[int, Callable[[], None]] = attrs.Factory(dict)
    _next_token: int = 0
    _appending: int = 0
    _watch: int = -1  # the token of the log's watcher, while somebody waits

    @property
    def ledger(self) -> int:
        return self.record.ledger

    @property
    def terminated(self) -> bool:
        return self.record.terminated

    @property
    def properties(self) -> Mapping[str, str]:
        return self.record.properties

    @property
    def partition(self) -> int:
        """As in message ids: -1 for a topic that is not partitioned."""
        return self.name.partition

    # -- waiting for entries -------------------------------------------------------------------------------------------

    def wait(self, callback: Callable[[], None]) -> int:
        """Call ``callback()`` after each append, by producers of Pulsar and of Kafka, and when the log ends. It runs on the
        appending thread with no lock held, must be quick and must not raise; ``outbox.call`` is what it should do. Look for
        entries once more after this returns. Returns a token for ``stop_waiting``."""
        with self.lock:
            self._next_token += 1
            token = self._next_token
            self._waiting[token] = callback
            if self._watch < 0:
                self._watch = self.log.watch(self._log_grew)
        return token

    def stop_waiting(self, token: int) -> None:
        """Do not call it again; it may still be running on another thread. An unknown token does nothing."""
        with self.lock:
            self._waiting.pop(token, None)
            if not self._waiting and self._watch >= 0:
                self.log.unwatch(self._watch)
                self._watch = -1

    def begin_append(self) -> None:
        """Until ``end_append`` who waits is not called: the entries are not in the cache yet."""
        with self.lock:
            self._appending += 1

    def end_append(self) -> None:
        with self.lock:
            self._appending -= 1
        self.wake()

    def wake(self) -> None:
        """Call those who wait for entries. The caller holds no lock."""
        if not self._waiting:
            return
        with self.lock:
            waiting = list(self._waiting.values())
        for callback in waiting:
            callback()

    def _log_grew(self) -> None:
        # A producer of Pulsar that appends on another thread meanwhile wakes them after it, and they see this append then.
        if not self._appending:
            self.wake()

    # -- clients ---------------------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Whether a client is connected to it."""
        return bool(self.producers) or any(one.has_consumers for one in self.subscriptions.values())

    def check_open(self) -> None:
        """Raises ServiceNotReady where this is no longer the topic of its name. ``lock`` is held."""
        if self.closed:
            raise ServiceNotReady("The topic is being unloaded; look it up again.")
