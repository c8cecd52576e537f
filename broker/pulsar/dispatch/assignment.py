"""The interface of an assignment, which chooses the consumer of each entry and the order of redelivery; and ``Turns``.

``many_consumers.py`` decides when to read and does everything else. The two assignments are ``round_robin.py`` (Shared) and
``by_key.py`` (Key_Shared). Both keep the *waiting* entries: those in the table of records in flight without an owner.

``Turns`` chooses the next available consumer: by priority, and round robin within a priority.

Pure. A consumer is *queued* while it waits for its turn. Consumers that become unavailable stay queued until ``Turns`` meets
them. The time of every call is independent of the number of consumers, except for the logarithm of the number of priorities and
for the unavailable consumers that it meets, each of which was queued by an event.

With permits C1 2, C2 1, C3 1 of priority 0 and C4 2, C5 1 of priority 1, and turns of one message, the order is that of Pulsar's
documentation: C1 C2 C3 C1 C4 C5 C4.

Tests: tests/pulsar/dispatch/test_round_robin_shared.py,
tests/pulsar/dispatch/test_by_key.py.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

import attrs

from broker.delivery.in_flight import InFlight, Owner, Record
from broker.pulsar.dispatch.dispatcher import Consumer, Delivery, DispatchSettings
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor

# The tag of a record of whose entry only the time of delivery is known. All other tags belong to the assignment.
UNKNOWN = -1


@attrs.define(eq=False)
class Sent:
    """The outcome of sending the entries of a read."""

    batches: dict[Consumer, list[Delivery]] = attrs.field(factory=dict)
    messages: int = 0
    size: int = 0
    left: Entry | None = (
        None  # the first entry that was neither sent nor put with the waiting entries, like all after it
    )


# Consumers of a priority whose permits are checked to estimate how much to read.
_SEEN = 8


class Turns:
    __slots__ = ("_alone", "_levels", "_priorities")

    def __init__(self) -> None:
        # The only queued consumer, as long as there has never been a second: an idle subscription has one consumer, and the
        # tables take 600 bytes.
        self._alone: Consumer | None = None
        self._levels: dict[int, OrderedDict[Consumer, None]] | None = None  # by priority; none of them is empty
        self._priorities: Sequence[int] = ()  # the keys, sorted

    def offer(self, consumer: Consumer) -> None:
        """Queue the consumer if it is available. If it is queued already, it keeps its place; otherwise it gets the last."""
        if consumer.permits > 0 and not consumer.blocked and consumer.writable:
            if self._levels is None:
                if self._alone is None or self._alone is consumer:
                    self._alone = consumer
                    return
                self._levels, self._priorities = {}, []
                self._queue(self._alone)
                self._alone = None
            self._queue(consumer)

    def _queue(self, consumer: Consumer) -> None:
        levels, priorities = self._levels, self._priorities
        assert levels is not None
        level = levels.get(consumer.priority)
        if level is None:
            levels[consumer.priority] = level = OrderedDict()
            assert isinstance(priorities, list)
            insort(priorities, consumer.priority)
        level[consumer] = None

    def first(self) -> Consumer | None:
        """The consumer whose turn it is. None: no consumer is available."""
        while True:
            if self._levels is None:
                consumer = self._alone
                if consumer is None:
                    return None
            elif self._priorities:
                consumer = next(iter(self._levels[self._priorities[0]]))
            else:
                return None
            if consumer.permits > 0 and not consumer.blocked and consumer.writable:
                return consumer
            self.remove(consumer)

    def end_turn(self, consumer: Consumer) -> None:
        """Move the consumer behind the others of its priority, or remove it if it is no longer available."""
        if not (consumer.permits > 0 and not consumer.blocked and consumer.writable):
            self.remove(consumer)
        elif self._levels is not None:
            self._levels[consumer.priority].move_to_end(consumer)

    def remove(self, consumer: Consumer) -> None:
        if self._levels is None:
            if self._alone is consumer:
                self._alone = None
            return
        level = self._levels.get(consumer.priority)
        if level is not None and consumer in level:
            del level[consumer]
            if not level:
                del self._levels[consumer.priority]
                assert isinstance(self._priorities, list)
                del self._priorities[bisect_left(self._priorities, consumer.priority)]

    def room(self, entries: int, messages_per_entry: float) -> int:
        """About how many entries could be sent now, at most ``entries``, and not 0 if a consumer is available. Each consumer
        counts for at least one entry; the number is extrapolated from the permits of some of them."""
        levels: Iterable[Collection[Consumer]]
        if self._levels is None:
            levels = () if self._alone is None else ((self._alone,),)
        else:
            levels = map(self._levels.__getitem__, self._priorities)
        room = 0
        for level in levels:
            of_some = 0
            for consumer in islice(level, _SEEN):
                permits = consumer.permits
                of_some += int(permits / messages_per_entry) if permits > messages_per_entry else 1
            room += of_some if len(level) <= _SEEN else len(level) * of_some // _SEEN
            if room >= entries:
                return entries
        return room


class Assignment(Protocol):
    """What both assignments have, and what they differ in."""

    __slots__ = ("_cursor", "_in_flight", "_settings", "_turns", "waiting")

    _cursor: Cursor
    _settings: DispatchSettings
    _in_flight: InFlight
    _turns: Turns
    waiting: int  # the number of waiting entries

    def __init__(self, cursor: Cursor, settings: DispatchSettings, in_flight: InFlight) -> None:
        self._cursor = cursor
        self._settings = settings
        self._in_flight = in_flight
        self._turns = Turns()
        self.waiting = 0

    # -- consumers --

    def join(self, consumer: Consumer) -> None:
        """Raises a Refusal; then nothing has changed."""

    def leave(self, consumer: Consumer) -> None:
        """The consumer's records are released a little later, one at a time."""

    def offer(self, consumer: Consumer) -> None:
        """The consumer is available, and perhaps was not before."""

    def anyone(self) -> bool:
        """Whether any consumer is available."""
        return self._turns.first() is not None

    def room(self, entries: int, messages_per_entry: float) -> int:
        """About how many entries could be sent, at most ``entries``. Not 0 if a consumer is available."""
        return self._turns.room(entries, messages_per_entry)

    # -- waiting entries --

    def put(self, record: Record) -> None:
        """This record waits from now on."""

    def acknowledged(self, record: Record) -> None:
        """This waiting record is acknowledged."""

    def freed(self, record: Record, owner: Owner) -> None:
        """``owner`` no longer has this record."""

    def ready(self) -> bool:
        """Whether ``take`` would probably return an offset; a quick estimate."""

    def take(self, most: int, messages_per_entry: float) -> list[int]:
        """The offsets of at most ``most`` waiting entries that could be sent now, ascending. Until ``taken_back`` they are not
        taken again."""

    def taken_back(self, offsets: Sequence[int]) -> None:
        """The entries that ``take`` returned have been read, or could not be: those still waiting may be taken again."""

    @property
    def full(self) -> bool:
        """So many entries wait for certain consumers that no new entries may be read."""

    def _waits(self, offset: int) -> bool:
        record = self._in_flight.records.get(offset)
        return record is not None and record.owner is None

    # -- read entries --

    def send(self, entries: Iterable[Entry], messages: int, size: int, *, new: bool) -> Sent:
        """Acquire each entry for a consumer, or have it wait, until ``messages`` messages or ``size`` bytes are sent. ``new``:
        the entries are not in the table."""

    def clear(self) -> None:
        """There are no consumers and no records any more."""
