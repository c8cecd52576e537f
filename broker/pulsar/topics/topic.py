"""A topic in use: a partition's log with its producers and subscriptions (``Topic``), the table of such topics
(``LoadedTopics``), and the subscriptions that wait at the end of the log for the next entry (``Tail``).

``registry.py`` makes a ``Topic`` when the first client asks for it, and drops it when nobody has used it for a while. All durable
state is elsewhere: records in the log, cursors in the catalogue, the rest in the topic's document.

A subscription that has read everything is put into the tail with ``add`` and then looks for entries once more, because an entry
may have been appended meanwhile. The next append takes all waiting subscriptions out and has them continue: a few of them on the
appending thread, which is the fastest; a larger number on the waker's thread, so that no processor is delayed.

Producers of Pulsar append between ``begin_append`` and ``end_append``; in between, the log has entries that are not in the cache
yet. Other appends (by Kafka's producers, or ends of transactions) are noticed by watching the log, but only while a subscription
waits or has waited since the last append.

Any thread. A topic's ``lock`` guards its tables; its holder may take a subscription's lock, never the other way round, and
nothing blocks under either. The tail's lock is taken below a subscription's and is not held while subscriptions are called.

Tests: tests/pulsar/topics/test_registry.py,
tests/pulsar/subscriptions/test_subscription.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import attrs

from broker.log import get_logger
from broker.pulsar.dispatch.rate_limit import DispatchRate
from broker.pulsar.entries.reader import EntryReader
from broker.pulsar.producers.deduplication import Deduplication
from broker.pulsar.producers.producers import Producers
from broker.pulsar.refusals import ServiceNotReady
from broker.pulsar.subscriptions.waker import Line
from broker.pulsar.topic_names import TopicName
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.storage.log.log import Log

log = get_logger("pulsar")

# Subscriptions that the appending thread serves itself: at most about 0.3 ms.
_AT_ONCE = 16
# The time (s) without clients after which a topic goes out of use. Also the interval of the sweeps.
IDLE_S = 60.0


class Waiting(Protocol):
    def more(self) -> None:
        """There may be entries. No lock is held."""


class Reader(Protocol):
    def cursor_opened(self) -> None: ...

    def cursor_closed(self) -> None: ...


class Tail:
    def __init__(self, log: Log) -> None:
        self._log = log
        # The line of the waker's thread. Set when the topic gets its subscriptions.
        self.line: Line | None = None
        self._lock = Lock()
        self._waiting: dict[Waiting, None] = {}
        self._appending = 0  # producers of Pulsar between begin and end
        self._watch = -1  # the token of the log's watcher; -1: not watched

    def __len__(self) -> int:
        return len(self._waiting)

    def consumers_came(self, reader: Reader) -> None:
        """A subscription has consumers that take entries from now on."""
        with self._lock:
            reader.cursor_opened()

    def consumers_left(self, reader: Reader) -> None:
        with self._lock:
            reader.cursor_closed()

    def add(self, waiting: Waiting) -> None:
        with self._lock:
            self._waiting[waiting] = None
            if self._watch < 0:
                self._watch = self._log.watch(self._log_grew)

    def discard(self, waiting: Waiting) -> None:
        """The subscription no longer waits; ``more`` may still be called once."""
        with self._lock:
            self._waiting.pop(waiting, None)

    def begin_append(self) -> None:
        with self._lock:
            self._appending += 1

    def end_append(self) -> None:
        """The entries are in the cache. The caller holds no lock."""
        with self._lock:
            self._appending -= 1
        if self._waiting:
            self.wake()

    def wake(self) -> None:
        """Have all waiting subscriptions look again. The caller holds no lock."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        if len(waiting) <= _AT_ONCE:
            for subscription in waiting:
                _go_on(subscription)
        else:
            for subscription in waiting:
                self._later(subscription)

    def _log_grew(self) -> None:
        """On the thread that has appended, or has noticed that the log is deleted."""
        with self._lock:
            if self._appending:
                return  # `end_append` follows
            waiting, self._waiting = self._waiting, {}
            if not waiting:
                self._log.unwatch(self._watch)
                self._watch = -1
        for subscription in waiting:
            self._later(subscription)

    def _later(self, waiting: Waiting) -> None:
        if self.line is None:
            waiting.more()
        else:
            self.line.call(waiting.more)


def _go_on(waiting: Waiting) -> None:
    try:
        waiting.more()
    except Exception as error:  # the producer that has appended is not at fault
        log.error("subscription_failed", exc_info=error)


class AnySubscription(Protocol):
    """A subscription as its topic sees it."""

    @property
    def has_consumers(self) -> bool: ...

    @property
    def consumer_count(self) -> int: ...

    def close(self) -> None:
        """The topic is unloaded: its consumers are told to look it up again."""


class AttachedSubscription(AnySubscription, Protocol):
    """One whose messages are kept. ``subscriptions/`` has the class."""

    def deleted(self) -> None:
        """The topic is gone, and so is the subscription."""


