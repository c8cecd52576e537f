"""A topic in use: one partition's log with the producers and subscriptions that are on it.

``registry.py`` makes a ``Topic`` when the first client asks for it, and drops it when nobody has used it for a while. What must
outlive it is elsewhere: the records in the log, the cursors in the catalogue, the rest in the topic's document.

Any thread. ``lock`` guards the tables; whoever holds it may take a subscription's lock, never the other way round, and nothing
that blocks happens under either.

Tests: tests/pulsar/topics/test_registry.py.
"""

from collections.abc import Mapping
from typing import Protocol
from uuid import UUID

import attrs

from broker.pulsar.dispatch.rate_limit import DispatchRate
from broker.pulsar.entries.reader import EntryReader
from broker.pulsar.producers.deduplication import Deduplication
from broker.pulsar.producers.producers import Producers
from broker.pulsar.refusals import ServiceNotReady
from broker.pulsar.subscriptions.tail import Tail
from broker.pulsar.topic_names import TopicName
from broker.runtime.threads import Lock
from broker.storage.log.log import Log


class AttachedSubscription(Protocol):
    """A subscription as its topic sees it. ``subscriptions/`` has the class."""

    def close(self) -> None:
        """The topic is unloaded: its consumers are told to look it up again."""

    def deleted(self) -> None:
        """The topic is gone, and so is the subscription."""

    @property
    def has_consumers(self) -> bool: ...

    @property
    def consumer_count(self) -> int: ...


class AnyTopic(Protocol):
    """A topic as its producers see it, whether its messages are kept (``Topic``) or not (``broker/pulsar/nonpersistent``)."""

    closed: bool

    @property
    def name(self) -> TopicName: ...

    @property
    def lock(self) -> Lock: ...

    @property
    def producers(self) -> Producers: ...

    @property
    def ledger(self) -> int: ...

    @property
    def partition(self) -> int: ...

    @property
    def terminated(self) -> bool: ...

    @property
    def deduplication(self) -> Deduplication | None: ...

    @property
    def kafka_name(self) -> str: ...

    @property
    def topic_id(self) -> UUID: ...

    @property
    def entry_bytes_max(self) -> int:
        """The largest record batch that it takes."""

    @property
    def durable_offset(self) -> int:
        """Everything before it is durable."""

    @property
    def publish_rate(self) -> DispatchRate:
        """That of all its producers together."""

    def check_open(self) -> None: ...


@attrs.frozen
class TopicRecord:
    """What Pulsar knows of a topic beyond Kafka's row. All partitions share it. ``documents.py`` keeps it in the catalogue."""

    ledger: int  # the generation of the topic: the ledger id of its messages, never used again
    partitioned: bool = False
    properties: Mapping[str, str] = attrs.field(factory=dict)
    terminated: bool = False
    # Of the exclusive producers, by partition (0 for a topic without); none where there was none yet.
    epochs: Mapping[int, int] = attrs.field(factory=dict)


@attrs.define(eq=False, repr=False)
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
    deduplication: Deduplication | None = None  # None: it is off
    publish_rate: DispatchRate = attrs.Factory(DispatchRate)  # of all producers; set when it comes into use
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

    @property
    def partition(self) -> int:
        """As in message ids: -1 for a topic that is not partitioned."""
        return self.name.partition

    # -- clients ---------------------------------------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Whether a client is connected to it."""
        return self.producers.in_use or any(one.has_consumers for one in self.subscriptions.values())

    def check_open(self) -> None:
        """Raises ServiceNotReady where this is no longer the topic of its name. ``lock`` is held."""
        if self.closed:
            raise ServiceNotReady("The topic is being unloaded; look it up again.")
