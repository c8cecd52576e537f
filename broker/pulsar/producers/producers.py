"""The admission of producers to a topic: those that are connected, and those that wait for exclusive access.

Pure decisions over a table, which the topic's lock guards. ``Admitted`` tells the caller which other producers to close or fence,
which it does after it has released the lock.

| access mode | no producers | Shared producers | an exclusive producer |
|---|---|---|---|
| Shared | joins | joins | ProducerBusy |
| Exclusive | becomes exclusive | ProducerFenced | ProducerFenced |
| WaitForExclusive | becomes exclusive | waits | waits |
| ExclusiveWithFencing | becomes exclusive | closes them, becomes exclusive | closes it, becomes exclusive |

While a producer waits, no Shared producer may join. ExclusiveWithFencing also fences the waiting producers. Each new exclusive
producer raises the topic's epoch. A producer that returns with an older epoch was replaced meanwhile, and is fenced.

The names of a topic's producers are unique. A producer of the same connection and number replaces itself if its epoch is newer.

Tests: tests/pulsar/producers/test_producers.py.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from enum import IntEnum
from typing import Protocol

import attrs

from broker.pulsar.refusals import ProducerBusy, ProducerFenced


class Access(IntEnum):
    """ProducerAccessMode."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class TopicProducer(Protocol):
    """A producer as its topic sees it; ``producer.py`` implements it."""

    @property
    def name(self) -> str: ...

    @property
    def access(self) -> Access: ...

    @property
    def epoch(self) -> int:
        """Counts how often the client has connected this producer."""

    @property
    def topic_epoch(self) -> int | None:
        """The epoch of the topic when it was last the exclusive producer; None if it never was."""

    @property
    def identity(self) -> Hashable:
        """Its connection, and its number there."""

    def close(self) -> None:
        """Tell the client to connect the producer again, and ignore further SENDs."""

    def promoted(self) -> None:
        """It waited, and is the exclusive producer now."""

    def fenced(self) -> None:
        """It waited, and was fenced."""


class NameTaken(Exception):
    """Another connection has a producer of this name. If that connection turns out to be dead, the newcomer may try again."""

    def __init__(self, holder: TopicProducer) -> None:
        super().__init__()
        self.holder = holder

    def as_refusal(self) -> ProducerBusy:
        return ProducerBusy(f"Producer with name '{self.holder.name}' is already connected to topic")


@attrs.frozen
class Admitted:
    """``waits``: the producer will be exclusive when it is promoted. ``raised``: the topic's epoch has risen, and must be durable
    before any client is told. The caller closes ``replaced``, and calls ``fenced()`` of ``fenced``."""

    waits: bool = False
    raised: bool = False
    replaced: Sequence[TopicProducer] = ()
    fenced: Sequence[TopicProducer] = ()


class Producers:
    """``epoch``: the topic's; -1 if it never had an exclusive producer."""

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self._by_name: dict[str, TopicProducer] = {}
        self._exclusive: TopicProducer | None = None
        # In order of arrival. There may be tens of thousands, so removing a producer must not search the others.
        self._waiting: OrderedDict[TopicProducer, None] = OrderedDict()

    def __len__(self) -> int:
        """The number of producers without those that wait."""
        return len(self._by_name)

    def __iter__(self) -> Iterator[TopicProducer]:
        """The producers, and then those that wait."""
        return iter([*self._by_name.values(), *self._waiting])

    @property
    def in_use(self) -> bool:
        return bool(self._by_name or self._waiting)

    @property
    def exclusive(self) -> TopicProducer | None:
        return self._exclusive

    def admit(self, producer: TopicProducer, most: int = 0) -> Admitted:
        """``most``: the topic's maximum number of producers; 0: no maximum. Raises ProducerBusy, ProducerFenced, NameTaken, and
        changes nothing then."""
        before = self._by_name.get(producer.name)
        if before is not None and not (before.identity == producer.identity and before.epoch < producer.epoch):
            # A newcomer that fences all others takes the name from its holder, too.
            if producer.access != Access.EXCLUSIVE_WITH_FENCING:
                raise NameTaken(before)
            before = None
        others = len(self._by_name) - (before is not None)
        exclusive = None if self._exclusive is before else self._exclusive
        if producer.topic_epoch is not None and producer.topic_epoch < self.epoch and producer.access != Access.SHARED:
            raise ProducerFenced(
                f"Producer epoch has been bumped: the topic is at {self.epoch}, the producer at {producer.topic_epoch}"
            )
        if producer.access == Access.SHARED:
            if exclusive is not None or self._waiting:
                raise ProducerBusy("Topic has an existing exclusive producer")
            self._check_room(most, others)
            if before is not None:
                self._take_out(before)
            self._by_name[producer.name] = producer
            return Admitted(replaced=() if before is None else (before,))
        if producer.access == Access.WAIT_FOR_EXCLUSIVE and others:
            self._waiting[producer] = None
            return Admitted(waits=True)
        if producer.access == Access.EXCLUSIVE and others:
            name = "" if exclusive is None else f": {exclusive.name}"
            raise ProducerFenced(f"Topic has an existing exclusive producer{name}")
        replaced = list(self._by_name.values())
        fenced = list(self._waiting) if producer.access == Access.EXCLUSIVE_WITH_FENCING else []
        for waiting in fenced:
            del self._waiting[waiting]
        self._by_name = {producer.name: producer}
        self._exclusive = producer
        self._raise_epoch(producer)
        return Admitted(raised=True, replaced=replaced, fenced=fenced)

    def remove(self, producer: TopicProducer) -> TopicProducer | None:
        """Remove a producer; does nothing if it is unknown. Returns the waiting producer that has become exclusive, if any: the
        epoch has risen then."""
        if producer in self._waiting:
            del self._waiting[producer]
        elif self._by_name.get(producer.name) is producer:
            self._take_out(producer)
        if self._by_name or not self._waiting:
            return None
        promoted, _ = self._waiting.popitem(last=False)
        self._by_name[promoted.name] = promoted
        self._exclusive = promoted
        self._raise_epoch(promoted)
        return promoted

    def _take_out(self, producer: TopicProducer) -> None:
        del self._by_name[producer.name]
        if self._exclusive is producer:
            self._exclusive = None

    def _raise_epoch(self, producer: TopicProducer) -> None:
        # A producer that returns with the newest epoch keeps it, so that its own earlier connection does not fence it.
        if producer.topic_epoch is None or producer.topic_epoch != self.epoch:
            self.epoch = max(self.epoch + 1, producer.topic_epoch or 0)

    def _check_room(self, most: int, others: int) -> None:
        if most and others >= most:
            raise ProducerBusy("Topic reached max producers limit")
