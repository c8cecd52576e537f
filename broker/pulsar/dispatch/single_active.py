"""The dispatcher of subscriptions that serve one consumer at a time: Exclusive and Failover. Pure.

A ``Choice`` (``OnlyOne``, ``OneOfMany``) chooses the *active* consumer, which gets all entries in the order of the log, as its
permits allow. When another consumer becomes active, the cursor is rewound, so that it gets the entries that its predecessor has
not acknowledged. Failover waits before that: if several consumers join in succession, only the last choice is served, and its
predecessor has time to acknowledge its entries.

The states:

| state | means | left when |
|---|---|---|
| IDLE | No reason to read: no active consumer, or it has no permits, is not writable, or the cursor is crowded. | FLOW |
| ACTIVATING | A consumer is to become active at a time. Permits are counted, nothing is read. | TICK |
| READING | A read is outstanding. | READ_DONE |
| PAUSED | A rate limit, or a read that failed: read again at a time. | TICK |

Every event ends in ``_next``, which determines the state anew. So no event during an outstanding read can leave a subscription
waiting for nothing. A read with a stale epoch changes no state when it completes: Pulsar's issue 26174 is a stale completion that
clears the mark of the current read.

Redelivery cannot pick messages without breaking the order, so it is a rewind, as in Pulsar. An outstanding read is kept if it
begins no later than the rewound cursor reads, so that a client that asks for redelivery without end causes only one read.

An entry is never left out for lack of permits, but the last entry sent may have more messages than there were permits. Then the
permits are negative until the consumer gives enough new ones.

Exclusive subscriptions have a single consumer; readers use them as well. Failover subscriptions have several consumers and serve
the active consumer until it leaves, or until a consumer that sorts before it joins.

Consumers are sorted by priority (0 first) and name. For a partition, the active consumer is chosen by the partition's number
among the consumers of the best priority, so that the partitions of a topic are spread evenly over them. For a topic without
partitions, it is chosen by a ring of hashes: each consumer of the best priority has 100 points on it, and the consumer of the
first point from the topic's hash on is served. So different topics choose different consumers, and every broker makes the same
choice (Pulsar's AbstractDispatcherSingleActiveConsumer).

Only the points of consumers of the best priority count. A consumer's points are computed when it joins, which takes 100 us.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from broker.pulsar.dispatch.dispatcher import (
    Activate,
    CancelRead,
    Consumer,
    Deliver,
    Delivery,
    Discard,
    DispatchSettings,
    Effect,
    Now,
    Read,
    Replay,
    WakeAt,
)
from broker.pulsar.dispatch.rate_limit import RateLimit
from broker.pulsar.entry import Entry
from broker.pulsar.refusals import ConsumerBusy
from broker.pulsar.subscriptions.cursor import Cursor
from protocol.pulsar.murmur3 import murmur3_32

_new = tuple.__new__
# The weight of the last read in the average of messages per entry, as in Pulsar.
_LATEST_WEIGHS = 0.1
# After a read that returned nothing, although it should have waited for an entry.
_EMPTY_RETRY_S = 0.01


class Choice(Protocol):
    delay_s: float  # from the choice of a consumer until it is served
    announced: bool  # consumers are told whether they are active

    def admit(self, consumers: Collection[Consumer]) -> None:
        """Raises a Refusal if no further consumer may join."""

    def join(self, consumer: Consumer) -> None:
        """The consumer was admitted."""

    def leave(self, consumer: Consumer) -> None: ...

    def active(self) -> Consumer:
        """The consumer that is served. At least one must have joined."""


class State(Enum):
    IDLE = auto()
    ACTIVATING = auto()
    READING = auto()
    PAUSED = auto()


class SingleActive:
    def __init__(self, cursor: Cursor, choice: Choice, settings: DispatchSettings, limit: RateLimit) -> None:
        self.active: Consumer | None = None
        self._cursor = cursor
        self._choice = choice
        self._settings = settings
        self._limit = limit
        self._consumers: dict[Consumer, None] = {}
        self._state = State.IDLE
        self._wake_at = 0.0  # while ACTIVATING or PAUSED
        self._read: Read | None = None  # while READING
        self._epoch = 0
        self._messages_per_entry = 1.0
        self._failures = 0  # in a row

    @property
    def consumers(self) -> Sequence[Consumer]:
        return list(self._consumers)

    @property
    def state(self) -> State:
        return self._state

    # -- events -------------------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer, now: Now) -> list[Effect]:
        self._choice.admit(self._consumers)
        self._consumers[consumer] = None
        self._choice.join(consumer)
        effects = self._choose(now)
        if not effects and self._choice.announced and self._state is not State.ACTIVATING:
            # Another consumer stays active. During ACTIVATING, all consumers are told at its end.
            return [Activate(consumer, active=False)]
        return effects

    def remove(self, consumer: Consumer, now: Now) -> list[Effect]:
        if consumer not in self._consumers:
            return []
        del self._consumers[consumer]
        self._choice.leave(consumer)
        if self._consumers:
            return self._choose(now)
        self.active = None
        return self._stop_reading()

    def flow(self, consumer: Consumer, permits: int, now: Now) -> list[Effect]:
        consumer.permits += permits
        return self._next(now) if consumer is self.active else []

    def read_done(self, read: Read, entries: Sequence[Entry], now: Now, *, failed: bool = False) -> list[Effect]:
        if read.epoch != self._epoch or self._state is not State.READING:
            return []
        self._read = None
        self._state = State.IDLE
        if failed:
            settings = self._settings
            retry_s = min(settings.read_retry_s * 2 ** min(self._failures, 10), settings.read_retry_max_s)
            self._failures += 1
            return self._pause(now.monotonic + retry_s)
        self._failures = 0
        if not entries:
            return self._pause(now.monotonic + _EMPTY_RETRY_S)
        effects = self._send(entries, now)
        effects += self._next(now)
        return effects

    def replay_done(self, replay: Replay, entries: Sequence[Entry], now: Now, *, failed: bool = False) -> list[Effect]:
        return []  # it never asks for a replay

    def acknowledged(self, consumer: Consumer | None, entry: int, messages: int, whole: bool, now: Now) -> list[Effect]:
        # Reading may continue if the cursor was crowded.
        return self._next(now) if self._state is State.IDLE else []

    def acknowledged_whole(self, entries: Sequence[int], now: Now) -> list[Effect]:
        return self._next(now) if self._state is State.IDLE else []

    def marked_deleted(self, offset: int, now: Now) -> list[Effect]:
        if self._cursor.read_offset < offset:
            self._cursor.read_offset = offset
        return self._next(now)

    def redeliver(self, consumer: Consumer, entries: Sequence[int] | None, now: Now) -> list[Effect]:
        if consumer is not self.active or self._state is State.ACTIVATING:
            return []
        self._cursor.rewind()
        if self._state is State.READING:
            assert self._read is not None
            if self._read.offset <= self._where():
                return []
            return self._stop_reading() + self._next(now)
        return self._next(now)

    def writable(self, consumer: Consumer, now: Now) -> list[Effect]:
        return self._next(now) if consumer is self.active else []

    def tick(self, now: Now) -> list[Effect]:
        if self._state not in (State.ACTIVATING, State.PAUSED):
            return []
        if now.monotonic < self._wake_at:
            return [WakeAt(self._wake_at)]
        activating = self._state is State.ACTIVATING
        self._state = State.IDLE
        return self._activate(now) if activating else self._next(now)

    # -- the active consumer ------------------------------------------------------------------------------------------

    def _choose(self, now: Now) -> list[Effect]:
        chosen = self._choice.active()
        if chosen is self.active:
            return []
        self.active = chosen
        if not self._choice.delay_s:
            return self._stop_reading() + self._activate(now)
        if self._state is State.ACTIVATING:
            return []  # the time set for the previous choice stays, so that joining consumers cannot postpone it for ever
        effects = self._stop_reading()
        self._state = State.ACTIVATING
        self._wake_at = now.monotonic + self._choice.delay_s
        return effects + [WakeAt(self._wake_at)]

    def _activate(self, now: Now) -> list[Effect]:
        self._cursor.rewind()
        effects: list[Effect] = []
        if self._choice.announced:
            effects += [Activate(consumer, active=consumer is self.active) for consumer in self._consumers]
        return effects + self._next(now)

    # -- reading and sending ------------------------------------------------------------------------------------------

    def _where(self) -> int:
        """The offset to read next. Everything between the cursor and it is acknowledged."""
        return self._cursor.next_unacknowledged(self._cursor.read_offset)

    def _next(self, now: Now) -> list[Effect]:
        """Read, if there is an active consumer and nothing to wait for."""
        consumer = self.active
        if self._state is not State.IDLE or consumer is None:
            return []
        if consumer.permits <= 0 or not consumer.writable or self._cursor.crowded:
            return []
        messages, size = consumer.permits, self._settings.read_bytes_max
        if self._limit.limited:
            of_messages, of_bytes = self._limit.available(now.monotonic)
            messages, size = min(messages, of_messages), min(size, of_bytes)
            if messages == 0 or size == 0:
                return self._pause(self._limit.next_at(now.monotonic))
        entries = min(self._settings.read_entries_max, int(messages / self._messages_per_entry) + 1)
        if self._failures:
            entries = 1  # a single entry is less likely to fail than many
        self._cursor.read_offset = self._where()
        self._state = State.READING
        self._read = Read(self._cursor.read_offset, entries, size, self._epoch)
        return [self._read]

    def _stop_reading(self) -> list[Effect]:
        """Forget the outstanding read: its completion is stale from now on."""
        reading = self._state is State.READING
        self._epoch += 1
        self._read = None
        self._state = State.IDLE
        self._failures = 0
        return [CancelRead()] if reading else []

    def _pause(self, until: float) -> list[Effect]:
        self._state = State.PAUSED
        self._wake_at = until
        return [WakeAt(until)]

    def _send(self, entries: Sequence[Entry], now: Now) -> list[Effect]:
        """Send entries as permits allow. The rest is read again."""
        consumer, cursor = self.active, self._cursor
        assert consumer is not None
        acknowledged = cursor.acknowledged
        acknowledged_end, parts = acknowledged.end, acknowledged.parts
        effects: list[Effect] = []
        deliveries: list[Delivery] = []
        discarded: list[Entry] = []
        permits = consumer.permits
        limited = self._limit.limited
        budget = min(permits, self._limit.available(now.monotonic)[0]) if limited else permits
        sent = sent_bytes = covered = 0
        read_offset = cursor.read_offset
        for entry in entries:
            offset, messages = entry.offset, entry.messages
            end = offset + messages
            if end <= read_offset:
                continue  # skipped or acknowledged since the read began
            if end > acknowledged_end or not cursor.is_acknowledged(end - 1):
                if entry.marker:
                    discarded.append(entry)
                else:
                    if sent >= budget:
                        break
                    covered += messages
                    if parts and offset in parts:
                        sent += cursor.remaining(offset, messages)
                        deliveries.append(Delivery(entry, 0, cursor.ack_set(offset)))
                    else:
                        sent += messages
                        deliveries.append(_new(Delivery, (entry, 0, None)))
                    sent_bytes += entry.size
            read_offset = end
        cursor.read_offset = read_offset
        if deliveries:
            consumer.permits = permits - sent
            average = covered / len(deliveries)
            self._messages_per_entry += (average - self._messages_per_entry) * _LATEST_WEIGHS
            if limited:
                self._limit.consumed(sent, sent_bytes, now.monotonic)
            effects.append(Deliver(consumer, deliveries))
        if discarded:
            effects.append(Discard(discarded))
        return effects


class OnlyOne:
    delay_s = 0.0
    announced = False

    def __init__(self) -> None:
        self._consumers: dict[Consumer, None] = {}

    def admit(self, consumers: Collection[Consumer]) -> None:
        if consumers:
            raise ConsumerBusy("Exclusive consumer is already connected")  # clients' tests look for these words

    def join(self, consumer: Consumer) -> None:
        self._consumers[consumer] = None

    def leave(self, consumer: Consumer) -> None:
        del self._consumers[consumer]

    def active(self) -> Consumer:
        return next(iter(self._consumers))


class Exclusive(SingleActive):
    def __init__(self, cursor: Cursor, settings: DispatchSettings, limit: RateLimit | None = None) -> None:
        super().__init__(cursor, OnlyOne(), settings, limit or RateLimit())


_POINTS = 100
_NO_SIGN = 0x7FFFFFFF


class OneOfMany:
    """Keeps the consumers in the order of choice, so that joining and leaving cost the same however many there are: by priority,
    on the ring then by the distance from the topic's hash to the consumer's next point, by name."""

    announced = True

    def __init__(self, topic: str, partition: int, delay_s: float) -> None:
        self.delay_s = delay_s
        self._partition = partition
        self._hash = murmur3_32(topic.encode()) & _NO_SIGN
        self._joined = 0  # the number of the last consumer that has joined
        self._places: list[_Place] = []  # ascending
        self._place_of: dict[Consumer, _Place] = {}

    def admit(self, consumers: Collection[Consumer]) -> None:
        """Admits any number of consumers: the limit is a policy of the topic."""

    def join(self, consumer: Consumer) -> None:
        self._joined += 1
        distance = 0 if self._partition >= 0 else self._distance(consumer.name)
        place = _Place(consumer.priority, distance, consumer.name, self._joined, consumer)
        self._place_of[consumer] = place
        insort(self._places, place)

    def leave(self, consumer: Consumer) -> None:
        del self._places[bisect_left(self._places, self._place_of.pop(consumer))]

    def active(self) -> Consumer:
        places = self._places
        first = places[0]
        if self._partition >= 0:
            best = bisect_left(places, (first.priority + 1,))
            return places[self._partition % best].consumer
        # A point that two consumers share belongs to the last of them, as in Pulsar, where new points replace older ones.
        return places[bisect_left(places, (first.priority, first.distance + 1)) - 1].consumer

    def _distance(self, name: str) -> int:
        points = (murmur3_32(f"{name}{number}".encode()) & _NO_SIGN for number in range(_POINTS))
        return min((point - self._hash) % (_NO_SIGN + 1) for point in points)


class _Place(NamedTuple):
    """Numbers are unique, so tuple comparison never reaches the consumers."""

    priority: int
    distance: int  # 0 where there is no ring
    name: str
    number: int
    consumer: Consumer


class Failover(SingleActive):
    """``topic``: its whole name, as clients write it. ``partition``: the number of the partition, -1 if not partitioned."""

    def __init__(
        self, cursor: Cursor, topic: str, partition: int, settings: DispatchSettings, limit: RateLimit | None = None
    ) -> None:
        super().__init__(cursor, OneOfMany(topic, partition, settings.failover_delay_s), settings, limit or RateLimit())
