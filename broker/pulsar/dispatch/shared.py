"""Shared: every entry goes to one of the consumers, and is acknowledged by itself. Pure; ``dispatcher.py`` says what is asked
of it.

    read  --> whose turn (turns.py) -----> in flight --> acknowledged
               ^        |                     |
               |        +-- not yet due --> delayed
               |                              |
              replay <------------------------+ redeliver, consumer left

What is done with the entries of a read, in their order:

- An entry that is acknowledged already is skipped, a marker of the server is discarded, one that is to be delivered later
  goes to the delayed tracker.
- A chunk of a message whose earlier chunks went to a consumer goes to that one (``chunks.py``); if it cannot take it now, the
  chunk is *parked*: it is replayed once that consumer is available again, or has left.
- Any other goes to the consumer whose turn it is. A turn ends after ``turn_messages``, or with the permits, or with the limit
  of unacknowledged messages. A batch is never split, so permits may become negative.
- If nobody can take anything, the cursor goes back to the first entry that is left over, and these are read again.

Entries to be replayed come before new ones. They are replayed although a ``Read`` waits at the end of the log, and although
the subscription has too many unacknowledged messages; in that case nothing new is read.

While anybody is available, there is always one of these: an outstanding read, a time to be woken at, or the limit of
unacknowledged messages is reached. So nothing that could be delivered waits for an event that does not come.
"""

from collections.abc import Generator, Iterable, Sequence

from broker.delivery.chores import Chores
from broker.delivery.in_flight import InFlight, Record
from broker.delivery.offset_queue import OffsetQueue
from broker.pulsar.dispatch.alarm import Alarm
from broker.pulsar.dispatch.chunks import Chunks
from broker.pulsar.dispatch.dispatcher import (
    CancelRead,
    Consumer,
    Deliver,
    Delivery,
    Discard,
    Effect,
    Now,
    Read,
    Replay,
)
from broker.pulsar.dispatch.helpers import Delayed, Limiter
from broker.pulsar.dispatch.reading import Reading
from broker.pulsar.dispatch.settings import DispatchSettings
from broker.pulsar.dispatch.turns import Turns
from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.cursor import Cursor

# How long to wait for a rate limit: Pulsar's MESSAGE_RATE_BACKOFF_MS.
_RATE_RETRY_S = 1.0