@attrs.define(eq=False, repr=False, kw_only=True)
class AnyTopic(ABC):
    """A topic, or a partition of it, whether its messages are kept (``Topic``) or not (``broker/pulsar/nonpersistent``)."""

    name: TopicName  # of this partition
    producers: Producers = attrs.Factory(Producers)
    lock: Lock = attrs.Factory(Lock)
    closed: bool = False  # unloaded or deleted: get it from the registry again
    idle_since: float = 0.0  # Clock.monotonic() s
    deduplication: Deduplication | None = None  # None: off
    publish_rate: DispatchRate = attrs.Factory(DispatchRate)  # of all producers together; set when it comes into use

    @property
    @abstractmethod
    def subscriptions(self) -> Mapping[str, AnySubscription]: ...

    @property
    @abstractmethod
    def ledger(self) -> int: ...

    @property
    @abstractmethod
    def terminated(self) -> bool: ...

    @property
    @abstractmethod
    def kafka_name(self) -> str: ...

    @property
    @abstractmethod
    def topic_id(self) -> UUID: ...

    @property
    @abstractmethod
    def entry_bytes_max(self) -> int:
        """The size of the largest record batch that may be stored."""

    @property
    @abstractmethod
    def durable_offset(self) -> int:
        """Everything before this offset is durable."""

    @property
    def partition(self) -> int:
        """As in message ids: -1 for a topic that is not partitioned."""
        return self.name.partition

    @property
    def in_use(self) -> bool:
        """Whether a client is connected to it."""
        return self.producers.in_use or any(subscription.has_consumers for subscription in self.subscriptions.values())

    def check_open(self) -> None:
        """Raises ServiceNotReady if the topic has been unloaded or deleted. ``lock`` is held."""
        if self.closed:
            raise ServiceNotReady("The topic is being unloaded; look it up again.")


T = TypeVar("T", bound=AnyTopic)


class LoadedTopics(Generic[T]):
    """The topics in use, by name. ``close`` is called with each that nobody has used for ``IDLE_S``. Nothing blocks."""

    def __init__(self, clock: Clock, timer: Timer, close: Callable[[T], None]) -> None:
        self._clock = clock
        self._timer = timer
        self._close = close
        self._topics: dict[TopicName, T] = {}
        self._lock = Lock()  # held for moments
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._topics)

    def get(self, name: TopicName) -> T | None:
        topic = self._topics.get(name)
        return None if topic is None or topic.closed else topic

    def use(self, name: TopicName) -> T | None:
        """The topic, which stays in use for a while."""
        topic = self.get(name)
        if topic is not None:
            topic.idle_since = self._clock.monotonic()
        return topic

    def all(self) -> list[T]:
        return list(self._topics.values())

    def add(self, topic: T) -> None:
        topic.idle_since = now = self._clock.monotonic()
        with self._lock:
            self._topics[topic.name] = topic
            start = not self._sweeping
            self._sweeping = True
        if start:
            self._timer.at(now + IDLE_S, self._sweep)

    def remove(self, topic: T) -> None:
        with self._lock:
            if self._topics.get(topic.name) is topic:
                del self._topics[topic.name]

    def _sweep(self) -> None:
        """On the timer's thread: close topics that nobody uses. Takes about a microsecond for each loaded topic."""
        now = self._clock.monotonic()
        try:
            for topic in self.all():
                with topic.lock:
                    if topic.in_use:
                        topic.idle_since = now
                if now - topic.idle_since >= IDLE_S:
                    self._close(topic)
        finally:  # the sweeps continue even if closing a topic fails
            with self._lock:
                again = self._sweeping = bool(self._topics)
            if again:
                self._timer.at(now + IDLE_S, self._sweep)


@attrs.frozen
class TopicRecord:
    """Pulsar's properties of a topic beyond Kafka's row, shared by all partitions. ``registry.py`` keeps it in the catalogue."""

    ledger: int  # the generation of the topic: the ledger id of its messages, never used again
    partitioned: bool = False
    properties: Mapping[str, str] = attrs.field(factory=dict)
    terminated: bool = False
    # Epochs of exclusive producers, by partition (0 if not partitioned); missing before the first exclusive producer.
    epochs: Mapping[int, int] = attrs.field(factory=dict)


@attrs.define(eq=False, repr=False)
class Topic(AnyTopic):
    log: Log
    reader: EntryReader
    record: TopicRecord  # replaced by the registry when it changes
    subscriptions: dict[str, AttachedSubscription] = attrs.Factory(dict)
    tail: Tail = attrs.field(init=False)  # where subscriptions wait for the next entry

    def __attrs_post_init__(self) -> None:
        self.tail = Tail(self.log)

    @property
    def ledger(self) -> int:
        return self.record.ledger

    @property
    def kafka_name(self) -> str:
        return self.log.topic

    @property
    def topic_id(self) -> UUID:
        return self.log.topic_id

    @property
    def entry_bytes_max(self) -> int:
        return self.log.config.segment_bytes

    @property
    def durable_offset(self) -> int:
        return self.log.durable_offset

    @property
    def terminated(self) -> bool:
        return self.record.terminated

    @property
    def properties(self) -> Mapping[str, str]:
        return self.record.properties
