"""Which consumer of a subscription gets a message that is not kept. Pure; the subscription's lock guards it.

The message goes to a consumer at once, or is dropped. So there is nothing to read, to acknowledge or to deliver again, and each
type of subscription is only a way to choose:

| type | who gets the entry |
|---|---|
| Exclusive | the consumer |
| Failover | the active one: the same choice as for topics that are kept, without the delay |
| Shared | the next in turn, by priority, of those that can take it |
| Key_Shared | the owner of the hash of its key |

A consumer can take something if it has permits and its connection is not full. Where the one whose entry it is cannot, nobody
gets it.

Tests: tests/pulsar/nonpersistent/test_choosing.py.
"""

from typing import Protocol

from broker.pulsar.dispatch.dispatcher import Consumer
from broker.pulsar.dispatch.key_ranges import Halves, KeyRanges, Points, Sticky
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.dispatch.single_active import Choice
from broker.pulsar.dispatch.turns import Turns
from broker.pulsar.entry import Entry


class Chooser(Protocol):
    def join(self, consumer: Consumer) -> None:
        """Raises a Refusal; then nothing has changed."""

    def leave(self, consumer: Consumer) -> None: ...

    def offer(self, consumer: Consumer) -> None:
        """It may be available, and perhaps was not before."""

    def take(self, entry: Entry) -> Consumer | None:
        """Who gets the entry, with permits that are reduced by its messages. None: nobody."""

    @property
    def active(self) -> Consumer | None:
        """The only one that is served. None: all of them are, or there are none."""


class OneServed:
    """``choice``: which of them it is."""

    __slots__ = ("_choice", "_count", "active")

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._count = 0
        self.active: Consumer | None = None

    def join(self, consumer: Consumer) -> None:
        self._choice.join(consumer)
        self._count += 1
        self.active = self._choice.active()

    def leave(self, consumer: Consumer) -> None:
        self._choice.leave(consumer)
        self._count -= 1
        self.active = self._choice.active() if self._count else None

    def offer(self, consumer: Consumer) -> None: ...

    def take(self, entry: Entry) -> Consumer | None:
        consumer = self.active
        if consumer is None or not consumer.available:
            return None
        consumer.permits -= entry.messages
        return consumer


class InTurn:
    __slots__ = ("_turns",)

    active: Consumer | None = None

    def __init__(self) -> None:
        self._turns = Turns()

    def join(self, consumer: Consumer) -> None:
        self._turns.offer(consumer)

    def leave(self, consumer: Consumer) -> None:
        self._turns.remove(consumer)

    def offer(self, consumer: Consumer) -> None:
        self._turns.offer(consumer)

    def take(self, entry: Entry) -> Consumer | None:
        consumer = self._turns.first()
        if consumer is not None:
            consumer.permits -= entry.messages
            self._turns.end_turn(consumer)
        return consumer


class ByHash:
    __slots__ = ("_ranges",)

    active: Consumer | None = None

    def __init__(self, settings: DispatchSettings, *, sticky: bool) -> None:
        self._ranges: KeyRanges
        if sticky:
            self._ranges = Sticky()
        elif settings.consistent_hashing:
            self._ranges = Points(settings.hash_points)
        else:
            self._ranges = Halves()

    def join(self, consumer: Consumer) -> None:
        self._ranges.join(consumer)

    def leave(self, consumer: Consumer) -> None:
        self._ranges.leave(consumer)

    def offer(self, consumer: Consumer) -> None: ...

    def take(self, entry: Entry) -> Consumer | None:
        consumer = self._ranges.owner(self._ranges.reduce(entry.sticky_hash))
        if consumer is None or not consumer.available:
            return None
        consumer.permits -= entry.messages
        return consumer