class Shared:
    """``cursor`` is read from ``acknowledged_before`` on. ``delayed``, ``limiter``: None where there is nothing of that
    kind."""

    __slots__ = (
        "_alarm",
        "_chores",
        "_chunks",
        "_cursor",
        "_delayed",
        "_held_back",
        "_in_flight",
        "_limiter",
        "_parked",
        "_parked_count",
        "_queue",
        "_reading",
        "_settings",
        "_turns",
        "consumers",
    )

    def __init__(
        self,
        cursor: Cursor,
        settings: DispatchSettings,
        delayed: Delayed | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self._cursor = cursor
        self._settings = settings
        self._delayed = delayed
        self._limiter = limiter
        self.consumers: list[Consumer] = []
        self._in_flight = InFlight(
            owner_max=settings.unacked_max_per_consumer, total_max=settings.unacked_max_per_subscription
        )
        self._turns = Turns()
        self._reading = Reading(settings)
        self._queue = OffsetQueue()  # to be replayed
        self._chunks = Chunks()
        self._parked: dict[Consumer, list[int]] = {}  # chunks that wait for this consumer
        self._parked_count = 0
        self._chores = Chores()
        self._alarm = Alarm()
        self._held_back = (
            False  # there are consumers for new entries, which are not read before something is acknowledged
        )

    # -- consumers ----------------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer, now: Now) -> list[Effect]:
        self.consumers.append(consumer)
        return []

    def remove(self, consumer: Consumer, now: Now) -> list[Effect]:
        if consumer not in self.consumers:
            return []
        self.consumers.remove(consumer)
        self._turns.remove(consumer)
        consumer.left = True
        if not self.consumers:
            return self._abandon()
        self._unpark(consumer)
        self._chores.add(self._release(list(consumer.held.values())))
        return self._more(now, [])

    def flow(self, consumer: Consumer, permits: int, now: Now) -> list[Effect]:
        consumer.permits += permits
        return self._offer(consumer, now)

    def writable(self, consumer: Consumer, now: Now) -> list[Effect]:
        return self._offer(consumer, now)

    def _offer(self, consumer: Consumer, now: Now) -> list[Effect]:
        if not consumer.available:
            return []
        self._turns.offer(consumer)
        if consumer in self._parked:
            self._unpark(consumer)
        return self._more(now, [])

    def _abandon(self) -> list[Effect]:
        """The last consumer has left: the next one begins with what is not acknowledged."""
        self._in_flight.clear()
        self._queue.clear()
        self._chunks.clear()
        self._parked.clear()
        self._parked_count = 0
        self._chores.clear()
        if self._delayed is not None:
            self._delayed.clear()
        self._cursor.rewind()
        return [CancelRead()] if self._reading.forget() else []

    # -- what comes back ----------------------------------------------------------------------------------------------

    def acknowledged(self, consumer: Consumer | None, entry: int, messages: int, whole: bool, now: Now) -> list[Effect]:
        record = self._in_flight.records.get(entry)
        if record is None:
            return self._more(now, []) if self._held_back else []
        owner = record.owner
        was_blocked = owner is not None and owner.blocked
        if whole:
            self._in_flight.remove(record)
        else:
            self._in_flight.lower(record, messages)
        if was_blocked:
            assert isinstance(owner, Consumer)
            return self._offer(owner, now)
        return self._more(now, []) if self._held_back else []

    def marked_deleted(self, offset: int, now: Now) -> list[Effect]:
        self._cursor.read_offset = max(self._cursor.read_offset, offset)
        doomed = self._in_flight.before(offset)
        if doomed:
            self._chores.add(self._forget(doomed))
        return self._more(now, [])

    def redeliver(self, consumer: Consumer, entries: Sequence[int] | None, now: Now) -> list[Effect]:
        held = consumer.held
        records = list(held.values()) if entries is None else [held[entry] for entry in entries if entry in held]
        if not records:
            return []
        self._chores.add(self._fail(consumer, records))
        return self._more(now, [])

    def _release(self, records: Iterable[Record]) -> Generator[None]:
        for record in records:
            if record.owner is not None:
                self._in_flight.release(record)
                self._queue.put(record.first)
            yield

    def _fail(self, consumer: Consumer, records: Iterable[Record]) -> Generator[None]:
        for record in records:
            if record.owner is consumer:
                self._in_flight.fail(record)
                self._queue.put(record.first)
                self._turns.offer(consumer)
            yield

    def _forget(self, records: Iterable[Record]) -> Generator[None]:
        for record in records:
            if self._in_flight.records.get(record.first) is record:
                owner = self._in_flight.remove(record)
                if owner is not None:
                    assert isinstance(owner, Consumer)
                    self._turns.offer(owner)
            yield

    def _unpark(self, consumer: Consumer) -> None:
        parked = self._parked.pop(consumer, [])
        self._parked_count -= len(parked)
        for offset in parked:
            self._queue.put(offset)

    def _waits(self, offset: int) -> bool:
        """Whether this entry is to be replayed."""
        record = self._in_flight.records.get(offset)
        return record is not None and record.owner is None

    # -- reads --------------------------------------------------------------------------------------------------------

    def read_done(self, read: Read, entries: Sequence[Entry], now: Now, *, failed: bool = False) -> list[Effect]:
        if not self._reading.end_read(read):
            return []
        effects: list[Effect] = []
        if failed:
            self._reading.failed(now)
        elif not entries:
            self._reading.empty(now)
        else:
            self._reading.succeeded()
            sent = 0 if self._in_flight.blocked else self._send(entries, now, effects, new=True)
            # The rest is read again when somebody is available.
            self._cursor.read_offset = entries[-1].last + 1 if sent == len(entries) else entries[sent].offset
        return self._more(now, effects)

    def replay_done(self, replay: Replay, entries: Sequence[Entry], now: Now, *, failed: bool = False) -> list[Effect]:
        if not self._reading.end_replay(replay):
            return []
        effects: list[Effect] = []
        if failed:
            self._reading.failed(now)
            left = list(replay.offsets)
        else:
            self._reading.succeeded()
            self._drop_gone(replay.offsets, entries)
            sent = self._send(entries, now, effects, new=False)
            left = [entry.offset for entry in entries[sent:]]
        for offset in left:
            self._queue.put(offset)
        return self._more(now, effects)

    def _drop_gone(self, offsets: Sequence[int], entries: Sequence[Entry]) -> None:
        """Forget what was to be replayed and is no longer in the log."""
        if len(entries) < len(offsets):
            for offset in set(offsets).difference(entry.offset for entry in entries):
                if self._waits(offset):
                    self._in_flight.remove(self._in_flight.records[offset])

    def tick(self, now: Now) -> list[Effect]:
        self._alarm.rings()
        return self._more(now, [])

    # -- the decisions ------------------------------------------------------------------------------------------------

    def _more(self, now: Now, effects: list[Effect]) -> list[Effect]:
        """Ask for what can be sent next."""
        if self._chores:
            self._chores.work()
            if self._chores:
                self._alarm.ring_at(now.monotonic, now, effects)
        self._held_back = False
        reading = self._reading
        if reading.replay is not None or self._turns.first() is None:
            return effects
        if reading.retry_at > now.monotonic:
            self._alarm.ring_at(reading.retry_at, now, effects)
            return effects
        messages, size = 1 << 62, self._settings.read_bytes_max
        if self._limiter is not None:
            messages, allowed = self._limiter.available(now)
            if messages <= 0 or allowed <= 0:
                self._alarm.ring_at(now.monotonic + _RATE_RETRY_S, now, effects)
                return effects
            size = min(size, allowed)
        entries = self._turns.room(reading.entries_max, reading.messages_per_entry)
        entries = max(1, min(entries, int(messages / reading.messages_per_entry)))
        if self._delayed is not None and self._delayed:
            self._take_due(self._delayed, entries, now, effects)
        if self._queue:
            offsets = self._queue.take(entries, self._waits)
            if offsets:
                effects.append(reading.begin_replay(offsets))
                return effects
        if reading.read is None:
            if self._in_flight.blocked or self._cursor.crowded or self._parked_count >= self._settings.look_ahead_max:
                self._held_back = True
            else:
                offset = self._cursor.next_unacknowledged(self._cursor.read_offset)
                effects.append(reading.begin_read(offset, entries, size))
        return effects

    def _take_due(self, delayed: Delayed, most: int, now: Now, effects: list[Effect]) -> None:
        for offset in delayed.due(now, most):
            if offset not in self._in_flight.records and not self._cursor.is_acknowledged(offset):
                self._in_flight.add(offset, 1)
                self._queue.put(offset)
        next_at = delayed.next_at()
        if next_at is not None:
            self._alarm.ring_at(now.monotonic + max(0.0, next_at - now.wall_ms) / 1000, now, effects)

    def _send(self, entries: Sequence[Entry], now: Now, effects: list[Effect], *, new: bool) -> int:
        """Give the entries to the consumers. Returns the index of the first that nobody can take."""
        in_flight, turns, cursor, delayed = self._in_flight, self._turns, self._cursor, self._delayed
        records, acknowledged_end, parts = in_flight.records, cursor.acknowledged.end, cursor.acknowledged.parts
        batches: dict[Consumer, list[Delivery]] = {}
        discarded: list[Entry] = []
        turn: Consumer | None = None
        batch: list[Delivery] = []
        room = 0  # messages that are left of the turn
        sent_messages = sent_size = 0
        done = 0
        for done, entry in enumerate(entries):  # noqa: B007
            offset = entry.offset
            record = records.get(offset)
            if new:
                if record is not None:
                    continue
            elif record is None or record.owner is not None:
                continue  # it was acknowledged while it was read
            if offset < acknowledged_end and cursor.is_acknowledged(entry.last):
                if record is not None:
                    in_flight.remove(record)
                continue
            if entry.marker:
                discarded.append(entry)
                continue
            if entry.deliver_at_ms and new and delayed is not None and delayed.add(entry.deliver_at_ms, offset, now):
                continue
            if room <= 0:
                if turn is not None:
                    turns.end_turn(turn)
                turn = turns.first()
                if turn is None:
                    break
                room = min(self._settings.turn_messages, turn.permits, in_flight.room(turn))
                batch = batches.setdefault(turn, [])
            assert turn is not None
            weight, ack_set = entry.messages, None
            if parts and offset in parts:
                weight, ack_set = cursor.remaining(offset, weight), cursor.ack_set(offset)
            if entry.chunk is not None and (other := self._chunk_goes_to(entry, turn)) is not turn:
                if other.available:
                    other.permits -= weight
                    record = in_flight.acquire(other, offset, weight)
                    batches.setdefault(other, []).append(Delivery(entry, record.failures, ack_set))
                else:
                    self._park(entry, other)
                    continue
            else:
                turn.permits -= weight
                room -= weight
                record = in_flight.acquire(turn, offset, weight)
                batch.append(Delivery(entry, record.failures, ack_set))
            sent_messages += weight
            sent_size += entry.size
        else:
            done = len(entries)
        if turn is not None:
            turns.end_turn(turn)
        for consumer, deliveries in batches.items():
            if deliveries:
                effects.append(Deliver(consumer, deliveries))
        if discarded:
            effects.append(Discard(discarded))
        if sent_messages:
            self._reading.measure(sum(map(len, batches.values())), sent_messages)
            if self._limiter is not None:
                self._limiter.consumed(sent_messages, sent_size)
        return done

    def _chunk_goes_to(self, entry: Entry, turn: Consumer) -> Consumer:
        assert entry.chunk is not None
        consumer = self._chunks.consumer(entry.chunk)
        if consumer is None or consumer.left:
            consumer = turn
        if consumer.available:
            self._chunks.sent(entry.chunk, consumer)
        return consumer

    def _park(self, entry: Entry, consumer: Consumer) -> None:
        if entry.offset not in self._in_flight.records:
            self._in_flight.add(entry.offset, entry.messages)
        self._parked.setdefault(consumer, []).append(entry.offset)
        self._parked_count += 1
