"""Who may produce to one topic: the producers that are connected to it, and those that wait to be its only one.

Pure decisions over a table; the topic's lock guards it. What is to be done about other producers is returned, and the caller
does it after it has released the lock.

| the producer wants | nobody produces | Shared producers | an exclusive one |
|---|---|---|---|
| Shared | joins | joins | ProducerBusy |
| Exclusive | is the only one | ProducerFenced | ProducerFenced |
| WaitForExclusive | is the only one | waits | waits |
| ExclusiveWithFencing | is the only one | closes them, is the only one | closes it, is the only one |

While somebody waits no Shared producer may join, and who fences the others also fences those who wait. Each exclusive producer
raises the epoch of the topic. One that comes back with an older epoch than the topic's has been replaced meanwhile, and is
fenced.

A producer's name is on the topic once. The same producer of the same connection replaces itself if its own epoch is newer.

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
    """A producer as its topic sees it. ``producer.py`` has the class."""

    @property
    def name(self) -> str: ...

    @property
    def access(self) -> Access: ...

    @property
    def epoch(self) -> int:
        """Counts how often the client has connected this producer."""

    @property
    def topic_epoch(self) -> int | None:
        """The epoch with which it was the exclusive producer before; None: it was not."""

    @property
    def identity(self) -> Hashable:
        """Its connection, and its number there."""

    def close(self) -> None:
        """Tell the client to connect the producer again, and take nothing more from this one."""

    def promoted(self) -> None:
        """It has waited, and is the exclusive producer now."""

    def fenced(self) -> None:
        """It has waited in vain."""


class NameTaken(Exception):
    """There is a producer of this name on another connection. Perhaps that connection is dead: then the newcomer may try
    again."""

    def __init__(self, holder: TopicProducer) -> None:
        super().__init__()
        self.holder = holder

    def as_refusal(self) -> ProducerBusy:
        return ProducerBusy(f"Producer with name '{self.holder.name}' is already connected to topic")


@attrs.frozen
class Admitted:
    """``waits``: it will be the exclusive producer when it is promoted. ``raised``: the topic's epoch has risen and must be
    durable before anybody is told. ``replaced`` are closed, ``fenced`` are told that they wait in vain."""

    waits: bool = False
    raised: bool = False
    replaced: Sequence[TopicProducer] = ()
    fenced: Sequence[TopicProducer] = ()


class Producers:
    """``epoch`` is that of the topic, -1 if it never had an exclusive producer."""

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self._by_name: dict[str, TopicProducer] = {}
        self._exclusive: TopicProducer | None = None
        # In the order in which they came. Of tens of thousands, each leaves without a look at the others.
        self._waiting: OrderedDict[TopicProducer, None] = OrderedDict()

    def __len__(self) -> int:
        """Those that produce; who waits is not counted."""
        return len(self._by_name)

    def __iter__(self) -> Iterator[TopicProducer]:
        """Those that produce and those that wait."""
        return iter([*self._by_name.values(), *self._waiting])

    @property
    def in_use(self) -> bool:
        return bool(self._by_name or self._waiting)

    @property
    def exclusive(self) -> TopicProducer | None:
        return self._exclusive

    def admit(self, producer: TopicProducer, most: int = 0) -> Admitted:
        """``most``: how many producers the topic may have; 0: any number. Raises ProducerBusy, ProducerFenced, NameTaken; then
        nothing has changed."""
        before = self._by_name.get(producer.name)
        if before is not None and not (before.identity == producer.identity and before.epoch < producer.epoch):
            # Where the newcomer may fence all others, a name is no obstacle.
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
        for one in fenced:
            del self._waiting[one]
        self._by_name = {producer.name: producer}
        self._exclusive = producer
        self._raise_epoch(producer)
        return Admitted(raised=True, replaced=replaced, fenced=fenced)

    def remove(self, producer: TopicProducer) -> TopicProducer | None:
        """It has left; unknown: nothing. Returns who has waited and is the exclusive producer now: the epoch has risen."""
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
        # One that returns with the newest epoch keeps it, so that its own earlier connection does not fence it.
        if producer.topic_epoch is None or producer.topic_epoch != self.epoch:
            self.epoch = max(self.epoch + 1, producer.topic_epoch or 0)

    def _check_room(self, most: int, others: int) -> None:
        if most and others >= most:
            raise ProducerBusy("Topic reached max producers limit")
